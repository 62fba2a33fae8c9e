//! Whether the tables of a database exist, and have the version that this code needs.

use std::cmp::Ordering;

use super::STATEMENT;
use super::sessions::{Dialect, Sessions, within};
use crate::engine::Finding;
use crate::error::{Error, Result};

/// Checks that the database has our tables, and creates them if it has none and `create` is set.
pub(crate) async fn prepare<C: Dialect>(sessions: &Sessions<C>, create: bool) -> Result<()> {
    let mut found = version(sessions).await?;
    if found.is_none() && create {
        make(sessions).await?;
        found = version(sessions).await?;
    }
    let missing =
        || missing::<C>("they are not there; the option create is no, or somebody removed them");
    match mismatch::<C>(found.ok_or_else(missing)?) {
        None => Ok(()),
        Some((what, advice)) => {
            Err(Error::broken(C::ENGINE, "keep locks here", format!("{what}; {advice}")))
        }
    }
}

async fn version<C: Dialect>(sessions: &Sessions<C>) -> Result<Option<i32>> {
    let mut session = sessions.any().await?;
    let answer = within(STATEMENT, session.wire().tables()).await;
    session.settle(answer, "read the version of the tables")
}

async fn make<C: Dialect>(sessions: &Sessions<C>) -> Result<()> {
    let mut session = sessions.any().await?;
    let answer = session.wire().make_tables().await;
    session.settle(answer, "make the tables").inspect_err(|_| {
        let hint = missing::<C>("they are not there, and could not be made");
        tracing::error!(%hint);
    })
}

/// The error for tables that do not exist, or may not be used.
fn missing<C: Dialect>(why: &str) -> Error {
    let engine = C::ENGINE;
    let what_to_do =
        format!("`lockkeeper explain --schema {engine}:` prints what an administrator has to run");
    Error::broken(engine, "find the tables of lockkeeper", format!("{why}; {what_to_do}"))
}

/// What is wrong with tables of another version than this code needs, and what to do.
fn mismatch<C: Dialect>(found: i32) -> Option<(String, String)> {
    let (engine, ours) = (C::ENGINE, C::VERSION);
    let what =
        format!("the tables of lockkeeper have version {found}, and this client needs {ours}");
    let advice = match found.cmp(&ours) {
        Ordering::Equal => return None,
        Ordering::Less => format!(
            "stop the clients that use them, then let an administrator run what `lockkeeper explain --schema \
             {engine}:` prints; it brings them up to date, and keeps what is there"
        ),
        Ordering::Greater => "use a newer lockkeeper, as the one that made them".to_owned(),
    };
    Some((what, advice))
}

/// The finding of `doctor` about the version of the tables.
pub(crate) fn version_finding<C: Dialect>(found: i32) -> Finding {
    match mismatch::<C>(found) {
        None => Finding::fine(format!("the tables of lockkeeper have version {found}")),
        Some((what, advice)) => Finding::problem(what, advice),
    }
}
