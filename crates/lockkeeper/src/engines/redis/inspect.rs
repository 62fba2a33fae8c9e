//! Holders and waiters.
//!
//! Locks are found by the data that we keep next to them, and among the hashes by their layout. A
//! string that only foreign clients used is shown if it is requested by its key: it may as well be
//! a cached value.
//!
//! Easy to get wrong: a key in a database need not be a lock. The scripts determine whether it
//! certainly is one; anything else is neither shown nor broken.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use redis::{FromRedisValue, Value};

use crate::engine::{Entry, Fence, Mode, Query, Snapshot};
use crate::error::{Error, Result};
use crate::key::Key;

use super::Store;
use super::answer::what_is_there;
use super::connection::{Call, Connection};
use super::error::{code, garbage, sort};
use super::layout::{KeyNames, lock_of_state, pattern_of};
use super::plain_look;
use super::script::{CANDIDATES, INSPECT};
use super::settings::Layout;

/// How many keys a server scans per step.
const STEP: usize = 1000;

/// How many locks it reads in one call: it does nothing else meanwhile.
const AT_ONCE: usize = 50;

pub(in crate::engines) async fn inspect(store: &Store, query: &Query) -> Result<Vec<Snapshot>> {
    let keys = match query {
        Query::Key(key) => BTreeSet::from([key.clone()]),
        Query::Prefix(prefix) => find(store, prefix).await?,
    };
    let mut snapshots = Vec::new();
    for seen in look_at_all(store, keys).await? {
        let snapshot = match (seen, query) {
            // Data of an application, or of another client, since the keys were listed.
            (Err(Error::Conflict { .. }), Query::Prefix(_)) => continue,
            (seen, _) => seen?,
        };
        let waiters = snapshot.waiters.as_ref().map_or(0, Vec::len);
        if !snapshot.holders.is_empty() || waiters > 0 {
            snapshots.push(snapshot);
        }
    }
    Ok(snapshots)
}

/// The keys with this prefix that may be locks, in order.
async fn find(store: &Store, prefix: &str) -> Result<BTreeSet<Key>> {
    let doing = "list locks";
    let start = format!("{}{prefix}", store.settings.prefix);
    let pattern = pattern_of(&start);
    let mut locks = BTreeSet::new();
    for server in store.servers.keepers().await.map_err(|error| sort(doing, error))? {
        let mut cursor = "0".to_owned();
        let mut others = Vec::new();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            scan.arg("TYPE").arg("hash");
            let answer = server.command(&scan).await.map_err(|error| sort(doing, error))?;
            let (next, found) = <(String, Vec<Vec<u8>>)>::from_redis_value(answer)
                .map_err(|error| sort(doing, error.into()))?;
            // Names that are not UTF-8 are not keys of locks.
            let found = found.into_iter().filter_map(|name| String::from_utf8(name).ok());
            let (states, hashes): (Vec<_>, Vec<_>) =
                found.partition(|name| lock_of_state(name).is_some());
            locks.extend(states.iter().filter_map(|state| lock_of_state(state)).map(str::to_owned));
            let is_other = |name: &String| name.starts_with(&start) && !is_beside(name);
            others.extend(hashes.into_iter().filter(is_other));
            if next == "0" {
                break;
            }
            cursor = next;
        }
        // Those with a state are known already.
        others.retain(|name| !locks.contains(name));
        locks.extend(candidates(store, &server, others).await?);
    }
    let keys = locks.iter().filter_map(|lock| lock.strip_prefix(&store.settings.prefix));
    Ok(keys.filter(|key| key.starts_with(prefix)).filter_map(|key| Key::new(key).ok()).collect())
}

/// Whether this stands beside a lock of ours, and so is none, whatever it looks like.
fn is_beside(name: &str) -> bool {
    ["lockkeeper_asked", "lockkeeper_waiters"]
        .iter()
        .any(|kind| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with([':', '#'])))
}

