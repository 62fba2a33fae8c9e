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
    /// How long it is kept after its release.
    pub(crate) keep: Option<Duration>,
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
        self.hand_over && other.hand_over && self.are_those_of(other)
    }

    /// Whether a lock that is kept on these terms can be taken on those.
    pub(super) fn keep_for(&self, other: &Terms) -> bool {
        self.keep.is_some() && self.are_those_of(other)
    }

    /// Compares everything that the store or the holder relies on.
    fn are_those_of(&self, other: &Terms) -> bool {
        self.mode == other.mode
            && self.owner == other.owner
            && self.fixed == other.fixed
            && self.keep == other.keep
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
            reserve: match self.keep {
                Some(keep) => hand_over::passes(keep),
                None if contended && self.hand_over => hand_over::PASSES,
                None => 0,
            },
            keep: self.keep.is_some(),
        }
    }
}
