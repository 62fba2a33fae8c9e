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
    outcome.violations.iter().take(SHOWN).map(|v| Window::new(v, &outcome.history, &[])).collect()
}

/// The windows of a round.
pub(super) fn of_storm(judgement: &Judgement, may_overlap: bool) -> Vec<Window> {
    let overlaps = judgement.overlaps.iter().filter(|_| !may_overlap);
    let all = overlaps.chain(&judgement.violations).take(SHOWN);
    all.map(|violation| Window::new(violation, &judgement.history, &judgement.faults)).collect()
}

impl Window {
    fn new(violation: &Violation, history: &History, faults: &[Struck]) -> Self {
        let grants = grants(violation, history);
        let mut moments: Vec<(Duration, String)> = Vec::new();
        for grant in &grants {
            let who = format!("{} ({} of {:?})", grant.owner, grant.mode, grant.key);
            moments.push((grant.called, format!("{who} asks")));
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
        for fault in faults {
            if !moments.is_empty() && fault.time.start <= end && fault.time.end >= start {
                let what = match fault.target {
                    Target::Client(n) => format!("client {n}"),
                    Target::Network(n) => format!("connection {n}"),
                    Target::Servers => "servers".to_owned(),
                };
                let length = fault.time.end.saturating_sub(fault.time.start).as_millis();
                moments.push((
                    fault.time.start.max(start),
                    format!("fault: {} ({what}, {length} ms)", fault.name),
                ));
            }
        }
        moments.sort();
        let event = |(at, what): (Duration, String)| Event {
            ms: at.saturating_sub(start).as_micros() as f64 / 1e3,
            what,
        };
        Self { violation: violation.to_string(), events: moments.into_iter().map(event).collect() }
    }
}

/// The grants that contradict each other.
fn grants<'a>(violation: &'a Violation, history: &'a History) -> Vec<&'a Acquisition> {
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
