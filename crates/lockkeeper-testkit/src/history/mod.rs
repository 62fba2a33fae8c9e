//! The history of a run, recorded so that it can be checked afterwards.
//!
//! A [`Recorder`] records every acquisition, a [`Resource`] every access to what the locks protect,
//! and [`check`] reports violations. All times count from the recorder's start, by one clock.

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

/// One lock that was granted.
#[derive(Debug, Clone, PartialEq)]
pub struct Acquisition {
    /// The lock.
    pub key: String,
    /// How it was held.
    pub mode: Mode,
    /// The holder. Guards of one re-entrant owner have the same.
    pub owner: String,
    /// When the caller asked for it.
    pub called: Duration,
    /// When the store granted it, if the store was observed.
    pub admitted: Option<Duration>,
    /// When the caller got it.
    pub returned: Duration,
    /// Its fence.
    pub fence: u64,
    /// Its permits.
    pub slots: Vec<u32>,
    /// Its lease.
    pub ttl: Duration,
    /// The last time that the holder accessed what the lock protects.
    pub last_use: Option<Duration>,
    /// When the holder began to release it.
    pub release: Option<Duration>,
    /// When the release returned.
    pub released: Option<Duration>,
    /// When the holder was signalled its loss.
    pub lost: Option<Duration>,
    /// Until when the lock was valid, by the holder's own last check. Set if no signal can be
    /// expected, because the holder may not have been running.
    pub deadline: Option<Duration>,
}

impl Acquisition {
    /// A mutex that was granted at this millisecond, for two seconds.
    #[cfg(test)]
    pub(crate) fn of_test(owner: &str, returned: u64) -> Self {
        let ms = Duration::from_millis;
        Self {
            key: "key".to_owned(),
            mode: Mode::Mutex,
            owner: owner.to_owned(),
            called: ms(0),
            admitted: None,
            returned: ms(returned),
            fence: returned,
            slots: Vec::new(),
            ttl: ms(2000),
            last_use: None,
            release: None,
            released: None,
            lost: None,
            deadline: Some(ms(returned)),
        }
    }

    /// The time in which the holder had reason to consider the lock its own.
    pub fn claimed(&self) -> Range<Duration> {
        let ends = [self.release, self.lost, self.deadline];
        self.returned..ends.into_iter().flatten().min().unwrap_or(Duration::MAX)
    }
}

/// A lock that was broken.
#[derive(Debug, Clone, PartialEq)]
pub struct Eviction {
    /// The lock.
    pub key: String,
    /// The fence under which it was granted.
    pub fence: u64,
    /// The last fence that its grant reserved.
    pub last: u64,
    /// When.
    pub at: Duration,
}

/// Everything that was recorded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// The locks that were granted.
    pub acquisitions: Vec<Acquisition>,
    /// The accesses to the resource, in order.
    pub accesses: Vec<Access>,
    /// The locks that were broken.
    pub evictions: Vec<Eviction>,
    /// What was left in the store at the end, one line each.
    pub left: Vec<String>,
}
