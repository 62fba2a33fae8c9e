//! The signal that asks a holder to release its lock, for engines that can deliver it.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::engine::{Held, Signal, YieldRequest};

/// One for each claim. The first request counts.
#[derive(Debug, Clone, Default)]
pub(super) struct YieldSignal(Arc<Shared>);

/// Less than a `watch` channel, which would be a tenth of the cost of a lock in memory.
#[derive(Debug, Default)]
struct Shared {
    request: OnceLock<YieldRequest>,
    requested: Notify,
}

impl YieldSignal {
    pub(super) fn request(&self, request: YieldRequest) {
        let _ = self.0.request.set(request);
        self.0.requested.notify_waiters();
    }

    /// Resolves when the holder was asked.
    pub(super) fn requested(&self) -> Signal<YieldRequest> {
        let shared = self.0.clone();
        Box::pin(async move {
            loop {
                // Created before the check, or a request in between would be missed.
                let requested = shared.requested.notified();
                if let Some(request) = shared.request.get() {
                    return request.clone();
                }
                requested.await;
            }
        })
    }
}

/// What engines that need nothing else keep with a grant.
impl Held for YieldSignal {
    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        Some(self.requested())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_reaches_those_who_listened_before_and_after_it() {
        let signal = YieldSignal::default();
        let (before, never) = (signal.requested(), YieldSignal::default().requested());
        let before = tokio::spawn(before);
        tokio::task::yield_now().await;
        assert!(!before.is_finished());
        let request = YieldRequest::new("ann@hq 7", Some("why"));
        signal.request(request.clone());
        signal.request(YieldRequest::default());
        assert_eq!(before.await.unwrap(), request);
        assert_eq!(signal.requested().await, request);
        let never = tokio::time::timeout(std::time::Duration::ZERO, never).await;
        assert!(never.is_err(), "another signal");
    }
}
