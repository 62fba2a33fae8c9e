//! Holders and waiters, breaking a lock, and asking for it.

use std::path::Path;

use super::record::{Record, State};
use super::{Shared, broken, failed, is_foreign, or_conflict};
use crate::engine::{Breaker, Entry, Query, Snapshot, YieldRequest};
use crate::error::Result;
use crate::key::Key;

pub(super) fn inspect(shared: &Shared, query: &Query) -> Result<Vec<Snapshot>> {
    let paths = match query {
        Query::Key(key) => vec![shared.directory.file_of(key)],
        Query::Prefix(_) => {
            shared.directory.files().map_err(|error| failed("list locks", error))?
        }
    };
    let mut snapshots = Vec::new();
    for path in paths {
        let snapshot = match (look(shared, &path), query) {
            (Err(error), Query::Prefix(_)) if is_foreign(&error) => continue,
            (Err(error), Query::Key(key)) => return Err(or_conflict(key, error)),
            (seen, _) => seen?,
        };
        snapshots.extend(snapshot.filter(|snapshot| query.matches(snapshot.key.as_str())));
    }
    snapshots.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(snapshots)
}

fn look(shared: &Shared, path: &Path) -> Result<Option<Snapshot>> {
    let Some((opened, file)) = shared.read_path(path)? else { return Ok(None) };
    let mut holders = Vec::new();
    let mut waiters = Vec::new();
    for (_, record) in opened.living(&file, None)? {
        match record.state {
            State::Granted => holders.push(entry(&record)),
            State::Waiting => waiters.push(entry(&record)),
            State::Broken => {}
        }
    }
    if holders.is_empty() && waiters.is_empty() {
        return Ok(None);
    }
    let fence = Some(file.fence);
    Ok(Some(Snapshot { holders, waiters: Some(waiters), fence, ..Snapshot::new(file.key) }))
}

/// Marks every grant of the key as broken.
pub(super) async fn break_lock(shared: &Shared, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
    let seen = look(shared, &shared.directory.file_of(key))?;
    let holders = seen.map(|seen| seen.holders).unwrap_or_default();
    // First of all: a holder may look at any time.
    let line = (!holders.is_empty()).then(|| by.breaks(key, &holders).line());
    if let Some(line) = &line
        && let Err(error) = broken::add(&shared.directory, line).await
    {
        tracing::warn!(%error, %key, "a broken lock could not be recorded");
    }
    let marked = mark_grants(shared, key, |record| record.state = State::Broken).await?;
    if let Some(line) = line.filter(|_| marked.is_empty()) {
        broken::remove(&shared.directory, &line)
            .await
            .map_err(|error| failed("list a broken lock", error))?;
    }
    Ok(marked)
}

/// Records in every grant of the key that its holder is asked to release it, which the holder polls
/// for.
pub(super) async fn request_yield(
    shared: &Shared,
    key: &Key,
    asked: &YieldRequest,
) -> Result<Vec<Entry>> {
    mark_grants(shared, key, |record| record.asked = Some(asked.clone())).await
}

/// Changes the records of all holders of a key, and returns them.
async fn mark_grants(
    shared: &Shared,
    key: &Key,
    mark: impl Fn(&mut Record) + Send + Sync,
) -> Result<Vec<Entry>> {
    let path = shared.directory.file_of(key);
    loop {
        let Some((opened, _)) = shared.read_path(&path)? else { return Ok(Vec::new()) };
        let Some(epoch) = opened.decide(&path, key, None).await? else { continue };
        // Read again, now that no other process decides. Closing the file unlocks the byte.
        let Some(file) = opened.read(epoch, Some(key))? else { return Ok(Vec::new()) };
        let mut holders = Vec::new();
        for (at, mut record) in opened.living(&file, None)? {
            if record.state == State::Granted {
                holders.push(entry(&record));
                mark(&mut record);
                opened.write(epoch, &file, at, &record)?;
            }
        }
        if opened.epoch()? == epoch {
            return Ok(holders);
        }
    }
}

fn entry(record: &Record) -> Entry {
    let granted = record.state != State::Waiting;
    Entry {
        note: record.note.clone(),
        since: Some(record.since),
        fence: granted.then_some(record.fence),
        slots: record.slots.clone(),
        ..Entry::new(record.identity(), record.mode).by(&record.who)
    }
}
