//! The smallest part of a history that shows a violation: the grants that contradict each other, and
//! the faults of their clients meanwhile.

use std::fmt;
use std::time::Duration;

use lockkeeper_testkit::history::{Acquisition, History, Violation};
use lockkeeper_testkit::simulation::Outcome;
use lockkeeper_testkit::storm::{Judgement, Struck, Target};
use serde::Serialize;

/// How many violations are shown; the first are usually the cause of the rest.
const SHOWN: usize = 3;

/// A violation, and what led to it.
#[derive(Debug, Serialize)]
pub(super) struct Window {
    violation: String,
    events: Vec<Event>,
}

#[derive(Debug, Serialize)]
struct Event {
    /// Since the first event.
    ms: f64,
    what: String,
}

/// The windows of a simulated system.
pub(super) fn of_simulation(outcome: &Outcome) -> Vec<Window> {
    let history = &outcome.history;
    outcome.violations.iter().take(SHOWN).map(|v| Window::new(v, history, |_| None, &[])).collect()
}

/// The windows of a round. `hosts` is the number of proxies of each client.
pub(super) fn of_storm(judgement: &Judgement, may_overlap: bool, hosts: usize) -> Vec<Window> {
    let overlaps = judgement.overlaps.iter().filter(|_| !may_overlap);
    let all = overlaps.chain(&judgement.violations).take(SHOWN);
    let client = |owner: &str| {
        let grants = &judgement.history.acquisitions;
        let n = grants.iter().position(|grant| grant.owner == owner)?;
        Some(judgement.clients[n])
    };
    let faults: Vec<_> = judgement
        .faults
        .iter()
        .map(|fault| match fault.target {
            Target::Client(n) => (Some(n), fault),
            Target::Network(n) => (Some(n / hosts.max(1)), fault),
            Target::Servers => (None, fault),
        })
        .collect();
    all.map(|violation| Window::new(violation, &judgement.history, client, &faults)).collect()
}

impl Window {
    /// `client` finds the client of an owner; a fault is that of a client, or of the servers.
    fn new(
        violation: &Violation,
        history: &History,
        client: impl Fn(&str) -> Option<usize>,
        faults: &[(Option<usize>, &Struck)],
    ) -> Self {
        let grants = grants(violation, history);
        let clients: Vec<_> = grants.iter().filter_map(|grant| client(&grant.owner)).collect();
        let mut moments: Vec<(Duration, String)> = Vec::new();
        for grant in &grants {
            let who = match client(&grant.owner) {
                Some(n) => format!("client {n} as {}", grant.owner),
                None => grant.owner.clone(),
            };
            moments
                .push((grant.called, format!("{who} asks for {} of {:?}", grant.mode, grant.key)));
            if let Some(at) = grant.admitted {
                moments.push((at, format!("{who} is granted by the store")));
            }
            moments.push((grant.returned, format!("{who} holds, fence {}", grant.fence)));
            let ends = [
                (grant.deadline, "has the lock, by its own last check"),
                (grant.lost, "is signalled the loss"),
                (grant.release, "begins to release"),
                (grant.released, "has released"),
            ];
            for (at, what) in ends {
                moments.extend(at.map(|at| (at, format!("{who} {what}"))));
            }
        }
        let start = moments.iter().map(|(at, _)| *at).min().unwrap_or_default();
        let end = moments.iter().map(|(at, _)| *at).max().unwrap_or_default();
        for (whose, fault) in faults {
            let concerns = whose.is_none_or(|n| clients.contains(&n));
            if concerns && fault.time.start <= end && fault.time.end >= start {
                let whose = whose.map_or("servers".to_owned(), |n| format!("client {n}"));
                let length = fault.time.end.saturating_sub(fault.time.start).as_millis();
                moments.push((
                    fault.time.start.max(start),
                    format!("fault: {} ({whose}, {length} ms)", fault.name),
                ));
            }
        }
        moments.sort();
        let event = |(at, what): (Duration, String)| Event {
            ms: at.saturating_sub(start).as_micros() as f64 / 1e3,
            what,
        };
        let said = violation.to_string();
        // What follows the colon is in the events.
        let headline = said.split(": ").next().filter(|_| !violation.grants().is_empty());
        Self {
            violation: headline.unwrap_or(&said).to_owned(),
            events: moments.into_iter().map(event).collect(),
        }
    }
}

/// The grants that contradict each other.
fn grants<'a>(violation: &'a Violation, history: &'a History) -> Vec<&'a Acquisition> {
    if let Violation::TooManyPermits { last, .. } = violation {
        let beside = |grant: &&Acquisition| {
            grant.key == last.key && grant.claimed().contains(&last.returned)
        };
        return history.acquisitions.iter().filter(beside).collect();
    }
    let Some(access) = violation.access() else { return violation.grants().iter().collect() };
    // The write that was overwritten, or the owner of the higher fence, came just before.
    let index = history.accesses.iter().position(|other| other == access).unwrap_or(0);
    let same = |other: &&lockkeeper_testkit::history::Access| {
        other.object == access.object && other.accepted && other.owner != access.owner
    };
    let before = history.accesses[..index].iter().rev().find(same);
    let owners = [Some(&access.owner), before.map(|access| &access.owner)];
    let involved =
        |grant: &&Acquisition| grant.key == access.object.0 && owners.contains(&Some(&grant.owner));
    history.acquisitions.iter().filter(involved).collect()
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.violation)?;
        for event in &self.events {
            writeln!(f, "  {:>10.3} ms  {}", event.ms, event.what)?;
        }
        Ok(())
    }
}
