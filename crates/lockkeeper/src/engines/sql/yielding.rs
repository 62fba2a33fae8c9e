//! Requests to give way, in a table of their own: one row per key and fence.
//!
//! A transaction that a fence guards has locked the row of its lock, and not these. A fence identifies a
//! hold, except that readers share the last writer's: a request counts for those of them that held then.

use std::time::Duration;

use tokio::time::Instant;

use super::sessions::{Dialect, Sessions, within};
use super::{STATEMENT, micros};
use crate::engine::{Entry, YieldRequest};
use crate::error::{Error, Result};
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
    request: &YieldRequest,
) -> Result<()> {
    let fences = holders.iter().filter_map(|holder| holder.fence);
    let mut fences: Vec<_> = fences.filter_map(|fence| i64::try_from(fence.get()).ok()).collect();
    fences.dedup();
    if fences.is_empty() {
        return Ok(());
    }
    let mut session = sessions.any().await?;
    let answer = within(STATEMENT, session.wire().ask(key, &fences, &request.line())).await;
    session.settle(answer, "ask for a lock")
}

impl Asked {
    /// The request to this hold, if there is one.
    pub(super) async fn request<C: Dialect>(
        &self,
        sessions: &Sessions<C>,
    ) -> Result<Option<YieldRequest>> {
        let lately = self.reads_since.map_or(KEPT, |since| since.elapsed());
        let looked = async {
            let mut session = sessions.any().await?;
            let looking = session.wire().asked(&self.key, self.fence, micros(lately));
            let answer = within(STATEMENT, looking).await;
            session.settle(answer, "look for a yield request")
        };
        let looked = looked.await;
        if looked.as_ref().is_err_and(Error::is_retryable) {
            sessions.disconnections.report();
        }
        Ok(looked?.map(|line| YieldRequest::parse(&line)))
    }
}
