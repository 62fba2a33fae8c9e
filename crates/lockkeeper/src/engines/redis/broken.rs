//! Breaks locks, and keeps a list of the last breaks.
//!
//! The list is one key beside the locks. In a Cluster it is at another server than most of them, so a
//! break is recorded first, and the record is removed again if the lock turns out to be free.

use redis::{FromRedisValue, Value};

use super::Store;
use super::connection::Call;
use super::error::{garbage, sort};
use super::inspect::{are_strings, keys, look_at, no_lock};
use super::layout::{broken_list, millis, slot};
use super::script::{BREAK, BROKEN};
use crate::engine::broken::{KEPT, KEPT_FOR, listed};
use crate::engine::{Break, Breaker, Entry, Mode};
use crate::error::Result;
use crate::key::Key;

pub(super) async fn break_lock(store: &Store, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
    let holders = look_at(store, key).await?.map(|seen| seen.holders).unwrap_or_default();
    let record = (!holders.is_empty()).then(|| by.breaks(key, &holders));
    break_recorded(store, key, record.as_ref()).await?;
    Ok(holders)
}

/// Breaks a lock of these holders, if there are any.
pub(in crate::engines) async fn break_recorded(
    store: &Store,
    key: &Key,
    record: Option<&Break>,
) -> Result<()> {
    let line = record.map(Break::line);
    if let Some(line) = &line {
        let kept = KEPT.to_string();
        let recorded = list(store, &["add", line, &kept, &millis(KEPT_FOR)]).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, %key, "a broken lock could not be recorded");
        }
    }
    let broken = take_away(store, key).await;
    if let (Some(line), Err(_) | Ok(false)) = (&line, &broken) {
        let removed = list(store, &["remove", line]).await;
        if let Err(error) = removed {
            tracing::warn!(%error, %key, "the record of a lock that was not broken remains");
        }
    }
    broken.map(drop)
}

/// The last breaks.
pub(in crate::engines) async fn breaks(store: &Store) -> Result<Vec<Break>> {
    let lines = list(store, &["list"]).await?;
    Ok(listed(lines.iter().filter_map(|line| Break::parse(line))))
}

/// Changes the list of breaks, or returns its lines.
async fn list(store: &Store, args: &[&str]) -> Result<Vec<String>> {
    let keys = [broken_list(&store.settings.prefix)];
    let call = Call { script: &BROKEN, keys: &keys, args, hinted: false, replicas: 0 };
    let doing = "read or write the list of broken locks";
    let reply = store.servers.call(slot(&keys[0]), &call).await;
    let reply = reply.map_err(|error| sort(doing, error))?;
    match &reply.value {
        Value::Array(_) => Vec::from_redis_value_ref(&reply.value)
            .map_err(|_| garbage(doing.to_owned(), &reply.value)),
        _ => Ok(Vec::new()),
    }
}

/// Takes a lock away from its holders. False if there are none.
async fn take_away(store: &Store, key: &Key) -> Result<bool> {
    let names = store.names(key);
    let keys = keys(&names);
    let (stem, mutexes, others) =
        (names.stem(), names.base_channel(Mode::Mutex), names.base_channel(Mode::Read));
    let (first, second) = (names.wake_channel(Mode::Mutex), names.wake_channel(Mode::Read));
    let (strings, waiters) = (names.string_channel(), names.mutex_queue_channel());
    let args = [
        &stem,
        store.publish(),
        &mutexes,
        &others,
        &first,
        &second,
        &strings,
        are_strings(store),
        &waiters,
    ];
    let call = Call { script: &BREAK, keys: &keys, args: &args, hinted: false, replicas: 0 };
    let doing = format!("break {key:?}");
    let reply =
        store.servers.call(names.slot(), &call).await.map_err(|error| sort(&doing, error))?;
    match &reply.value {
        Value::Int(broken) => Ok(*broken == 1),
        // It was a lock a moment ago, or was not held.
        other => match <(i64, String)>::from_redis_value_ref(other) {
            Ok((_, found)) => Err(no_lock(store, key, found)),
            Err(_) => Err(garbage(doing, other)),
        },
    }
}
