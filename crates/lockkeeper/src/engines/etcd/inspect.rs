//! Who holds and who waits, and taking a lock away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp};
use tokio::task::JoinSet;

use super::cluster::{NAME, PATIENCE};
use super::layout::Range;
use super::queue::{self, QueueEntry};
use super::record::Record;
use super::{Shared, nested};
use crate::core::admission::Turn;
use crate::engine::{Entry, Fence, Mode, Query, Snapshot};
use crate::error::{Error, Result};
use crate::key::Key;

/// How many keys are read at once.
const PAGE: i64 = 1000;

/// How many leases are asked about at once.
const AT_ONCE: usize = 64;

/// How often holders are looked for who are to be asked, when others come and go meanwhile.
const TRIES: usize = 5;

pub(super) async fn inspect(shared: &Arc<Shared>, query: &Query) -> Result<Vec<Snapshot>> {
    let mut lines: BTreeMap<Key, Vec<QueueEntry>> = BTreeMap::new();
    let range = match query {
        Query::Key(key) => shared.names.line(key),
        Query::Prefix(prefix) => shared.names.starting_with(prefix),
    };
    for stored in read_range(shared, range).await? {
        if let Some(key) = shared.names.lock_of(&stored).filter(|key| query.matches(key.as_str())) {
            lines.entry(key).or_default().push(QueueEntry::read(&stored));
        }
    }
    let mut seen = Vec::with_capacity(lines.len());
    for (key, mut line) in lines {
        line.sort_by_key(|seat| seat.number);
        let snapshot = snapshot(shared, key, &line).await?;
        if !snapshot.holders.is_empty() || snapshot.waiters.as_ref().is_some_and(|w| !w.is_empty())
        {
            seen.push((snapshot, line));
        }
    }
    // Those who hold are ahead of those who wait.
    let held = seen.iter().flat_map(|(snapshot, line)| &line[..snapshot.holders.len()]);
    let left = left(shared, held.map(|seat| seat.lease).collect()).await?;
    for (snapshot, line) in &mut seen {
        for (holder, seat) in snapshot.holders.iter_mut().zip(line) {
            holder.left = left.get(&seat.lease).copied();
        }
    }
    Ok(seen.into_iter().map(|(snapshot, _)| snapshot).collect())
}

/// Deletes the places of those who hold, if they are still the same ones.
pub(super) async fn break_lock(shared: &Shared, key: &Key) -> Result<Vec<Entry>> {
    let line =
        queue::line_of(&shared.names, key, &read_range(shared, shared.names.line(key)).await?);
    queue::refuse_data(key, &line)?;
    let snapshot = snapshot(shared, key.clone(), &line).await?;
    let mut broken = Vec::new();
    for (holder, seat) in snapshot.holders.into_iter().zip(line) {
        let same = Compare::create_revision(seat.name.clone(), CompareOp::Equal, seat.number);
        let slots = holder.slots.iter().map(|slot| shared.names.slot(key, *slot));
        let doomed = std::iter::once(seat.name).chain(slots);
        let delete = doomed.map(|name| TxnOp::delete(name, None)).collect();
        let txn = Txn::new().when([same]).and_then(nested(delete));
        if shared.txn("break a lock", txn, &mut false).await?.succeeded() {
            broken.push(holder);
        }
    }
    Ok(broken)
}

/// Marks the places of those who hold, for them to see. Those who do not listen cannot be asked.
pub(super) async fn request_yield(shared: &Shared, key: &Key) -> Result<Vec<Entry>> {
    let mut told = Vec::new();
    for _ in 0..TRIES {
        let line =
            queue::line_of(&shared.names, key, &read_range(shared, shared.names.line(key)).await?);
        let holders = snapshot(shared, key.clone(), &line).await?.holders;
        // Only we say who we are.
        if !holders.is_empty() && holders.iter().all(|holder| holder.who.is_none()) {
            return Err(Error::Unsupported {
                engine: NAME,
                what: "ask a client of etcd's own to give way (it does not listen); break the lock instead"
                    .to_owned(),
            });
        }
        told.clear();
        let mut all = true;
        for (holder, seat) in holders.into_iter().zip(line) {
            if holder.who.is_some() {
                match mark(shared, seat).await? {
                    true => told.push(holder),
                    false => all = false,
                }
            }
        }
        if all {
            break;
        }
    }
    Ok(told)
}

