//! What is held: the entry of a grant, and the watch over it.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::GetOptions;
use tokio::time::sleep;

use super::Shared;
use super::layout::Record;
use super::watch::Target;
use crate::engine::{Held, Signal};
use crate::engines::yield_signal::YieldSignal;
use crate::error::Loss;

/// How long nothing is tried after nobody could be asked.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
pub(super) struct EtcdHeld {
    pub(super) shared: Arc<Shared>,
    pub(super) lease: i64,
    /// The entry, as it is stored.
    pub(super) name: Vec<u8>,
    /// Its create revision.
    pub(super) created: i64,
    /// The revision at which it was seen.
    pub(super) seen: i64,
    pub(super) yielding: YieldSignal,
}

impl EtcdHeld {
    /// Resolves when the entry is gone, and signals when its holder is asked to give way.
    ///
    /// The watch begins some time after the grant, but from its revision, so it sees what happened before.
    async fn watch(self) -> Loss {
        let mut from = self.seen + 1;
        loop {
            let target = Target { key: self.name.clone(), end: None, from, changes: true };
            self.shared.watches.event(target).await;
            // The watch may also have ended without an event, so its word alone is not enough.
            let look = self.shared.get("look at a held lock", self.name.clone(), GetOptions::new());
            let found = match look.await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, "cannot watch a held lock; trying again");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            match found.kvs().first().filter(|entry| entry.create_revision() == self.created) {
                Some(entry) if Record::read(entry.value()).is_some_and(|record| record.asked) => {
                    self.yielding.ring();
                }
                Some(_) => {}
                None => return Loss::Gone,
            }
            from = found.header().map_or(from, |header| header.revision() + 1);
        }
    }
}

impl Held for EtcdHeld {
    fn gone(&self) -> Option<Signal<Loss>> {
        Some(Box::pin(self.clone().watch()))
    }

    fn yield_requested(&self) -> Option<Signal> {
        Some(self.yielding.rung())
    }
}
