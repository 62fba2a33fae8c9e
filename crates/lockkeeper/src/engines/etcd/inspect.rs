//! Holders and waiters, and what an operator can do about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::Shared;
use super::client::{Client, Compare, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest};
use super::cluster::PATIENCE;
use super::error::NAME;
use super::layout::{QueueEntry, Range, Record, Slot, fence, queue_of};
use crate::core::admission::Turn;
use crate::engine::{Entry, Mode, Query, Snapshot, YieldRequest};
use crate::engines::queued;
use crate::error::{Error, Result};
use crate::key::Key;

/// How many keys are read at once.
const PAGE: i64 = 1000;

/// How many leases are queried at once.
const AT_ONCE: usize = 64;

/// How often a change is retried if another client was faster.
pub(super) const TRIES: usize = 5;

pub(super) async fn inspect(shared: &Arc<Shared>, query: &Query) -> Result<Vec<Snapshot>> {
    let mut queues: BTreeMap<Key, Vec<QueueEntry>> = BTreeMap::new();
    let range = match query {
        Query::Key(key) => shared.names.queue(key),
        Query::Prefix(prefix) => shared.names.starting_with(prefix),
    };
    for stored in read_range(shared, range).await? {
        if let Some(key) = shared.names.lock_of(&stored).filter(|key| query.matches(key.as_str())) {
            queues.entry(key).or_default().push(QueueEntry::read(&stored));
        }
    }
    let mut seen = Vec::with_capacity(queues.len());
    for (key, mut queue) in queues {
        queue.sort_by_key(|entry| entry.created);
        let snapshot = snapshot(shared, key, &queue).await?;
        if !snapshot.holders.is_empty() || snapshot.waiters.as_ref().is_some_and(|w| !w.is_empty())
        {
            seen.push((snapshot, queue));
        }
    }
    // Holders are ahead of waiters.
    let held = seen.iter().flat_map(|(snapshot, queue)| &queue[..snapshot.holders.len()]);
    let left = left(shared, held.map(|entry| entry.lease).collect()).await?;
    for (snapshot, queue) in &mut seen {
        for (holder, entry) in snapshot.holders.iter_mut().zip(queue) {
            holder.left = left.get(&entry.lease).copied();
        }
    }
    Ok(seen.into_iter().map(|(snapshot, _)| snapshot).collect())
}

/// Marks the entries of all holders, which they watch. Other clients do not, and cannot be asked.
pub(super) async fn request_yield(
    shared: &Shared,
    key: &Key,
    request: &YieldRequest,
) -> Result<Vec<Entry>> {
    let mut asked = Vec::new();
    for _ in 0..TRIES {
        let queue = read_queue(shared, key).await?;
        let holders = snapshot(shared, key.clone(), &queue).await?.holders;
        // Other clients do not identify themselves.
        if !holders.is_empty() && holders.iter().all(|holder| holder.who.is_none()) {
            return Err(Error::Unsupported {
                engine: NAME,
                what: "the holder is a client of etcd's own, which does not listen to requests to give way; break the lock instead"
                    .to_owned(),
            });
        }
        asked.clear();
        let mut all = true;
        for (holder, entry) in holders.into_iter().zip(queue) {
            if holder.who.is_some() {
                match mark(shared, entry, request).await? {
                    true => asked.push(holder),
                    false => all = false,
                }
            }
        }
        if all {
            break;
        }
    }
    Ok(asked)
}

/// Records that a holder is asked to release the lock. False if its entry changed meanwhile.
async fn mark(shared: &Shared, entry: QueueEntry, asked: &YieldRequest) -> Result<bool> {
    let Some(record) = entry.record else { return Ok(false) };
    if record.asked.is_some() {
        return Ok(true);
    }
    let same = Compare::changed(entry.name.clone(), entry.changed);
    let record = Record { asked: Some(asked.clone()), ..record };
    // The entry keeps its lease and its create revision.
    let put = PutRequest::new(entry.name, record.text());
    let put = RequestOp::put(PutRequest { ignore_lease: true, ..put });
    let txn = TxnRequest::when([same], vec![put]);
    Ok(shared.txn("ask a holder to give way", txn, &mut false).await?.succeeded)
}

