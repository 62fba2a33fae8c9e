//! What this engine has to know about a lock that is held.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Held, Lease, Signal, YieldRequest};

use super::Store;
use super::layout::entry;
use super::message::Message;
use super::settings::Layout;
use super::subscriber::Subscription;
use super::yielding;

/// What is known about a lock that is held.
#[derive(Debug)]
pub(super) struct RedisHeld {
    pub(super) store: Arc<Store>,
    pub(super) lease: Lease,
    pub(super) replicas: Option<u32>,
    /// How long it lasts until the first renewal, if it was handed over.
    pub(super) probation: Option<Duration>,
    /// Where others tell that they want it, if it may be kept.
    pub(super) wishes: Option<Arc<Subscription>>,
}

impl Held for RedisHeld {
    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        let (names, token) = (self.store.names(&self.lease.key), self.lease.token.to_string());
        let identity = self.lease.owner.as_ref().map_or(token.as_str(), |owner| owner.id());
        let field = match self.store.settings.layout {
            Layout::String => token.clone(),
            Layout::Hash => entry(identity, &token, self.lease.mode),
        };
        Some(yielding::asked(self.store.clone(), names, field))
    }

    fn wanted(&self) -> Option<Signal> {
        let wishes = self.wishes.clone()?;
        Some(Box::pin(async move {
            // Without the connection, nothing could be heard.
            while wishes.is_live() && wishes.take_message() != Some(Message::Wish) {
                wishes.notified().await;
            }
        }))
    }

    fn probation(&self) -> Option<Duration> {
        self.probation
    }

    fn replicas(&self) -> Option<u32> {
        self.replicas
    }
}
