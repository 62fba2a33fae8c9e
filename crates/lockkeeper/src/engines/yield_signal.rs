//! The bell by which a holder is asked to give way, for engines that can carry the question.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::Asked;

/// One for each claim. It stays rung.
#[derive(Debug, Clone, Default)]
pub(super) struct YieldSignal(Arc<watch::Sender<bool>>);

impl YieldSignal {
    pub(super) fn ring(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when it was rung.
    pub(super) fn rung(&self) -> Asked {
        let mut rung = self.0.subscribe();
        Box::pin(async move {
            if rung.wait_for(|rung| *rung).await.is_err() {
                // Given back without having been asked: nobody will.
                std::future::pending::<()>().await;
            }
        })
    }
}
