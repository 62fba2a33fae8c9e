//! Requests to give way, in a table of their own: one row per key and fence.
//!
//! A transaction that a fence guards has locked the row of its lock, and not these. A fence identifies a
//! hold, except that readers share the last writer's: a request counts for those of them that held then.

use std::time::Duration;

use tokio::time::Instant;

use super::sessions::{Dialect, Sessions, within};
use super::{STATEMENT, micros};
use crate::engine::Entry;
use crate::error::Result;
use crate::key::Key;

/// How long a request is kept at least; a hold may last longer.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// A hold that may be asked to give way.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) key: Key,
    pub(super) fence: i64,
    /// For a reader: since when it holds.
    pub(super) reads_since: Option<Instant>,
}

/// Records a request to these holders.
pub(super) async fn ask<C: Dialect>(
    sessions: &Sessions<C>,
    key: &Key,
    holders: &[Entry],
) -> Result<()> {
    let fences = holders.iter().filter_map(|holder| holder.fence);
    let mut fences: Vec<_> = fences.filter_map(|fence| i64::try_from(fence.get()).ok()).collect();
    fences.dedup();
    if fences.is_empty() {
        return Ok(());
    }
    let mut session = sessions.any().await?;
    let answer = within(STATEMENT, session.wire().ask(key, &fences)).await;
    session.settle(answer, "ask for a lock")
}

impl Asked {
    /// Whether there is a request to this hold.
    pub(super) async fn is_asked<C: Dialect>(&self, sessions: &Sessions<C>) -> Result<bool> {
        let lately = self.reads_since.map_or(KEPT, |since| since.elapsed());
        let mut session = sessions.any().await?;
        let looking = session.wire().is_asked(&self.key, self.fence, micros(lately));
        let answer = within(STATEMENT, looking).await;
        session.settle(answer, "look for a yield request")
    }
}
