//! The table as every browser shows it: one row per lock, and the changes since the last poll.

use std::collections::HashSet;
use std::time::SystemTime;

use serde::Serialize;

use super::model::{EngineName, Lock, Party};
use super::time;

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) engine: EngineName,
    pub(crate) key: String,
    pub(crate) kind: Option<String>,
    pub(crate) fence: Option<u64>,
    /// The first [`MOST_HOLDERS`].
    pub(crate) holders: Vec<Party>,
    pub(crate) held_by: usize,
    /// `null` if the engine does not know them.
    pub(crate) waiting: Option<usize>,
    #[serde(serialize_with = "time::optional")]
    pub(crate) waiting_since: Option<SystemTime>,
    pub(crate) trouble: Option<Trouble>,
    /// Whether the engine does not answer, so that this is what was seen last.
    pub(crate) stale: bool,
}

/// Why a lock needs attention, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trouble {
    Deadlock,
    /// A lease is near its end: renewals fail, or the holder is gone.
    LeaseLow,
    Waiting,
}

/// The numbers above the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Strip {
    /// At least this many; nothing counts of an engine that does not answer.
    pub(crate) held: usize,
    /// Engines that do not answer.
    pub(crate) silent: usize,
    /// At least this many; some engines do not know their waiters.
    pub(crate) waiting: usize,
    /// Locks whose waiters are unknown.
    pub(crate) waiting_unknown: usize,
    pub(crate) lost_last_hour: usize,
    pub(crate) smallest_slack: Option<Slack>,
    pub(crate) deadlocks: usize,
}

/// What is left of the lease that is nearest to its end, as a share of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Slack {
    pub(crate) engine: EngineName,
    pub(crate) key: String,
    pub(crate) left: f64,
    pub(crate) share: f64,
}

/// How many holders a row names.
const MOST_HOLDERS: usize = 8;

/// A lease is renewed when two thirds are left. Less than this means that several renewals failed.
const LOW: f64 = 0.25;

impl Row {
    pub(crate) fn new(lock: &Lock, deadlocked: &HashSet<(&str, &str)>, stale: bool) -> Self {
        let low = |party: &Party| slack(party, lock.looked).is_some_and(|(_, share)| share < LOW);
        let trouble = if deadlocked.contains(&(&*lock.engine, lock.key.as_str())) {
            Some(Trouble::Deadlock)
        } else if lock.holders.iter().any(low) {
            Some(Trouble::LeaseLow)
        } else {
            (!lock.waiting().is_empty()).then_some(Trouble::Waiting)
        };
        Self {
            engine: lock.engine.clone(),
            key: lock.key.clone(),
            kind: lock.holders.iter().chain(lock.waiting()).next().map(|party| party.kind.clone()),
            fence: lock.fence.or(lock.holders.iter().filter_map(|holder| holder.fence).max()),
            holders: lock.holders.iter().take(MOST_HOLDERS).cloned().collect(),
            held_by: lock.holders.len(),
            waiting: lock.waiters.as_ref().map(Vec::len),
            waiting_since: lock.waiting().iter().map(Party::began).min(),
            trouble,
            stale,
        }
    }
}

impl Strip {
    /// From the locks of the engines that answer, and the number of the others.
    pub(crate) fn new<'a>(
        locks: impl Iterator<Item = &'a Lock> + Clone,
        silent: usize,
        lost_last_hour: usize,
        deadlocks: usize,
    ) -> Self {
        let held = |lock: &&Lock| !lock.holders.is_empty();
        let slacks = locks.clone().flat_map(|lock| {
            lock.holders.iter().filter_map(|holder| {
                let (left, share) = slack(holder, lock.looked)?;
                Some(Slack { engine: lock.engine.clone(), key: lock.key.clone(), left, share })
            })
        });
        Self {
            held: locks.clone().filter(held).count(),
            silent,
            waiting: locks.clone().map(|lock| lock.waiting().len()).sum(),
            waiting_unknown: locks.clone().filter(|lock| lock.waiters.is_none()).count(),
            lost_last_hour,
            smallest_slack: slacks.min_by(|one, other| one.share.total_cmp(&other.share)),
            deadlocks,
        }
    }
}

/// What is left of a lease, in seconds and as a share.
fn slack(holder: &Party, now: SystemTime) -> Option<(f64, f64)> {
    let left = holder.lease_ends?.duration_since(now).unwrap_or_default().as_secs_f64();
    let lease = holder.lease.filter(|lease| *lease > 0.0)?;
    Some((left, left / lease))
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{at, lock};
    use super::*;

    #[test]
    fn trouble_is_the_worst_there_is() {
        let nobody = HashSet::new();
        let mut contended = lock("k", &["a@h 1"], &["b@h 2"]);
        assert_eq!(Row::new(&contended, &nobody, false).trouble, Some(Trouble::Waiting));
        contended.looked = at(25);
        assert_eq!(Row::new(&contended, &nobody, false).trouble, Some(Trouble::LeaseLow));
        let ring = HashSet::from([("e", "k")]);
        assert_eq!(Row::new(&contended, &ring, false).trouble, Some(Trouble::Deadlock));
        assert_eq!(Row::new(&lock("k", &["a@h 1"], &[]), &nobody, false).trouble, None);
    }

    #[test]
    fn unknown_waiters_are_not_counted_as_none() {
        let mut blind = lock("k", &["a@h 1"], &[]);
        blind.waiters = None;
        assert_eq!(Row::new(&blind, &HashSet::new(), false).waiting, None);
        let strip = Strip::new([blind, lock("l", &["a@h 1"], &["b@h 2"])].iter(), 0, 0, 0);
        assert_eq!((strip.held, strip.waiting, strip.waiting_unknown), (2, 1, 1));
        let slack = strip.smallest_slack.unwrap();
        assert_eq!((slack.left, slack.share), (30.0, 1.0));
    }
}