/// Notes that the one who stands here is asked to give way. False when the place changed meanwhile.
async fn mark(shared: &Shared, seat: QueueEntry) -> Result<bool> {
    let Some(record) = seat.record else { return Ok(false) };
    if record.asked {
        return Ok(true);
    }
    let same = Compare::mod_revision(seat.name.clone(), CompareOp::Equal, seat.changed);
    let record = Record { asked: true, ..record };
    // The place keeps its lease and its create revision.
    let put = TxnOp::put(seat.name, record.text(), Some(PutOptions::new().with_ignore_lease()));
    let txn = Txn::new().when([same]).and_then([put]);
    Ok(shared.txn("ask a holder to give way", txn, &mut false).await?.succeeded())
}

/// Everything in a range, as of one revision.
async fn read_range(shared: &Shared, (mut start, end): Range) -> Result<Vec<KeyValue>> {
    let mut all = Vec::new();
    let mut revision = 0;
    loop {
        let options =
            GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
        let mut page = shared.get("list locks", start, options).await?;
        revision = page.header().map_or(0, |header| header.revision());
        let more = page.more();
        all.extend(page.take_kvs());
        match all.last() {
            Some(last) if more => start = [last.key(), b"\0"].concat(),
            _ => return Ok(all),
        }
    }
}

/// Sorts a line into those who are in and those who wait. Those who are in are ahead of all who wait.
async fn snapshot(shared: &Shared, key: Key, line: &[QueueEntry]) -> Result<Snapshot> {
    let mode = line.first().map_or(Mode::Mutex, QueueEntry::mode);
    let beside = match mode {
        Mode::Mutex => Vec::new(),
        Mode::Read | Mode::Write => {
            let name = shared.names.written(&key);
            shared.get("look at a lock", name, GetOptions::new()).await?.take_kvs()
        }
        Mode::Permits { .. } => read_range(shared, shared.names.slots(&key)).await?,
    };
    let mut holders = Vec::new();
    let mut waiters = Vec::new();
    for (at, seat) in line.iter().enumerate() {
        // What is not a lock is in the way of those behind it, and nobody's business otherwise.
        let Some(mut entry) = entry(seat) else { continue };
        if holders.len() == at && queue::turn(line, at) == Turn::In {
            hold(&mut entry, seat, &beside);
            holders.push(entry);
        } else {
            waiters.push(entry);
        }
    }
    let fence = holders.iter().filter_map(|holder| holder.fence).max();
    Ok(Snapshot { key, holders, waiters: Some(waiters), fence })
}

fn entry(seat: &QueueEntry) -> Option<Entry> {
    let record = seat.record.as_ref()?;
    Some(Entry {
        identity: format!("{:x}", seat.lease),
        mode: record.mode,
        who: record.who.clone(),
        note: record.note.clone(),
        since: record.since,
        left: None,
        fence: None,
        slots: Vec::new(),
    })
}

/// What only those who are in have.
fn hold(entry: &mut Entry, seat: &QueueEntry, beside: &[KeyValue]) {
    let fence = |revision: i64| u64::try_from(revision).ok().map(Fence::new);
    match entry.mode {
        Mode::Mutex => entry.fence = fence(seat.number),
        Mode::Read | Mode::Write => {
            entry.fence = fence(beside.first().map_or(0, KeyValue::mod_revision));
        }
        Mode::Permits { .. } => {
            for slot in beside.iter().filter(|slot| slot.lease() == seat.lease) {
                entry.fence = fence(slot.create_revision());
                let number = slot.key_str().ok().and_then(|name| name.rsplit_once(':'));
                entry.slots.extend(number.and_then(|(_, number)| number.parse::<u32>().ok()));
            }
            entry.slots.sort_unstable();
        }
    }
}

/// What is left of each lease. There is one request for each, so many are asked at once.
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
            // The runtime is going down, and nobody waits for the answer.
            Some(Err(_)) => {}
            None => return Ok(left),
        }
    }
}

async fn time_to_live(shared: &Shared, lease: i64) -> Result<Option<Duration>> {
    let left = shared.cluster.ask("look at a lease", PATIENCE, |client| {
        let mut client = client.lease_client();
        async move { client.time_to_live(lease, None).await }
    });
    Ok(u64::try_from(left.await?.ttl()).ok().map(Duration::from_secs))
}
