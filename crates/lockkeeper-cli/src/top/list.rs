//! Which locks are shown, and in which order.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use super::keys::{Mode, Name, View};
use crate::output::human;
use crate::ui::collect::State;
use crate::ui::history::{Record, Span};
use crate::ui::model::{Lock, Party};
use crate::ui::rows::{Row, Strip};

/// Everything that one frame shows.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) strip: Strip,
    /// The engines that do not answer, and why.
    pub(super) silent: Vec<String>,
    pub(super) items: Vec<Item>,
    /// How many there are without the filter.
    pub(super) all: usize,
    /// Whether it has to be said which engine a lock is on.
    pub(super) several_engines: bool,
    /// The last holders of the lock whose details are shown, newest first.
    pub(super) past: Vec<Span>,
}

/// How many of the last holders are shown.
const MOST_PAST: usize = 10;

/// A lock, with all its holders and known waiters.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) row: Row,
    pub(super) lock: Lock,
    /// The deadlocks it is part of: who waits for what, in a circle.
    pub(super) deadlocks: Vec<String>,
}

/// The sort order of the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sort {
    #[default]
    Trouble,
    Key,
    Age,
    Waiters,
}

impl Sort {
    pub(super) fn next(self) -> Self {
        match self {
            Sort::Trouble => Sort::Key,
            Sort::Key => Sort::Age,
            Sort::Age => Sort::Waiters,
            Sort::Waiters => Sort::Trouble,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Trouble => "trouble",
            Sort::Key => "key",
            Sort::Age => "age",
            Sort::Waiters => "waiters",
        }
    }
}

impl Item {
    /// What identifies it on the screen.
    pub(super) fn name(&self) -> Name {
        (self.lock.engine.to_string(), self.lock.key.clone())
    }

    /// How long its first holder has held it.
    fn age(&self, now: SystemTime) -> Option<Duration> {
        self.first().map(|holder| age(holder, now))
    }

    /// The holder that has held it for the longest.
    pub(super) fn first(&self) -> Option<&Party> {
        self.lock.holders.iter().min_by_key(|holder| holder.began())
    }

    fn matches(&self, filter: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(filter);
        let party = |party: &Party| {
            let texts = [&party.who, &party.command, &party.note];
            texts.into_iter().flatten().any(|text| has(text))
        };
        has(&self.lock.key)
            || has(&self.lock.engine)
            || self.lock.holders.iter().chain(self.lock.waiting()).any(party)
    }
}

/// How long a holder has held or a waiter has waited, in words. Without a beginning in the store, it
/// is at least as long as it has been seen.
pub(super) fn age_in_words(party: &Party, now: SystemTime) -> String {
    let over = if party.since.is_none() { ">" } else { "" };
    format!("{over}{}", human(age(party, now)))
}

/// How long it is known to have held or waited.
fn age(party: &Party, now: SystemTime) -> Duration {
    now.duration_since(party.began()).unwrap_or_default()
}

pub(super) fn list(state: &State, view: &View, now: SystemTime) -> Shown {
    let filter = view.filter.to_lowercase();
    let rows = state.rows().zip(state.locks());
    let mut items: Vec<_> = rows
        .map(|(row, lock)| {
            let deadlocks = state.blocking.deadlocks_of(&lock.engine, &lock.key);
            let deadlocks = deadlocks.map(ToString::to_string).collect();
            Item { row, lock: lock.clone(), deadlocks }
        })
        .collect();
    let all = items.len();
    items.retain(|item| item.matches(&filter));
    // Sorted by key first, with a stable sort, so that equals do not jump.
    items.sort_by_cached_key(Item::name);
    items.sort_by_key(|item| item.lock.key.clone());
    match view.sort {
        Sort::Key => {}
        Sort::Age => items.sort_by_key(|item| Reverse(item.age(now))),
        Sort::Waiters => items.sort_by_key(|item| Reverse(item.lock.waiting().len())),
        Sort::Trouble => items.sort_by_key(|item| {
            let rank = item.row.trouble.map_or(u8::MAX, |trouble| trouble as u8);
            (rank, Reverse(item.lock.waiting().len()))
        }),
    }
    let silent = state.engines.iter().filter_map(|engine| {
        let error = engine.error.as_ref()?;
        let named = error.contains(&*engine.name);
        Some(if named { error.clone() } else { format!("{}: {error}", engine.name) })
    });
    let several_engines = state.engines.len() > 1;
    let silent = silent.collect();
    let past = match (&view.mode, &view.chosen) {
        (Mode::Detail, Some(lock)) => last_holders(state, lock),
        _ => Vec::new(),
    };
    Shown { strip: state.strip(now), silent, items, all, several_engines, past }
}

fn last_holders(state: &State, (engine, key): &Name) -> Vec<Span> {
    let ours = |record: &&Record| record.engine() == engine && record.key() == key;
    let holds = state.history.records().map(|record| &**record).filter(ours);
    let spans = holds.filter_map(|record| match record {
        Record::Hold(span) => Some(span.clone()),
        _ => None,
    });
    spans.take(MOST_PAST).collect()
}
