//! The terms of an acquire, validated.

use std::sync::Arc;
use std::time::Duration;

use super::backoff::Backoff;
use super::clock::usable;
use super::hand_over;
use crate::engine::{Mode, Request};
use crate::key::Key;
use crate::owner::{Owner, Token};

/// The settings of a lock after validation.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) fixed: bool,
    pub(crate) spin: Option<Backoff>,
    pub(crate) owner: Option<Owner>,
    pub(crate) kept_when_lost: bool,
    pub(crate) fair: bool,
    pub(crate) margin: Option<Duration>,
    pub(crate) note: Option<Arc<str>>,
    /// Whether it may be handed over between tasks of this client without the store.
    pub(crate) hand_over: bool,
}

impl Terms {
    /// How long after the request was sent the holder of such a lease is signalled to stop.
    pub(crate) fn signal_after(&self, ttl: Duration) -> Duration {
        usable(ttl).min(ttl.saturating_sub(self.margin(ttl)))
    }

    /// The time that the holder of such a lease gets to stop.
    pub(crate) fn margin(&self, ttl: Duration) -> Duration {
        match self.margin {
            // A session or a connection keeps it alive until its end, and is renewed meanwhile.
            _ if self.fixed && ttl < self.ttl => ttl / 3,
            Some(margin) => margin,
            // The end of a fixed lease is known from the start: no early warning is needed.
            None if self.fixed => Duration::ZERO,
            None => ttl / 3,
        }
    }

    /// Whether a lock that is held on these terms can be handed over to a task that wants it on
    /// those.
    pub(super) fn suit(&self, other: &Terms) -> bool {
        // Everything that the store or the holder relies on.
        self.hand_over
            && other.hand_over
            && self.mode == other.mode
            && self.ttl == other.ttl
            && self.margin == other.margin
            && self.kept_when_lost == other.kept_when_lost
            && self.note == other.note
    }

    /// The request of a claim. `contended` means that tasks of this client queue for the lock.
    pub(crate) fn request(
        &self,
        token: Token,
        queue: bool,
        contended: bool,
        who: Arc<str>,
    ) -> Request {
        Request {
            key: self.key.clone(),
            token,
            owner: self.owner.clone(),
            mode: self.mode,
            ttl: self.ttl,
            fixed: self.fixed,
            fair: self.fair,
            queue: queue && self.spin.is_none(),
            who,
            note: self.note.clone(),
            reserve: if contended && self.hand_over { hand_over::PASSES } else { 0 },
        }
    }
}
