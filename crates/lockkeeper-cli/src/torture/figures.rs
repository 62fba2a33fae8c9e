//! The result of a run: figures for each engine, as text and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_testkit::storm::Judgement;
use serde::Serialize;

use super::report::Timeline;
use super::window::Window;
use crate::table::Table;

/// The result of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) commit: Option<&'static str>,
    /// For each engine, one for all faults, or one for each of them.
    pub(super) rows: Vec<Figures>,
}

/// The result for one engine and some faults.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) engine: String,
    /// A fault that was caused alone, several with commas between them, or `all`.
    pub(super) fault: String,
    pub(super) url: String,
    pub(super) seed: u64,
    /// The command that repeats it.
    pub(super) repeat: String,
    pub(super) seconds: f64,
    pub(super) rounds: usize,
    /// Locks that were granted.
    pub(super) cycles: usize,
    pub(super) faults: usize,
    pub(super) faults_by_name: BTreeMap<String, usize>,
    /// How often a holder lost a lock, by reason.
    pub(super) losses: BTreeMap<String, usize>,
    /// Accesses that the resource refused by their fence.
    pub(super) refused: usize,
    /// Updates that were lost at the twin of the resource, which does not check fences.
    pub(super) unfenced_losses: usize,
    pub(super) unfenced_writes: usize,
    /// Two holders at once where the engine is documented to allow that.
    pub(super) overlaps: usize,
    pub(super) violations: usize,
    /// Losses by the clock that were signalled before the next grant, and by how much.
    pub(super) signalled: usize,
    pub(super) worst_margin_ms: Option<u64>,
    pub(super) median_margin_ms: Option<u64>,
    /// The longest time after the last fault of a round until every client had a lock again.
    pub(super) recovery_ms: Option<u64>,
    /// The most open files and the most memory of a client.
    pub(super) files: usize,
    pub(super) memory: usize,
    /// The smallest part of the history that shows each violation.
    pub(super) windows: Vec<Window>,
    /// The last round, for a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeline: Option<Timeline>,
    #[serde(skip)]
    margins: Vec<Duration>,
}

impl Figures {
    pub(super) fn new(engine: &str, fault: &str, url: &str, seed: u64) -> Self {
        Self {
            engine: engine.to_owned(),
            fault: fault.to_owned(),
            url: url.to_owned(),
            seed,
            repeat: String::new(),
            seconds: 0.0,
            rounds: 0,
            cycles: 0,
            faults: 0,
            faults_by_name: BTreeMap::new(),
            losses: BTreeMap::new(),
            refused: 0,
            unfenced_losses: 0,
            unfenced_writes: 0,
            overlaps: 0,
            violations: 0,
            signalled: 0,
            worst_margin_ms: None,
            median_margin_ms: None,
            recovery_ms: None,
            files: 0,
            memory: 0,
            windows: Vec::new(),
            timeline: None,
            margins: Vec::new(),
        }
    }

    /// Adds a round. With `may_overlap`, the engine is documented to allow overlaps.
    pub(super) fn add(&mut self, judgement: &Judgement, may_overlap: bool) {
        self.rounds += 1;
        self.cycles += judgement.grants();
        self.faults += judgement.faults.len();
        for fault in &judgement.faults {
            *self.faults_by_name.entry(fault.name.to_owned()).or_default() += 1;
        }
        for (why, n) in &judgement.losses {
            *self.losses.entry(why.clone()).or_default() += n;
        }
        self.refused += judgement.refused.len();
        self.unfenced_losses += judgement.unfenced_losses;
        self.unfenced_writes += judgement.unfenced_writes;
        self.overlaps += judgement.forgotten.len();
        self.violations += judgement.violations.len();
        match may_overlap {
            true => self.overlaps += judgement.overlaps.len(),
            false => self.violations += judgement.overlaps.len(),
        }
        self.margins.extend(&judgement.margins);
        self.margins.sort();
        self.signalled = self.margins.len();
        let millis = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.worst_margin_ms = self.margins.first().map(millis);
        self.median_margin_ms = self.margins.get(self.margins.len() / 2).map(millis);
        self.recovery_ms = self.recovery_ms.max(judgement.recovery.as_ref().map(millis));
        for footprint in judgement.footprints.iter().flatten() {
            self.files = self.files.max(footprint.files);
            self.memory = self.memory.max(footprint.memory);
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.violations == 0
    }

    /// Below which the chance is that a fault causes a violation, in percent, at a confidence of 95 %.
    fn bound(&self) -> Option<f64> {
        (self.is_clean() && self.faults > 0).then(|| (300.0 / self.faults as f64).min(100.0))
    }
}

/// What is shown of the rounds so far.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) cycles: usize,
    pub(super) faults: usize,
    pub(super) overlaps: usize,
    pub(super) violations: usize,
    pub(super) worst_margin_ms: Option<u64>,
}

impl Sums {
    pub(super) fn of<'a>(rows: impl Iterator<Item = &'a Figures>) -> Self {
        let mut sums = Self::default();
        for row in rows {
            sums.cycles += row.cycles;
            sums.faults += row.faults;
            sums.overlaps += row.overlaps;
            sums.violations += row.violations;
            sums.worst_margin_ms =
                sums.worst_margin_ms.into_iter().chain(row.worst_margin_ms).min();
        }
        sums
    }
}

impl Report {
    pub(super) fn new(rows: Vec<Figures>) -> Self {
        let commit = option_env!("LOCKKEEPER_COMMIT");
        Self { version: env!("CARGO_PKG_VERSION"), commit, rows }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.rows.iter().all(Figures::is_clean)
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain fields serialize") + "\n"
    }

    pub(super) fn to_text(&self) -> String {
        let mut table = Table::new([
            "ENGINE",
            "FAULT",
            "CYCLES",
            "FAULTS",
            "LOST UNFENCED",
            "REFUSED",
            "OVERLAPS",
            "VIOLATIONS",
            "WORST MARGIN",
            "MEDIAN",
            "RECOVERY",
            "BOUND",
        ]);
        let ms = |ms: Option<u64>| ms.map_or_else(String::new, |ms| format!("{ms} ms"));
        for row in &self.rows {
            table.row([
                row.engine.clone(),
                row.fault.clone(),
                row.cycles.to_string(),
                row.faults.to_string(),
                row.unfenced_losses.to_string(),
                row.refused.to_string(),
                row.overlaps.to_string(),
                row.violations.to_string(),
                ms(row.worst_margin_ms),
                ms(row.median_margin_ms),
                ms(row.recovery_ms),
                row.bound().map_or_else(String::new, |bound| format!("< {bound:.2} %")),
            ]);
        }
        let mut text = table.to_string();
        for row in &self.rows {
            for window in &row.windows {
                text += &format!("\n{}: {window}", row.engine);
            }
            if !row.is_clean() {
                text += &format!("\nrepeat with: {}\n", row.repeat);
            }
        }
        text
    }
}