pub(super) async fn read_queue(shared: &Shared, key: &Key) -> Result<Vec<QueueEntry>> {
    let stored = read_range(shared, shared.names.queue(key)).await?;
    Ok(queue_of(&shared.names, key, &stored))
}

/// Everything in a range, as of one revision.
async fn read_range(shared: &Shared, (mut start, end): Range) -> Result<Vec<KeyValue>> {
    let mut all = Vec::new();
    let mut revision = 0;
    loop {
        let range = RangeRequest::range((start, end.clone()));
        let page = RangeRequest { limit: PAGE, revision, ..range };
        let page = shared.get("list locks", page).await?;
        revision = page.header.map_or(0, |header| header.revision);
        all.extend(page.kvs);
        match all.last() {
            Some(last) if page.more => start = [last.key.as_slice(), b"\0"].concat(),
            _ => return Ok(all),
        }
    }
}

/// Sorts a queue into holders and waiters. All holders are ahead of all waiters.
pub(super) async fn snapshot(shared: &Shared, key: Key, queue: &[QueueEntry]) -> Result<Snapshot> {
    let mode = queue.first().map_or(Mode::Mutex, QueueEntry::mode);
    let beside = match mode {
        Mode::Mutex => Vec::new(),
        Mode::Read | Mode::Write => {
            let written = RangeRequest::key(shared.names.written(&key));
            shared.get("look at a lock", written).await?.kvs
        }
        Mode::Permits { .. } => read_range(shared, shared.names.slots(&key)).await?,
    };
    let mut holders = Vec::new();
    let mut waiters = Vec::new();
    for (at, queued) in queue.iter().enumerate() {
        // Something that is not a lock blocks the entries behind it, and is not shown.
        let Some(mut entry) = entry(queued) else { continue };
        let turn = || queued::turn(queue.iter().map(QueueEntry::mode), at);
        if holders.len() == at && turn() == Turn::In {
            add_grant(&mut entry, queued, &beside);
            holders.push(entry);
        } else {
            waiters.push(entry);
        }
    }
    let fence = holders.iter().filter_map(|holder| holder.fence).max();
    Ok(Snapshot { holders, waiters: Some(waiters), fence, ..Snapshot::new(key) })
}

fn entry(queued: &QueueEntry) -> Option<Entry> {
    let record = queued.record.as_ref()?;
    let entry = Entry {
        note: record.note.clone(),
        since: record.since,
        ..Entry::new(format!("{:x}", queued.lease), record.mode)
    };
    Some(match &record.who {
        Some(who) => entry.by(who),
        None => entry,
    })
}

/// Adds what only holders have.
fn add_grant(entry: &mut Entry, queued: &QueueEntry, beside: &[KeyValue]) {
    match entry.mode {
        Mode::Mutex => entry.fence = Some(fence(queued.created)),
        Mode::Read | Mode::Write => {
            entry.fence = Some(fence(beside.first().map_or(0, |kv| kv.mod_revision)));
        }
        Mode::Permits { .. } => {
            let slots = beside.iter().filter_map(Slot::read);
            for slot in slots.filter(|slot| slot.lease == queued.lease) {
                entry.fence = Some(fence(slot.created));
                entry.slots.push(slot.number);
            }
            entry.slots.sort_unstable();
        }
    }
}

/// What is left of each lease. Each needs one request, so many are sent at once.
async fn left(shared: &Arc<Shared>, leases: BTreeSet<i64>) -> Result<BTreeMap<i64, Duration>> {
    let mut leases = leases.into_iter();
    let mut asked = JoinSet::new();
    let mut left = BTreeMap::new();
    loop {
        while asked.len() < AT_ONCE
            && let Some(lease) = leases.next()
        {
            let shared = shared.clone();
            asked.spawn(async move { (lease, time_to_live(&shared, lease).await) });
        }
        match asked.join_next().await {
            Some(Ok((lease, time))) => {
                time?.map(|time| left.insert(lease, time));
            }
            // The runtime is shutting down, and nothing waits for the answer.
            Some(Err(_)) => {}
            None => return Ok(left),
        }
    }
}

async fn time_to_live(shared: &Shared, lease: i64) -> Result<Option<Duration>> {
    let look = |client: Client| client.time_to_live(lease);
    let left = shared.cluster.ask("look at a lease", PATIENCE, look).await?;
    Ok(u64::try_from(left.ttl).ok().map(Duration::from_secs))
}
