//! The broken connections of an engine, for [`Engine::disconnected`](crate::engine::Engine::disconnected).

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::Signal;

/// Clones are the same: whatever makes connections has one.
#[derive(Debug, Clone, Default)]
pub(super) struct Disconnections(Arc<watch::Sender<u64>>);

impl Disconnections {
    /// A connection broke.
    pub(super) fn report(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Resolves when a connection breaks after this call.
    pub(super) fn next(&self) -> Signal {
        let mut count = self.0.subscribe();
        Box::pin(async move {
            if count.changed().await.is_err() {
                // There are no connections any more.
                std::future::pending().await
            }
        })
    }
}
