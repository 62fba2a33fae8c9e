//! What happened, recorded so that it can be judged afterwards.
//!
//! A [`Recorder`] notes every acquisition, a [`Resource`] every access to what the locks protect, and
//! [`check`] says what must not have happened. All times are since the recorder's start, by one clock.

mod checker;
mod recorder;
mod resource;
mod violation;

use std::ops::Range;
use std::time::Duration;

use lockkeeper::engine::Mode;

pub use checker::check;
pub use recorder::{Mark, Recorder};
pub use resource::{Access, Object, Resource};
pub use violation::Violation;

/// One lock that was given to somebody.
#[derive(Debug, Clone, PartialEq)]
pub struct Acquisition {
    /// The lock.
    pub key: String,
    /// How it was held.
    pub mode: Mode,
    /// Who held it. Guards of one re-entrant owner have the same.
    pub owner: String,
    /// When the caller asked for it.
    pub called: Duration,
    /// When the store let it in, where somebody watched the store.
    pub admitted: Option<Duration>,
    /// When the caller had it.
    pub returned: Duration,
    /// Its fence.
    pub fence: u64,
    /// Its permits.
    pub slots: Vec<u32>,
    /// Its lease.
    pub ttl: Duration,
    /// The last time that the holder touched what the lock protects.
    pub last_use: Option<Duration>,
    /// When the holder began to release it.
    pub release: Option<Duration>,
    /// When the release returned.
    pub released: Option<Duration>,
    /// When the holder was told of its loss.
    pub lost: Option<Duration>,
    /// Until when the lock vouched for itself, by the holder's own last look.
    /// Set where no signal can be counted on, because the holder may not have been running.
    pub deadline: Option<Duration>,
}

impl Acquisition {
    /// The time in which the holder had reason to believe that the lock was its own.
    pub fn claimed(&self) -> Range<Duration> {
        let ends = [self.release, self.lost, self.deadline];
        self.returned..ends.into_iter().flatten().min().unwrap_or(Duration::MAX)
    }
}

/// A lock that was taken away from its holder by force.
#[derive(Debug, Clone, PartialEq)]
pub struct Eviction {
    /// The lock.
    pub key: String,
    /// The fence under which it was held.
    pub fence: u64,
    /// When.
    pub at: Duration,
}

/// Everything that happened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// The locks that were given.
    pub acquisitions: Vec<Acquisition>,
    /// What the resource saw, in its order.
    pub accesses: Vec<Access>,
    /// The locks that were broken.
    pub evictions: Vec<Eviction>,
    /// What was left in the store when everyone was done, one line each.
    pub left: Vec<String>,
}
