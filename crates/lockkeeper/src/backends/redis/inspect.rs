//! Who holds and who waits, and taking a lock away from whoever holds it.
//!
//! Locks are found by what we keep beside them, because a hash in somebody's database need not be a
//! lock. A lock that only foreign clients used is shown when it is asked for by its key.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue, Value};

use crate::backend::{Entry, Fence, Mode, Query, Snapshot};
use crate::error::Result;
use crate::key::Key;

use super::Store;
use super::error::{garbage, sort};
use super::link::Call;
use super::names::{Names, lock_of_state, states_of};
use super::script::{BREAK, INSPECT};

/// How many keys a server looks at per step.
const STEP: usize = 1000;

pub(super) async fn inspect(store: &Store, query: &Query) -> Result<Vec<Snapshot>> {
    let keys = match query {
        Query::Key(key) => vec![key.clone()],
        Query::Prefix(prefix) => find(store, prefix).await?,
    };
    let mut snapshots = Vec::new();
    for key in keys {
        let snapshot = look(store, key).await?;
        let waiters = snapshot.waiters.as_ref().map_or(0, Vec::len);
        if !snapshot.holders.is_empty() || waiters > 0 {
            snapshots.push(snapshot);
        }
    }
    Ok(snapshots)
}

pub(super) async fn break_lock(store: &Store, key: &Key) -> Result<Vec<Entry>> {
    let broken = look(store, key.clone()).await?.holders;
    let names = store.names(key);
    let keys = keys(&names);
    let (stem, mutexes, others) =
        (names.stem(), names.base_channel(Mode::Mutex), names.base_channel(Mode::Read));
    let (first, second) = (names.wake_channel(Mode::Mutex), names.wake_channel(Mode::Read));
    let strings = names.string_channel();
    let args = [&stem, store.publish(), &mutexes, &others, &first, &second, &strings];
    let call = Call { script: &BREAK, keys: &keys, args: &args, hinted: false, replicas: 0 };
    let answer = store.servers.call(names.slot(), call).await;
    answer.map_err(|error| sort(format!("break {key:?}"), error))?;
    Ok(broken)
}

/// The keys that we know of and that start so, in order.
async fn find(store: &Store, prefix: &str) -> Result<Vec<Key>> {
    let doing = "list locks";
    let start = format!("{}{prefix}", store.settings.prefix);
    let pattern = states_of(&start);
    let mut keys = Vec::new();
    for server in store.servers.all().await.map_err(|error| sort(doing, error))? {
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let answer = server.command(&scan).await.map_err(|error| sort(doing, error))?;
            let (next, found) = <(String, Vec<String>)>::from_redis_value(answer)
                .map_err(|error| sort(doing, error.into()))?;
            let names = found
                .iter()
                .filter_map(|state| lock_of_state(state)?.strip_prefix(&store.settings.prefix));
            keys.extend(
                names
                    .filter(|name| name.starts_with(prefix))
                    .filter_map(|name| Key::new(name).ok()),
            );
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    keys.sort();
    keys.dedup();
    Ok(keys)
}

async fn look(store: &Store, key: Key) -> Result<Snapshot> {
    let doing = format!("inspect {key:?}");
    let names = store.names(&key);
    let stem = names.stem();
    let call =
        Call { script: &INSPECT, keys: &keys(&names), args: &[&stem], hinted: false, replicas: 0 };
    let reply =
        store.servers.call(names.slot(), call).await.map_err(|error| sort(&doing, error))?;
    read(key, &reply.value).ok_or_else(|| garbage(doing, &reply.value))
}

/// The keys of both lines: of fair mutexes, and of everything else.
fn keys(names: &Names) -> Vec<String> {
    let mut keys = names.line(Mode::Mutex);
    keys.push(names.line(Mode::Read).swap_remove(2));
    keys
}

fn read(key: Key, value: &Value) -> Option<Snapshot> {
    type Holder = (String, String, i64, String);
    let (kind, limit, fence, holders, waiters): (
        String,
        String,
        String,
        Vec<Holder>,
        Vec<(String, String)>,
    ) = FromRedisValue::from_redis_value_ref(value).ok()?;
    let fence = fence.parse().ok().map(Fence::new);
    let limit = limit.parse().unwrap_or(0);
    // Those who wait for a plain mutex leave no trace.
    let plain = matches!(kind.as_str(), "mutex" | "string")
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
                "mutex" | "string" => Mode::Mutex,
                _ if field.ends_with(":write") => Mode::Write,
                _ => Mode::Read,
            };
            let own =
                if kind == "semaphore" { numbers.first().copied().map(Fence::new) } else { fence };
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            Entry { left, fence: own, slots, ..entry(field, mode, &record) }
        })
        .collect();
    let waiters = waiters.into_iter().map(|(field, record)| {
        let mode = record.split('\t').next().and_then(read_mode).unwrap_or(Mode::Mutex);
        entry(field, mode, &record)
    });
    let waiters: Vec<_> = waiters.collect();
    let unknown = plain && waiters.is_empty();
    Some(Snapshot { key, holders, waiters: (!unknown).then_some(waiters), fence })
}

/// What a record says of someone, if it is of this one.
fn entry(field: String, mode: Mode, record: &str) -> Entry {
    let parts: Vec<&str> = record.splitn(5, '\t').collect();
    let (who, note, since) = match parts.as_slice() {
        [_, since, of, who, note] if *of == field => {
            let since = since.parse().ok().map(|since| UNIX_EPOCH + Duration::from_micros(since));
            (Some((*who).to_owned()), Some((*note).to_owned()), since)
        }
        _ => (None, None, None::<SystemTime>),
    };
    let identity = field.strip_suffix(":write").unwrap_or(&field).to_owned();
    let note = note.filter(|note| !note.is_empty());
    Entry { identity, mode, who, note, since, left: None, fence: None, slots: Vec::new() }
}

fn read_mode(text: &str) -> Option<Mode> {
    match text {
        "mutex" | "fair" => Some(Mode::Mutex),
        "read" => Some(Mode::Read),
        "write" => Some(Mode::Write),
        permits => {
            let (take, limit) = permits.split_once('/')?;
            Some(Mode::Permits { take: take.parse().ok()?, limit: limit.parse().ok()? })
        }
    }
}
