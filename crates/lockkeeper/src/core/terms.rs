//! The terms of an acquire, validated.

use std::sync::Arc;
use std::time::Duration;

use super::backoff::Backoff;
use super::clock::usable;
use crate::engine::{Mode, Request};
use crate::key::Key;
use crate::owner::{Owner, Token};

/// The settings of a lock after validation.
#[derive(Debug)]
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

    pub(crate) fn request(&self, token: Token, queue: bool, who: Arc<str>) -> Request {
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
        }
    }
}
