//! Rows of claims, combined into a snapshot of each lock.

use std::time::{Duration, SystemTime};

use super::mode;
use crate::engine::{Entry, Fence, Snapshot};
use crate::key::Key;

/// One claim, as it is stored.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) kind: String,
    pub(crate) take: i64,
    pub(crate) permits: i64,
    pub(crate) fence: Option<i64>,
    pub(crate) slots: Vec<u32>,
    /// For how many microseconds it has held or waited, by the server's clock.
    pub(crate) age: i64,
    /// Microseconds from now.
    pub(crate) left: i64,
    pub(crate) who: String,
    pub(crate) note: Option<String>,
    /// The highest fence of the key.
    pub(crate) last: Option<i64>,
}

impl Row {
    pub(crate) fn entry(self) -> Entry {
        let mode = mode(&self.kind, self.take, self.permits);
        Entry {
            note: self.note,
            since: since(self.age),
            left: self.fence.map(|_| micros(self.left)),
            fence: self.fence.map(fence),
            slots: self.slots,
            ..Entry::new(self.owner, mode).by(&self.who)
        }
    }
}

/// One snapshot per key. The rows are ordered by key, and by place in the queue within each.
pub(crate) fn snapshots(rows: impl IntoIterator<Item = Row>) -> Vec<Snapshot> {
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for row in rows {
        if snapshots.last().is_none_or(|last| last.key.as_str() != row.key) {
            // A name that is no key was not written by this library.
            let Ok(key) = Key::new(&row.key) else { continue };
            let fence = row.last.map(fence);
            snapshots.push(Snapshot { waiters: Some(Vec::new()), fence, ..Snapshot::new(key) });
        }
        let Some(snapshot) = snapshots.last_mut() else { continue };
        if row.fence.is_some() {
            snapshot.holders.push(row.entry());
        } else {
            snapshot.waiters.get_or_insert_default().push(row.entry());
        }
    }
    snapshots
}

/// A fence that a column holds.
pub(crate) fn fence(number: i64) -> Fence {
    Fence::new(u64::try_from(number).unwrap_or(0))
}

/// When something began that is this many microseconds old by the server's clock: by our own clock,
/// since it is compared with that.
pub(crate) fn since(age: i64) -> Option<SystemTime> {
    SystemTime::now().checked_sub(micros(age))
}

fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}
