//! Contention: from when to when more than N clients waited, and which blocked which for how long.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::model::{EngineName, Lock, Party};
use super::time;

/// The time between two polls of an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interval {
    /// The last poll; `None` before the first one.
    pub(crate) from: Option<SystemTime>,
    pub(crate) to: SystemTime,
    /// Whether polls in between failed, so that much may have happened unseen.
    pub(crate) blind: bool,
}

impl Interval {
    /// The moment in the interval that is nearest to this one.
    pub(crate) fn clamp(&self, time: SystemTime) -> SystemTime {
        self.from.map_or(time, |from| time.max(from)).min(self.to)
    }

    /// The seconds from a moment to the end of the interval, as far as they lie in it.
    fn seconds_since(&self, time: SystemTime) -> f64 {
        self.to.duration_since(self.clamp(time)).unwrap_or_default().as_secs_f64()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Episode {
    pub(crate) engine: EngineName,
    pub(crate) key: String,
    #[serde(serialize_with = "time::plain", deserialize_with = "time::read")]
    pub(crate) from: SystemTime,
    /// `null` while it lasts.
    #[serde(serialize_with = "time::optional", deserialize_with = "time::read_optional")]
    pub(crate) to: Option<SystemTime>,
    /// The highest number of waiters at once.
    pub(crate) peak: usize,
    /// The total time of all waiters.
    pub(crate) waiter_seconds: f64,
    /// Which holder blocked which waiter, the first [`MOST_PAIRS`] of them.
    pub(crate) blocked: Vec<Blocked>,
    /// The seconds of all other pairs.
    pub(crate) others_seconds: f64,
}

/// A client that waited while another one held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Blocked {
    pub(crate) holder: String,
    pub(crate) waiter: String,
    pub(crate) seconds: f64,
}

/// How many pairs an episode keeps.
const MOST_PAIRS: usize = 32;

impl Episode {
    /// Starts with the poll that found `lock` contended, after a poll that found `old`.
    pub(crate) fn begin(lock: &Lock, old: Option<&Lock>, interval: Interval) -> Self {
        let first = lock.waiting().iter().map(Party::began).min().unwrap_or(interval.to);
        let mut episode = Self {
            engine: lock.engine.clone(),
            key: lock.key.clone(),
            from: interval.clamp(first),
            to: None,
            peak: 0,
            waiter_seconds: 0.0,
            blocked: Vec::new(),
            others_seconds: 0.0,
        };
        episode.go_on(old, Some(lock), interval);
        episode
    }

    /// Adds the time between two polls.
    ///
    /// A client that waited at the first one is assumed to have waited until the second one, for
    /// the holders at the first one; a client that arrived in between counts from its own `since`.
    pub(crate) fn go_on(&mut self, old: Option<&Lock>, new: Option<&Lock>, interval: Interval) {
        self.peak = self.peak.max(new.map_or(0, |lock| lock.waiting().len()));
        if interval.blind {
            return;
        }
        let waited = old.map_or(&[][..], Lock::waiting);
        if let (Some(old), Some(from)) = (old, interval.from) {
            self.add(waited, &old.holders, |_| interval.seconds_since(from));
        }
        let known = |party: &&Party| waited.iter().any(|old| old.identity == party.identity);
        if let Some(new) = new {
            let came: Vec<_> =
                new.waiting().iter().filter(|party| !known(party)).cloned().collect();
            self.add(&came, &new.holders, |waiter| interval.seconds_since(waiter.began()));
        }
    }

    fn add(&mut self, waiters: &[Party], holders: &[Party], seconds: impl Fn(&Party) -> f64) {
        for waiter in waiters {
            let seconds = seconds(waiter);
            self.waiter_seconds += seconds;
            for holder in holders {
                let (holder, waiter) = (holder.name(), waiter.name());
                let same = |pair: &&mut Blocked| pair.holder == holder && pair.waiter == waiter;
                if let Some(pair) = self.blocked.iter_mut().find(same) {
                    pair.seconds += seconds;
                } else if self.blocked.len() < MOST_PAIRS {
                    self.blocked.push(Blocked { holder, waiter, seconds });
                } else {
                    self.others_seconds += seconds;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{at, lock};
    use super::*;

    fn between(from: u64, to: u64) -> Interval {
        Interval { from: Some(at(from)), to: at(to), blind: false }
    }

    #[test]
    fn waiter_seconds_are_charged_to_those_who_held() {
        let two = lock("k", &["a@h 1"], &["b@h 2", "c@h 3"]);
        let mut episode = Episode::begin(&two, None, between(0, 0));
        episode.go_on(Some(&two), Some(&two), between(0, 2));
        let passed = lock("k", &["b@h 2"], &["c@h 3"]);
        episode.go_on(Some(&two), Some(&passed), between(2, 4));
        episode.go_on(Some(&passed), None, between(4, 6));
        assert_eq!((episode.peak, episode.waiter_seconds), (2, 10.0));
        let pair = |holder: &str, waiter: &str| {
            let found = |pair: &&Blocked| pair.holder == holder && pair.waiter == waiter;
            episode.blocked.iter().find(found).map(|pair| pair.seconds)
        };
        assert_eq!(pair("a@h 1", "b@h 2"), Some(4.0));
        assert_eq!(pair("a@h 1", "c@h 3"), Some(4.0));
        assert_eq!(pair("b@h 2", "c@h 3"), Some(2.0));
    }

    #[test]
    fn an_episode_begins_when_its_first_waiter_came_and_not_when_it_was_seen() {
        let mut contended = lock("k", &["a@h 1"], &["b@h 2"]);
        let waiter = &mut contended.waiters.as_mut().unwrap()[0];
        (waiter.since, waiter.seen) = (Some(at(3)), at(4));
        let episode = Episode::begin(&contended, None, between(2, 4));
        assert_eq!((episode.from, episode.waiter_seconds), (at(3), 1.0));
        // A clock that is behind cannot move it before the poll that found no waiters.
        let waiter = &mut contended.waiters.as_mut().unwrap()[0];
        waiter.since = Some(at(0));
        assert_eq!(Episode::begin(&contended, None, between(2, 4)).from, at(2));
    }

    #[test]
    fn time_in_which_nobody_could_look_is_not_charged() {
        let contended = lock("k", &["a@h 1"], &["b@h 2"]);
        let mut episode = Episode::begin(&contended, None, between(0, 0));
        let blind = Interval { blind: true, ..between(0, 600) };
        episode.go_on(Some(&contended), Some(&contended), blind);
        assert_eq!(episode.waiter_seconds, 0.0);
    }

    #[test]
    fn the_number_of_pairs_is_bounded() {
        let names: Vec<_> = (0..MOST_PAIRS + 5).map(|n| format!("w@h {n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let crowd = lock("k", &["a@h 1"], &names);
        let mut episode = Episode::begin(&crowd, None, between(0, 0));
        episode.go_on(Some(&crowd), Some(&crowd), between(0, 1));
        assert_eq!(episode.blocked.len(), MOST_PAIRS);
        assert_eq!(episode.others_seconds, 5.0);
    }
}
