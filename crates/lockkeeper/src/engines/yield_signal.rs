//! The signal that asks a holder to release its lock, for engines that can deliver it.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::{Held, Signal};

/// One for each claim. Once requested, it stays so.
#[derive(Debug, Clone, Default)]
pub(super) struct YieldSignal(Arc<watch::Sender<bool>>);

impl YieldSignal {
    pub(super) fn request(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when the holder was asked.
    pub(super) fn requested(&self) -> Signal {
        let mut requested = self.0.subscribe();
        Box::pin(async move {
            if requested.wait_for(|requested| *requested).await.is_err() {
                // Released without having been asked.
                std::future::pending::<()>().await;
            }
        })
    }
}

/// What engines that need nothing else keep with a grant.
impl Held for YieldSignal {
    fn yield_requested(&self) -> Option<Signal> {
        Some(self.requested())
    }
}