/// Those of some hashes that may be locks.
async fn candidates(
    store: &Store,
    server: &Connection,
    hashes: Vec<String>,
) -> Result<Vec<String>> {
    let mut by_slot: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for name in hashes {
        let slot = KeyNames::new("", &name, store.servers.is_cluster()).slot();
        by_slot.entry(slot).or_default().push(name);
    }
    let mut candidates = Vec::new();
    for names in by_slot.into_values() {
        let call =
            Call { script: &CANDIDATES, keys: &names, args: &[], hinted: false, replicas: 0 };
        let numbers = match server.call(&call).await {
            Ok(reply) => Vec::<usize>::from_redis_value(reply.value)
                .map_err(|error| sort("list locks", error.into()))?,
            // What this user may not see is not among its locks.
            Err(error) if code(&error) == Some("NOPERM") => Vec::new(),
            Err(error) => return Err(sort("list locks", error)),
        };
        candidates.extend(numbers.into_iter().filter_map(|n| names.get(n - 1).cloned()));
    }
    Ok(candidates)
}

/// What is known about one key.
pub(super) async fn look_at(store: &Store, key: &Key) -> Result<Option<Snapshot>> {
    look(store, std::slice::from_ref(key)).await?.pop().transpose()
}

/// What is known about each of some keys, in their order.
async fn look_at_all(store: &Store, keys: BTreeSet<Key>) -> Result<Vec<Result<Snapshot>>> {
    let mut by_slot: BTreeMap<u16, Vec<Key>> = BTreeMap::new();
    for key in keys {
        by_slot.entry(store.names(&key).slot()).or_default().push(key);
    }
    let mut seen: BTreeMap<Key, Result<Snapshot>> = BTreeMap::new();
    if let Some(server) = store.servers.only().filter(|_| by_slot.values().any(|k| k.len() > 1)) {
        for keys in by_slot.values().flat_map(|keys| keys.chunks(plain_look::AT_ONCE)) {
            let answers = plain_look::look(store, server, keys).await;
            let answers = answers.map_err(|error| sort("list locks", error))?;
            let known = keys.iter().zip(answers).filter_map(|(key, seen)| Some((key, seen?)));
            seen.extend(known.map(|(key, snapshot)| (key.clone(), Ok(snapshot))));
        }
        by_slot.values_mut().for_each(|keys| keys.retain(|key| !seen.contains_key(key)));
    }
    for keys in by_slot.values().flat_map(|keys| keys.chunks(AT_ONCE)) {
        let answers = look(store, keys).await?;
        seen.extend(keys.iter().cloned().zip(answers));
    }
    Ok(seen.into_values().collect())
}

/// What is known about some keys of one slot.
async fn look(store: &Store, keys: &[Key]) -> Result<Vec<Result<Snapshot>>> {
    let doing = || match keys {
        [key] => format!("inspect {key:?}"),
        keys => format!("inspect {} locks", keys.len()),
    };
    let names: Vec<_> = keys.iter().map(|key| store.names(key)).collect();
    let stems: Vec<_> = names.iter().map(KeyNames::stem).collect();
    let mut args = vec![are_strings(store)];
    args.extend(stems.iter().map(String::as_str));
    let all: Vec<_> = names.iter().flat_map(self::keys).collect();
    let call = Call { script: &INSPECT, keys: &all, args: &args, hinted: false, replicas: 0 };
    let reply =
        store.servers.call(names[0].slot(), &call).await.map_err(|error| sort(doing(), error))?;
    let Value::Array(answers) = &reply.value else { return Err(garbage(doing(), &reply.value)) };
    let read = |(key, answer)| match read(key, answer) {
        Some(Ok(snapshot)) => Ok(snapshot),
        Some(Err(kind)) => Err(no_lock(store, key, kind)),
        None => Err(garbage(format!("inspect {key:?}"), answer)),
    };
    Ok(keys.iter().zip(answers).map(read).collect())
}

/// Whether locks are strings, as an argument of the scripts.
pub(super) fn are_strings(store: &Store) -> &'static str {
    if store.settings.layout == Layout::String { "1" } else { "0" }
}

/// The error for a key that holds something else.
pub(super) fn no_lock(store: &Store, key: &Key, kind: String) -> Error {
    let found = match (kind.as_str(), store.settings.layout) {
        ("string", Layout::String) => "a string is there that never expires, so it may be data: choose another key, or delete it by hand if it is the lock of a client that sets no expiry".to_owned(),
        ("string", Layout::Hash) => "a string is there, which may be data: choose another key, or add ?layout=string to the URL if it is a lock made with SET NX".to_owned(),
        _ => format!("{}: choose another key", what_is_there(&[kind])),
    };
    Error::Conflict { key: key.clone(), found }
}

