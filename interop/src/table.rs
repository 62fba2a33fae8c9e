//! The table that a run prints.

use std::fmt;

use crate::driver::Outcome;

/// One pair of clients.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) engine: &'static str,
    pub(crate) with: &'static str,
    cells: [Option<Outcome<String>>; 4],
}

/// What a pair is tested for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Property {
    Exclusion,
    Woken,
    Killed,
    Meaning,
}

const HEADS: [&str; 4] = [
    "exclusion",
    "woken by a release: ours / theirs waits",
    "succeeds a killed holder: ours / theirs",
    "means the same",
];

impl Row {
    pub(crate) fn new(engine: &'static str, with: &'static str) -> Self {
        Self { engine, with, cells: Default::default() }
    }

    /// Records a result, and prints it at once: a run takes minutes.
    pub(crate) fn note(&mut self, property: Property, outcome: Outcome<String>) {
        let mark = if outcome.is_ok() { "passed" } else { "FAILED" };
        let (Ok(text) | Err(text)) = &outcome;
        eprintln!("{mark}: {}, {}, {property:?}: {text}", self.engine, self.with);
        self.cells[property as usize] = Some(outcome);
    }

    pub(crate) fn passed(&self) -> bool {
        self.cells.iter().flatten().all(Result::is_ok)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| {} | {} |", self.engine, self.with)?;
        for cell in &self.cells {
            match cell {
                None => write!(f, " – |")?,
                Some(Ok(text)) => write!(f, " {text} |")?,
                Some(Err(text)) => write!(f, " **failed**: {} |", text.replace('|', "/"))?,
            }
        }
        Ok(())
    }
}

/// The head of the table.
pub(crate) fn head() -> String {
    format!("| engine | with | {} |\n|---|---|---|---|---|---|", HEADS.join(" | "))
}
