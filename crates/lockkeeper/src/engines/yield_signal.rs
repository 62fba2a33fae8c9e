//! The signal by which a holder is asked to give way, for engines that can carry the question.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::{Held, Signal};

/// One for each claim. It stays rung.
#[derive(Debug, Clone, Default)]
pub(super) struct YieldSignal(Arc<watch::Sender<bool>>);

impl YieldSignal {
    pub(super) fn ring(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when it was rung.
    pub(super) fn rung(&self) -> Signal {
        let mut rung = self.0.subscribe();
        Box::pin(async move {
            if rung.wait_for(|rung| *rung).await.is_err() {
                // Given back without having been asked: nobody will.
                std::future::pending::<()>().await;
            }
        })
    }
}

/// All there is to know of a lock on an engine that carries nothing else.
impl Held for YieldSignal {
    fn yield_requested(&self) -> Option<Signal> {
        Some(self.rung())
    }
}