/// The keys of both queues, of fair mutexes and of everything else, and of the queue.
pub(super) fn keys(names: &KeyNames) -> Vec<String> {
    let mut keys = names.queue_keys(Mode::Mutex);
    keys.push(names.queue_keys(Mode::Read).swap_remove(2));
    keys.extend([names.mutex_queue(), names.waiters()]);
    keys
}

/// What the script found about a lock, or the kind of something else.
fn read(key: &Key, value: &Value) -> Option<Result<Snapshot, String>> {
    type Holder = (String, String, i64, String);
    let (kind, limit, fence, holders, waiters): (
        String,
        String,
        String,
        Vec<Holder>,
        Vec<(String, String)>,
    ) = FromRedisValue::from_redis_value_ref(value).ok()?;
    if !matches!(kind.as_str(), "none" | "mutex" | "read" | "write" | "semaphore" | "token") {
        return Some(Err(kind));
    }
    Some(Ok(snapshot(key, Parts { kind, limit, fence, holders, waiters })))
}

/// A lock as it was read.
pub(super) struct Parts {
    pub(super) kind: String,
    pub(super) limit: String,
    pub(super) fence: String,
    /// The field, its value, what is left in milliseconds, and the record.
    pub(super) holders: Vec<(String, String, i64, String)>,
    /// The entry and its record.
    pub(super) waiters: Vec<(String, String)>,
}

/// What is known about a lock.
pub(super) fn snapshot(key: &Key, parts: Parts) -> Snapshot {
    let Parts { kind, limit, fence, holders, waiters } = parts;
    let fence = fence.parse().ok().map(Fence::new);
    let limit = limit.parse().unwrap_or(0);
    let plain = matches!(kind.as_str(), "mutex" | "token")
        && !holders.iter().any(|(_, _, _, record)| record.starts_with("fair\t"));
    let holders = holders
        .into_iter()
        .map(|(field, value, left, record)| {
            let numbers: Vec<u64> = value.split(' ').filter_map(|n| n.parse().ok()).collect();
            let slots: Vec<u32> = match kind.as_str() {
                "semaphore" => numbers.iter().skip(1).map(|slot| *slot as u32).collect(),
                _ => Vec::new(),
            };
            let mode = match kind.as_str() {
                "semaphore" => Mode::Permits { take: slots.len() as u32, limit },
                "mutex" | "token" => Mode::Mutex,
                _ if field.ends_with(":write") => Mode::Write,
                _ => Mode::Read,
            };
            let own =
                if kind == "semaphore" { numbers.first().copied().map(Fence::new) } else { fence };
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            let kept = record.starts_with("kept\t");
            let entry = entry(field, mode, &record);
            // What it says is about the holder only if it is its record.
            Entry { left, fence: own, slots, kept: kept && entry.since.is_some(), ..entry }
        })
        .collect();
    let waiters = waiters.into_iter().map(|(field, record)| {
        let mode = record.split('\t').next().and_then(read_mode).unwrap_or(Mode::Mutex);
        entry(field, mode, &record)
    });
    let waiters: Vec<_> = waiters.collect();
    // Waiters of other clients for a plain mutex leave no trace.
    let unknown = (plain && waiters.is_empty()).then_some(
        "clients other than lockkeeper leave no trace while they wait for a plain mutex",
    );
    let waiters = unknown.is_none().then_some(waiters);
    Snapshot { holders, waiters, unknown, fence, ..Snapshot::new(key.clone()) }
}

/// Adds what a record says, if it is the record of this entry.
fn entry(field: String, mode: Mode, record: &str) -> Entry {
    let parts: Vec<&str> = record.splitn(5, '\t').collect();
    let entry = Entry::new(field.strip_suffix(":write").unwrap_or(&field), mode);
    match parts.as_slice() {
        [_, since, of, who, note] if *of == field => {
            let since = since.parse().ok().map(|since| UNIX_EPOCH + Duration::from_micros(since));
            let note = Some((*note).to_owned()).filter(|note| !note.is_empty());
            Entry { since, note, ..entry.by(who) }
        }
        _ => entry,
    }
}

fn read_mode(text: &str) -> Option<Mode> {
    match text {
        "mutex" | "fair" | "keep" | "kept" => Some(Mode::Mutex),
        "read" => Some(Mode::Read),
        "write" => Some(Mode::Write),
        permits => {
            let (take, limit) = permits.split_once('/')?;
            Some(Mode::Permits { take: take.parse().ok()?, limit: limit.parse().ok()? })
        }
    }
}
