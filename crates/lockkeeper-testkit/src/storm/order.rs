//! Whether fair locks were granted in order of arrival.
//!
//! Easy to get wrong: the store sees one waiter per client and key, and its place is that of the
//! client, not of a task. A client takes a place when its first task begins to wait, and another one,
//! at the end, after every grant and whenever a waiting task gives up. When a request arrives at the
//! store is not recorded, so only clients that began to wait much later count as overtaking, and only
//! several of them.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use super::{Kind, Struck, Target};
use crate::history::{Acquisition, Violation};

/// How many later ones may be served first, because a request took its time on a busy machine.
const OVERTAKEN: usize = 5;

/// What one process recorded about fair locks.
pub(super) struct Waits<'a> {
    /// The number of the process, as faults name it.
    pub(super) client: usize,
    pub(super) grants: &'a [Acquisition],
    pub(super) gave_up: &'a [(String, Duration)],
}

/// A wait at the store that ended with a grant.
struct Wait<'a> {
    process: usize,
    client: usize,
    since: Duration,
    grant: &'a Acquisition,
}

/// The waits that were overtaken although no fault hit the client or the servers. `hosts` is the
/// number of proxies of each client.
pub(super) fn overtaken(
    processes: &[Waits<'_>],
    prefix: &str,
    ttl: Duration,
    faults: &[Struck],
    hosts: usize,
) -> Vec<Violation> {
    let fair = format!("{prefix}{}", Kind::Fair.name());
    let mut keys: HashMap<&str, Vec<Wait<'_>>> = HashMap::new();
    for (process, waits) in processes.iter().enumerate() {
        for wait in waits.at_the_store(process, &fair) {
            keys.entry(&wait.grant.key).or_default().push(wait);
        }
    }
    let disturbed = |client: usize, time: &Range<Duration>| {
        faults.iter().any(|fault| {
            let concerns = match fault.target {
                Target::Client(n) => n == client,
                Target::Network(n) => n / hosts.max(1) == client,
                Target::Servers => true,
            };
            // A client that was cut off takes its place again within a lease.
            concerns && fault.time.start < time.end && time.start < fault.time.end + ttl
        })
    };
    let mut found = Vec::new();
    for waits in keys.values_mut() {
        waits.sort_by_key(|wait| wait.grant.returned);
        for (n, wait) in waits.iter().enumerate() {
            let later = wait.since + ttl / 2;
            let before = waits[..n].iter().rev().take_while(|other| other.grant.returned > later);
            let overtook =
                before.filter(|other| other.process != wait.process && other.since > later);
            let overtook: Vec<_> = overtook.collect();
            let time = wait.since..wait.grant.returned;
            if overtook.len() > OVERTAKEN && !disturbed(wait.client, &time) {
                let first = overtook[overtook.len() - 1].grant.clone();
                found.push(Violation::Overtaken {
                    pair: Box::new([wait.grant.clone(), first]),
                    times: overtook.len(),
                });
            }
        }
    }
    found
}

impl<'a> Waits<'a> {
    fn at_the_store(&self, process: usize, fair: &str) -> Vec<Wait<'a>> {
        let mut places: HashMap<&str, Vec<Duration>> = HashMap::new();
        let grants = self.grants.iter().filter(|grant| grant.key.starts_with(fair));
        let granted = grants.clone().map(|grant| (grant.key.as_str(), grant.returned));
        let gave_up = self.gave_up.iter().map(|(key, at)| (key.as_str(), *at));
        for (key, at) in granted.chain(gave_up) {
            places.entry(key).or_default().push(at);
        }
        places.values_mut().for_each(|times| times.sort());
        let wait = |grant: &'a Acquisition| {
            let times = &places[grant.key.as_str()];
            let last = times[..times.partition_point(|at| *at < grant.returned)].last();
            let since = last.map_or(grant.called, |last| grant.called.max(*last));
            Wait { process, client: self.client, since, grant }
        };
        grants.map(wait).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(2);

    fn grant(called: u64, returned: u64) -> Acquisition {
        let called = Duration::from_millis(called);
        Acquisition { key: "fair".into(), called, ..Acquisition::of_test("any", returned) }
    }

    /// One that waited from 0 to 2 s, while others were served.
    fn judged(others: &[Acquisition], gave_up: &[(String, Duration)], faults: &[Struck]) -> usize {
        let waiter = [grant(0, 2000)];
        let processes = [
            Waits { client: 0, grants: &waiter, gave_up },
            Waits { client: 1, grants: others, gave_up: &[] },
        ];
        overtaken(&processes, "", TTL, faults, 1).len()
    }

    #[test]
    fn a_waiter_is_not_overtaken_again_and_again() {
        let later: Vec<_> = (0..9).map(|n| grant(1000 + n * 100, 1050 + n * 100)).collect();
        assert_eq!(judged(&later, &[], &[]), 1);
        // Each of these may have come first.
        let sooner: Vec<_> = (0..9).map(|n| grant(n * 50, n * 50 + 25)).collect();
        assert_eq!(judged(&sooner, &[], &[]), 0);
    }

    #[test]
    fn a_task_that_gives_up_takes_the_place_of_its_client_with_it() {
        let later: Vec<_> = (0..9).map(|n| grant(1000 + n * 100, 1050 + n * 100)).collect();
        let gave_up = [("fair".to_owned(), Duration::from_millis(1900))];
        assert_eq!(judged(&later, &gave_up, &[]), 0);
    }

    #[test]
    fn a_client_that_was_hit_may_lose_its_place() {
        let later: Vec<_> = (0..9).map(|n| grant(1000 + n * 100, 1050 + n * 100)).collect();
        let hit = |target| {
            let time = Duration::from_millis(500)..Duration::from_millis(600);
            judged(&later, &[], &[Struck { name: "reset", target, time, forgets: false }])
        };
        assert_eq!(hit(Target::Network(0)), 0);
        assert_eq!(hit(Target::Servers), 0);
        assert_eq!(hit(Target::Client(1)), 1);
    }
}
