//! The result of a storm.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::log;
use crate::history::{Acquisition, History, Violation, check};

/// How many messages of each sort are printed.
const SHOWN: usize = 5;

/// The result of a storm.
#[derive(Debug)]
pub struct Judgement {
    /// How many grants there were.
    pub grants: usize,
    /// How many faults of each sort there were.
    pub faults: BTreeMap<&'static str, usize>,
    /// How often holders lost a lock, by reason.
    pub losses: BTreeMap<String, usize>,
    /// The outcomes of releases.
    pub releases: BTreeMap<String, usize>,
    /// The errors of callers that faults explain.
    pub failures: BTreeMap<String, usize>,
    /// Two holders at the same time of what only one may hold.
    pub overlaps: Vec<String>,
    /// More holders than a lock allows, around a fault by which the store forgets locks.
    pub forgotten: Vec<String>,
    /// All other violations.
    pub violations: Vec<String>,
}

impl Judgement {
    pub(super) fn of(
        logs: &[PathBuf],
        left: Vec<String>,
        faults: BTreeMap<&'static str, usize>,
        forgetful: &[Range<Duration>],
    ) -> Self {
        let mut history = History { left, ..History::default() };
        let mut surprises = Vec::new();
        let (mut losses, mut releases, mut failures) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for log in logs {
            let said = log::read(log);
            history.acquisitions.extend(said.acquisitions);
            count(&mut losses, said.lost);
            count(&mut releases, said.released);
            count(&mut failures, said.failed);
            surprises.extend(said.surprises.into_iter().map(Violation::Surprise));
        }
        let explained = |violation: &Violation| {
            let at = entrant(violation).map(|entrant| entrant.returned);
            at.is_some_and(|at| forgetful.iter().any(|fault| fault.contains(&at)))
        };
        let all = check(&history).into_iter().chain(surprises);
        let (forgotten, others): (Vec<_>, Vec<_>) = all.partition(explained);
        let (overlaps, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|violation| matches!(violation, Violation::Overlap(_)));
        let text = |all: Vec<Violation>| all.iter().map(Violation::to_string).collect();
        Self {
            grants: history.acquisitions.len(),
            faults,
            losses,
            releases,
            failures,
            overlaps: text(overlaps),
            forgotten: text(forgotten),
            violations: text(others),
        }
    }

    /// Whether there was no violation.
    pub fn is_clean(&self) -> bool {
        self.grants > 0 && self.overlaps.is_empty() && self.violations.is_empty()
    }
}

/// The second holder of an overlap, if that is the violation.
fn entrant(violation: &Violation) -> Option<&Acquisition> {
    match violation {
        Violation::Overlap(pair) | Violation::SharedSlot(pair) => Some(&pair[1]),
        Violation::TooManyPermits { last, .. } => Some(last),
        _ => None,
    }
}

fn count(counts: &mut BTreeMap<String, usize>, texts: Vec<String>) {
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: usize = self.faults.values().sum();
        writeln!(f, "{} grants under {faults} faults {:?}", self.grants, self.faults)?;
        writeln!(f, "losses {:?}, releases {:?}", self.losses, self.releases)?;
        let failed: usize = self.failures.values().sum();
        writeln!(f, "{failed} failures, for instance:")?;
        for (text, n) in self.failures.iter().take(SHOWN) {
            writeln!(f, "  {n} × {text}")?;
        }
        for (name, all) in [
            ("overlaps", &self.overlaps),
            ("overlaps where the store forgets locks", &self.forgotten),
            ("violations", &self.violations),
        ] {
            writeln!(f, "{} {name}", all.len())?;
            for text in all.iter().take(SHOWN) {
                writeln!(f, "  {text}")?;
            }
        }
        Ok(())
    }
}
