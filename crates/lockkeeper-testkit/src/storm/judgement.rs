//! The result of a storm.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::margins::margins;
use super::order::{Waits, overtaken};
use super::{Storm, Struck, log};
use crate::history::{Acquisition, History, Violation, check};
use crate::holder::Holder;

/// How many messages of each sort are printed.
const SHOWN: usize = 5;

/// What a process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// The number of its open files.
    pub files: usize,
    /// Its resident memory, in bytes.
    pub memory: usize,
}

impl Footprint {
    pub(super) fn of(holder: &Holder) -> Self {
        Self { files: holder.resources().1, memory: holder.memory() }
    }

    /// Whether a process that used `self` before uses so much more now that it must leak. What it
    /// keeps for later, such as connections, is bounded.
    fn leaks(&self, now: &Self, tasks: usize) -> bool {
        const ROOM: usize = 64 << 20;
        now.files > 2 * self.files + 2 * tasks || now.memory > 2 * self.memory + ROOM
    }
}

/// The result of a storm.
#[derive(Debug)]
pub struct Judgement {
    /// What happened, in the order of the processes. Times are those of the monotonic clock.
    pub history: History,
    /// For every acquisition, the number of its process.
    pub clients: Vec<usize>,
    /// The faults.
    pub faults: Vec<Struck>,
    /// When the resource refused an access, and by which acquisition.
    pub refused: Vec<(Duration, usize)>,
    /// How many updates of the unfenced twin were lost.
    pub unfenced_losses: usize,
    /// How many writes the twin accepted.
    pub unfenced_writes: usize,
    /// How often holders lost a lock, by reason.
    pub losses: BTreeMap<String, usize>,
    /// How long before the next grant each loss by the clock was signalled, sorted; except around a fault
    /// by which the store forgets locks.
    pub margins: Vec<Duration>,
    /// How long after the last fault every process had a lock again; `None` if one never had.
    pub recovery: Option<Duration>,
    /// What every process that was never killed used before the storm, and after it.
    pub footprints: Vec<[Footprint; 2]>,
    /// The outcomes of releases.
    pub releases: BTreeMap<String, usize>,
    /// The errors of callers that faults explain.
    pub failures: BTreeMap<String, usize>,
    /// Two holders at the same time of what only one may hold, or a signal after the next grant.
    pub overlaps: Vec<Violation>,
    /// More holders than a lock allows, around a fault by which the store forgets locks.
    pub forgotten: Vec<Violation>,
    /// All other violations.
    pub violations: Vec<Violation>,
}

impl Judgement {
    pub(super) fn of(storm: Storm, left: Vec<String>, footprints: Vec<[Footprint; 2]>) -> Self {
        let [accesses, twin] = storm.resource.take_logs();
        let mut history = History { left, accesses, ..History::default() };
        let mut surprises: Vec<_> = storm.surprises;
        let (mut losses, mut releases, mut failures) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut clients, mut refused, mut expired) = (Vec::new(), Vec::new(), Vec::new());
        let (mut processes, mut gave_up) = (Vec::new(), Vec::new());
        for (n, log) in &storm.logs {
            let said = log::read(log);
            let before = history.acquisitions.len();
            clients.extend(said.acquisitions.iter().map(|_| *n));
            refused.extend(said.refused.into_iter().map(|(at, by)| (at, before + by)));
            expired.extend(said.expired.into_iter().map(|at| before + at));
            history.acquisitions.extend(said.acquisitions);
            processes.push((*n, before..history.acquisitions.len()));
            gave_up.push(said.gave_up);
            count(&mut losses, said.lost);
            count(&mut releases, said.released);
            count(&mut failures, said.failed);
            surprises.extend(said.surprises);
        }
        for [before, now] in &footprints {
            if before.leaks(now, storm.plan.tasks) {
                surprises.push(format!("a process grew from {before:?} to {now:?}"));
            }
        }
        let forgetful: Vec<_> = storm
            .faults
            .iter()
            .filter(|fault| fault.forgets)
            .map(|fault| fault.time.start..fault.time.end + storm.plan.ttl)
            .collect();
        let forgets_at = |at: Duration| forgetful.iter().any(|fault| fault.contains(&at));
        let explained = |violation: &Violation| {
            entrant(violation).is_some_and(|entrant| forgets_at(entrant.returned))
        };
        let (all_margins, late) = margins(&history.acquisitions, &expired);
        let mut margins: Vec<_> = all_margins
            .into_iter()
            .filter(|(_, granted)| !forgets_at(*granted))
            .map(|(margin, _)| margin)
            .collect();
        margins.sort();
        let overtaken = match storm.plan.is_fifo {
            true => {
                let waits = |((client, grants), gave_up)| Waits {
                    client,
                    grants: &history.acquisitions[grants],
                    gave_up,
                };
                let waits: Vec<_> = processes
                    .into_iter()
                    .zip(gave_up.iter().map(Vec::as_slice))
                    .map(waits)
                    .collect();
                let (ttl, hosts) = (storm.plan.ttl, storm.hosts);
                overtaken(&waits, &storm.plan.prefix, ttl, &storm.faults, hosts)
            }
            false => Vec::new(),
        };
        let surprises = surprises.into_iter().map(Violation::Surprise);
        let all = check(&history).into_iter().chain(late).chain(overtaken).chain(surprises);
        let (forgotten, others): (Vec<_>, Vec<_>) = all.partition(explained);
        let is_overlap = |violation: &Violation| {
            use Violation::{LateSignal, Overlap, ThinMargin};
            matches!(violation, Overlap(_) | LateSignal(_) | ThinMargin { .. })
        };
        let (overlaps, violations) = others.into_iter().partition(is_overlap);
        let unfenced_writes = twin.iter().filter(|access| access.write.is_some()).count();
        let twin = check(&History { accesses: twin, ..History::default() });
        let is_lost = |violation: &&Violation| matches!(violation, Violation::LostUpdate { .. });
        Self {
            clients,
            faults: storm.faults,
            refused,
            unfenced_losses: twin.iter().filter(is_lost).count(),
            unfenced_writes,
            losses,
            margins,
            recovery: storm.recovery,
            footprints,
            releases,
            failures,
            overlaps,
            forgotten,
            violations,
            history,
        }
    }

    /// How many grants there were.
    pub fn grants(&self) -> usize {
        self.history.acquisitions.len()
    }

    /// Whether there was no violation.
    pub fn is_clean(&self) -> bool {
        self.grants() > 0 && self.overlaps.is_empty() && self.violations.is_empty()
    }
}

/// The second holder of an overlap, if that is the violation.
fn entrant(violation: &Violation) -> Option<&Acquisition> {
    match violation {
        Violation::Overlap(pair)
        | Violation::SharedSlot(pair)
        | Violation::LateSignal(pair)
        | Violation::ThinMargin { pair, .. } => Some(&pair[1]),
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
        let mut faults = BTreeMap::new();
        count(&mut faults, self.faults.iter().map(|fault| fault.name.to_owned()).collect());
        writeln!(f, "{} grants under {} faults {faults:?}", self.grants(), self.faults.len())?;
        writeln!(f, "losses {:?}, releases {:?}", self.losses, self.releases)?;
        writeln!(
            f,
            "{} accesses refused; {} of {} updates lost without fences",
            self.refused.len(),
            self.unfenced_losses,
            self.unfenced_writes
        )?;
        if let [first, ..] = self.margins[..] {
            writeln!(f, "{} losses signalled at least {first:?} early", self.margins.len())?;
        }
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
