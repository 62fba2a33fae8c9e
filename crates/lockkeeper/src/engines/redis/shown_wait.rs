//! A wait for a mutex without a queue: recorded in the store only so that people can see it.
//!
//! A short wait leaves no record, so contention alone costs nothing. A longer one is recorded with the
//! next attempt, for a limited time, and again with a later attempt before that time is over.

use std::time::Duration;

use tokio::time::Instant;

use super::claim::WAITER_LEASE;
use super::layout::millis;

/// How long a wait lasts before it is recorded.
const SHOWN_AFTER: Duration = Duration::from_millis(100);

/// How long a record lasts. The waiter asks again after [`WAITER_LEASE`] at the latest.
const SHOWN_FOR: Duration = Duration::from_secs(8);

/// One wait.
#[derive(Debug)]
pub(super) struct ShownWait {
    since: Instant,
    /// The record of the waiter.
    record: String,
    /// When it was last recorded.
    shown: Option<Instant>,
}

impl ShownWait {
    /// A wait that begins now.
    pub(super) fn new(record: String) -> Self {
        Self { since: Instant::now(), record, shown: None }
    }

    /// Whether there may be a record of it in the store.
    pub(super) fn is_shown(&self) -> bool {
        self.shown.is_some()
    }

    /// Whether the next attempt has to record it. If so, counts it as recorded.
    pub(super) fn show(&mut self) -> bool {
        let due = match self.shown {
            None => self.since.elapsed() >= SHOWN_AFTER,
            Some(shown) => shown.elapsed() >= WAITER_LEASE / 2,
        };
        if due {
            self.shown = Some(Instant::now());
        }
        due
    }

    /// How long until it is first to be recorded; `None` once it was.
    pub(super) fn until_first_shown(&self) -> Option<Duration> {
        self.shown.is_none().then(|| SHOWN_AFTER.saturating_sub(self.since.elapsed()))
    }

    /// The arguments of a script that records it, or removes its record. None if it was never recorded.
    pub(super) fn arguments(&self, show: bool) -> Vec<String> {
        match self.shown {
            Some(_) => {
                let time = if show { SHOWN_FOR } else { Duration::ZERO };
                vec![millis(time), self.record.clone()]
            }
            None => Vec::new(),
        }
    }
}
