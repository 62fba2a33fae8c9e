//! The list of the last locks that were broken, in a table beside the locks.

use super::sessions::{Dialect, Sessions, within};
use super::{STATEMENT, schema};
use crate::engine::broken::listed;
use crate::engine::{Break, Breaker, Entry};
use crate::error::Result;
use crate::key::Key;

/// Breaks a lock of these holders by `breaking`, which returns the former holders.
///
/// The break is recorded first, because its holders may notice it at once, and no longer if there was
/// nothing to break.
pub(super) async fn recorded<C: Dialect>(
    sessions: &Sessions<C>,
    key: &Key,
    by: &Breaker,
    holders: &[Entry],
    breaking: impl Future<Output = Result<Vec<Entry>>>,
) -> Result<Vec<Entry>> {
    if holders.is_empty() {
        return breaking.await;
    }
    let line = by.breaks(key, holders).line();
    if let Err(error) = add(sessions, &line).await {
        tracing::warn!(%error, %key, "a broken lock could not be recorded");
    }
    let broken = breaking.await;
    if broken.as_ref().map_or(true, Vec::is_empty)
        && let Err(error) = remove(sessions, &line).await
    {
        tracing::warn!(%error, %key, "the record of a lock that was not broken remains");
    }
    broken
}

/// The last breaks.
pub(super) async fn breaks<C: Dialect>(sessions: &Sessions<C>) -> Result<Vec<Break>> {
    if !schema::exist(sessions).await? {
        return Ok(Vec::new());
    }
    let mut session = sessions.any().await?;
    let answer = within(STATEMENT, session.wire().breaks()).await;
    let lines = session.settle(answer, "list broken locks")?;
    Ok(listed(lines.iter().filter_map(|line| Break::parse(line))))
}

async fn add<C: Dialect>(sessions: &Sessions<C>, line: &str) -> Result<()> {
    let mut session = sessions.any().await?;
    let answer = within(STATEMENT, session.wire().add_break(line)).await;
    session.settle(answer, "list a broken lock")
}

async fn remove<C: Dialect>(sessions: &Sessions<C>, line: &str) -> Result<()> {
    let mut session = sessions.any().await?;
    let answer = within(STATEMENT, session.wire().remove_break(line)).await;
    session.settle(answer, "list a broken lock")
}
