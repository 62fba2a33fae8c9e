//! Watching over a place that is held: whether somebody takes it away, or asks its holder to give way.
//!
//! A lock that is held for a moment is not worth a watch. The watch begins a little later, and from the
//! revision of the grant, so it sees what happened before it began.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::GetOptions;
use tokio::time::sleep;

use super::record::Record;
use super::watch::Target;
use super::{Held, Shared};
use crate::engines::yield_signal::YieldSignal;
use crate::error::Loss;

/// How long a lock is held before it is watched over.
const DELAY: Duration = Duration::from_millis(50);

/// How long nothing is tried after nobody could be asked.
const PAUSE: Duration = Duration::from_millis(500);

/// Resolves when the place is gone, and rings when its holder is asked to give way.
///
/// `from` is the first revision after the one at which the place was seen.
pub(super) async fn watch_over(
    shared: Arc<Shared>,
    held: Held,
    mut from: i64,
    bell: YieldSignal,
) -> Loss {
    sleep(DELAY).await;
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
                bell.ring();
            }
            Some(_) => {}
            None => return Loss::Gone,
        }
        from = found.header().map_or(from, |header| header.revision() + 1);
    }
}
