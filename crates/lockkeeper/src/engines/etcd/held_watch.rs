//! Watching over a place that is held: whether somebody takes it away, or asks its holder to give way.
//!
//! The watch begins some time after the grant, but from its revision, so it sees what happened before.

use std::time::Duration;

use etcd_client::GetOptions;
use tokio::time::sleep;

use super::EtcdHeld;
use super::record::Record;
use super::watch::Target;
use crate::error::Loss;

/// How long nothing is tried after nobody could be asked.
const PAUSE: Duration = Duration::from_millis(500);

/// Resolves when the place is gone, and signals when its holder is asked to give way.
pub(super) async fn watch_over(held: EtcdHeld) -> Loss {
    let shared = &held.shared;
    let mut from = held.seen + 1;
    loop {
        let target = Target { key: held.seat.clone(), end: None, from, changes: true };
        shared.watches.event(target).await;
        // The watch may also have ended without an event, so its word alone is not enough.
        let look = shared.get("look at a held lock", held.seat.clone(), GetOptions::new());
        let found = match look.await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "cannot watch a held lock; trying again");
                sleep(PAUSE).await;
                continue;
            }
        };
        match found.kvs().first().filter(|place| place.create_revision() == held.number) {
            Some(place) if Record::read(place.value()).is_some_and(|record| record.asked) => {
                held.yielding.ring();
            }
            Some(_) => {}
            None => return Loss::Gone,
        }
        from = found.header().map_or(from, |header| header.revision() + 1);
    }
}
