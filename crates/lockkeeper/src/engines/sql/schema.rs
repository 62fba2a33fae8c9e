//! Whether the tables of a database exist, and have the version that this code needs.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use super::STATEMENT;
use super::sessions::{Dialect, Sessions, within};
use super::settings::Create;
use crate::engine::Finding;
use crate::error::{Error, Result};

/// Checks the version of our tables, and creates them if there are none, now or later.
pub(crate) async fn prepare<C: Dialect>(sessions: &Sessions<C>, create: Create) -> Result<()> {
    let mut found = version(sessions).await?;
    if found.is_none() && create == Create::Yes {
        make(sessions).await?;
        found = version(sessions).await?;
    }
    match found {
        Some(found) => check::<C>(found),
        None if create == Create::Later => {
            sessions.lacks_tables.store(true, Relaxed);
            Ok(())
        }
        None => {
            let why = "they are not there; the option create is no, or somebody removed them";
            Err(missing::<C>(why))
        }
    }
}

/// Whether there are tables to look at. Others may have created them meanwhile.
pub(super) async fn exist<C: Dialect>(sessions: &Sessions<C>) -> Result<bool> {
    if !sessions.lacks_tables.load(Relaxed) {
        return Ok(true);
    }
    let Some(found) = version(sessions).await? else { return Ok(false) };
    check::<C>(found)?;
    sessions.lacks_tables.store(false, Relaxed);
    Ok(true)
}

/// Creates the tables if there are none.
pub(super) async fn ensure<C: Dialect>(sessions: &Sessions<C>) -> Result<()> {
    if exist(sessions).await? {
        return Ok(());
    }
    make(sessions).await?;
    match exist(sessions).await? {
        true => Ok(()),
        false => Err(missing::<C>("they were made, and are not there")),
    }
}

fn check<C: Dialect>(found: i32) -> Result<()> {
    match mismatch::<C>(found) {
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

/// The finding of `doctor` about a database without our tables.
pub(super) fn missing_finding<C: Dialect>() -> Finding {
    Finding::warning(
        "this database has no tables of lockkeeper: nothing else was checked",
        format!(
            "the first lock creates them, if the user of the URL may; or an administrator runs what \
             `lockkeeper explain --schema {}:` prints",
            C::ENGINE
        ),
    )
}

/// The finding of `doctor` about the version of the tables.
pub(crate) fn version_finding<C: Dialect>(found: i32) -> Finding {
    match mismatch::<C>(found) {
        None => Finding::fine(format!("the tables of lockkeeper have version {found}")),
        Some((what, advice)) => Finding::problem(what, advice),
    }
}
