//! A line as the store shows it: places in order of their create revisions.
//!
//! Being ahead *is* holding: nobody can get ahead of a place that exists, so "it is in" never becomes
//! untrue while that place is there. A stale read can therefore not let anybody in too early; all it
//! can hide is that the place itself is gone.

use etcd_client::KeyValue;

use super::layout::KeyNames;
use super::record::Record;
use crate::core::admission::{self, Queued, Turn};
use crate::engine::Mode;
use crate::error::{Error, Result};
use crate::key::Key;

/// One place in line.
#[derive(Debug, Clone)]
pub(super) struct QueueEntry {
    /// As it is stored.
    pub(super) name: Vec<u8>,
    pub(super) lease: i64,
    /// The create revision: unlike any other, and higher than those ahead.
    pub(super) number: i64,
    /// The revision of its last change.
    pub(super) changed: i64,
    /// `None` for a key that is named like a place, and holds something that no lock does.
    pub(super) record: Option<Record>,
}

impl QueueEntry {
    /// A stored key that is a place in the line of this lock, and not of one nested in it.
    pub(super) fn of(names: &KeyNames, key: &Key, stored: &KeyValue) -> Option<Self> {
        (names.lock_of(stored)? == *key).then(|| Self::read(stored))
    }

    pub(super) fn read(stored: &KeyValue) -> Self {
        Self {
            name: stored.key().to_vec(),
            lease: stored.lease(),
            number: stored.create_revision(),
            changed: stored.mod_revision(),
            record: Record::read(stored.value()),
        }
    }

    /// Whatever is not a lock lets nobody in beside it.
    pub(super) fn mode(&self) -> Mode {
        self.record.as_ref().map_or(Mode::Mutex, |record| record.mode)
    }

    /// Whether it may be in one line with a lock of this mode.
    pub(super) fn goes_with(&self, mode: Mode) -> bool {
        self.record.is_some() && mixes(mode, self.mode())
    }
}

/// Sorts the places of one lock into a line.
pub(super) fn line_of(names: &KeyNames, key: &Key, stored: &[KeyValue]) -> Vec<QueueEntry> {
    let mut line: Vec<_> = stored.iter().filter_map(|kv| QueueEntry::of(names, key, kv)).collect();
    line.sort_by_key(|seat| seat.number);
    line
}

/// Whose turn it is, by the one rule.
pub(super) fn turn(line: &[QueueEntry], at: usize) -> Turn {
    let places: Vec<_> = line
        .iter()
        .map(|seat| Queued { owner: seat.number, mode: seat.mode(), granted: false })
        .collect();
    admission::turn(&places, at)
}

/// Refuses a mode that does not go with the first one in line, and all of them beside other data.
pub(super) fn refuse_mix(key: &Key, mode: Mode, line: &[QueueEntry]) -> Result<()> {
    refuse_data(key, line)?;
    match line.first() {
        Some(first) if !first.goes_with(mode) => Err(Error::Conflict {
            key: key.clone(),
            found: format!("it is used as {}, and was asked for as {mode}", first.mode()),
        }),
        _ => Ok(()),
    }
}

/// Refuses a line in which there is something that is not a lock.
pub(super) fn refuse_data(key: &Key, line: &[QueueEntry]) -> Result<()> {
    match line.iter().find(|seat| seat.record.is_none()) {
        Some(seat) => Err(Error::Conflict {
            key: key.clone(),
            found: format!(
                "{:?} holds data that is not a lock",
                String::from_utf8_lossy(&seat.name)
            ),
        }),
        None => Ok(()),
    }
}

/// A mutex carries its own fence and readers carry the last writer's, so those two do not go together.
fn mixes(a: Mode, b: Mode) -> bool {
    admission::mixes(a, b) && (a == Mode::Mutex) == (b == Mode::Mutex)
}
