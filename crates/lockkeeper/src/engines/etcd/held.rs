//! A grant: its entry, and the watch on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Shared;
use super::client::RangeRequest;
use super::layout::Record;
use super::watch::Target;
use crate::engine::{Held, Signal, YieldRequest};
use crate::engines::yield_signal::YieldSignal;
use crate::error::Loss;

/// The pause after no member could be asked.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
pub(super) struct EtcdHeld {
    pub(super) shared: Arc<Shared>,
    pub(super) lease: i64,
    /// The key of the entry, as it is stored.
    pub(super) name: Vec<u8>,
    /// Its create revision.
    pub(super) created: i64,
    /// The revision at which it was seen.
    pub(super) seen: i64,
    pub(super) yielding: YieldSignal,
}

impl EtcdHeld {
    /// Resolves when the entry is gone, and signals when the holder is asked to release it.
    ///
    /// The watch starts some time after the grant, but from its revision, so it sees what happened
    /// before.
    async fn watch(self) -> Loss {
        let mut from = self.seen + 1;
        loop {
            let target = Target { key: self.name.clone(), end: None, from, changes: true };
            let _ = self.shared.watches.begin(target).event.await;
            // The watch may also have ended without an event, so that alone is not enough.
            let own = RangeRequest::key(self.name.clone());
            let look = self.shared.get("look at a held lock", own);
            let found = match look.await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, "cannot watch a held lock; trying again");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            match found.kvs.first().filter(|entry| entry.create_revision == self.created) {
                Some(entry) => {
                    if let Some(asked) = Record::read(&entry.value).and_then(|record| record.asked)
                    {
                        self.yielding.request(asked);
                    }
                }
                None => return Loss::Gone,
            }
            from = found.header.map_or(from, |header| header.revision + 1);
        }
    }
}

impl Held for EtcdHeld {
    fn gone(&self) -> Option<Signal<Loss>> {
        Some(Box::pin(self.clone().watch()))
    }

    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        Some(self.yielding.requested())
    }
}
