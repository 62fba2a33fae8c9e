//! Reads many common mutexes with plain commands.
//!
//! A script that reads everything that a lock may have costs the server several times as much, and whoever
//! looks at all locks every few seconds would notice. What these commands cannot decide is left to the
//! script: other kinds, other clients, and a lock that changes hands between two of them.

use std::collections::HashMap;

use redis::{Cmd, FromRedisValue, RedisResult, Value};

use super::Store;
use super::connection::Connection;
use super::inspect::{Parts, snapshot};
use super::layout::KeyNames;
use crate::engine::Snapshot;
use crate::key::Key;

/// How many locks are read in one batch.
pub(super) const AT_ONCE: usize = 50;

/// How many commands a lock takes.
const COMMANDS: usize = 6;

/// What is known about some locks; `None` for those that the script has to read.
pub(super) async fn look(
    store: &Store,
    server: &Connection,
    keys: &[Key],
) -> RedisResult<Vec<Option<Snapshot>>> {
    let mut commands = vec![redis::cmd("TIME")];
    commands.extend(keys.iter().flat_map(|key| questions(&store.names(key))));
    let mut answers = server.commands(commands).await?.into_iter();
    let clock = answers.next().and_then(|time| <(u64, u64)>::from_redis_value(time).ok());
    let Some((seconds, micros)) = clock else { return Ok(keys.iter().map(|_| None).collect()) };
    let now = seconds * 1000 + micros / 1000;
    let answer = |key| {
        let answers: Vec<_> = answers.by_ref().take(COMMANDS).collect();
        read(key, answers, now)
    };
    Ok(keys.iter().map(answer).collect())
}

/// The lock, its lease, our record of it, its queue, and whether there is another queue.
fn questions(names: &KeyNames) -> [Cmd; COMMANDS] {
    let ask = |name: &str, key: &str| {
        let mut command = redis::cmd(name);
        command.arg(key);
        command
    };
    let mut queues = redis::cmd("EXISTS");
    queues.arg(&names.queues());
    let mut queue = redis::cmd("LRANGE");
    queue.arg(names.mutex_queue()).arg(0).arg(-1);
    [
        ask("HGETALL", names.lock()),
        ask("PTTL", names.lock()),
        ask("HGETALL", &names.state()),
        ask("HGETALL", &names.waiters()),
        queue,
        queues,
    ]
}

fn read(key: &Key, answers: Vec<Value>, now: u64) -> Option<Snapshot> {
    let [lock, left, state, waiters, queue, queues]: [Value; COMMANDS] = answers.try_into().ok()?;
    let lock: Vec<(String, String)> = pairs(lock)?;
    let state: HashMap<String, String> = pairs(state)?.into_iter().collect();
    if i64::from_redis_value(queues).ok()? != 0 {
        return None;
    }
    let holders = match lock.as_slice() {
        [] => Vec::new(),
        [(field, count)] => {
            let left = i64::from_redis_value(left).ok().filter(|left| *left >= 0)?;
            let held = state.get("held")?;
            let mut parts = held.split('\t');
            let is_plain = matches!(parts.next(), Some("mutex" | "keep" | "kept"))
                && parts.nth(1) == Some(field);
            if !is_plain || !is_token(field) || !is_count(count) {
                return None;
            }
            vec![(field.clone(), count.clone(), left, held.clone())]
        }
        _ => return None,
    };
    let mut places: HashMap<String, String> = pairs(waiters)?.into_iter().collect();
    let shown = |claim: String| {
        let place = places.remove(&claim)?;
        let (until, rest) = place.split_once('\t')?;
        let record = rest.splitn(3, '\t').nth(2)?;
        let entry = record.split('\t').nth(2)?;
        (until.parse::<u64>().ok()? > now).then(|| (entry.to_owned(), record.to_owned()))
    };
    let queue = Vec::<String>::from_redis_value(queue).ok()?;
    let waiters = queue.into_iter().filter_map(shown).collect();
    let fence = state.get("fence").cloned().unwrap_or_default();
    let kind = if holders.is_empty() { "none" } else { "mutex" };
    let parts = Parts { kind: kind.to_owned(), limit: String::new(), fence, holders, waiters };
    Some(snapshot(key, parts))
}

fn pairs(value: Value) -> Option<Vec<(String, String)>> {
    match value {
        Value::Array(_) | Value::Map(_) => Vec::from_redis_value(value).ok(),
        // An error: what is there is no hash, or we may not read it.
        _ => None,
    }
}

/// Whether this is `<uuid>:<n>`, as Redisson and we write it.
fn is_token(field: &str) -> bool {
    let groups = field.split_once(':').map(|(uuid, _)| uuid.split('-').collect::<Vec<_>>());
    groups.is_some_and(|groups| {
        let lengths = [8, 4, 4, 4, 12];
        groups.len() == lengths.len()
            && groups.iter().zip(lengths).all(|(group, length)| {
                group.len() == length && group.bytes().all(|byte| byte.is_ascii_hexdigit())
            })
    })
}

fn is_count(text: &str) -> bool {
    !text.starts_with('0') && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certainly_a_common_mutex_is_read_here() {
        let token = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let hash = |pairs: &[(&str, &str)]| {
            Value::Array(pairs.iter().flat_map(|(a, b)| [text(a), text(b)]).collect())
        };
        let held = format!("mutex\t7\t{token}\tann@web 1 sleep\tnightly");
        let waiter = "9000\t3\t6000\tmutex\t7\tb:1\tbob@web 2\t";
        let answers = |lock: Value, left: i64, held: &str, queues: i64| {
            let state = hash(&[("fence", "42"), ("held", held)]);
            let waiters = hash(&[("b:1", waiter), ("late", "1\t3\t6000\tmutex\t7\tlate\tx\t")]);
            let queue = Value::Array(["late", "gone", "b:1"].map(text).to_vec());
            vec![lock, Value::Int(left), state, waiters, queue, Value::Int(queues)]
        };
        let key = Key::new("k").unwrap();
        let seen = read(&key, answers(hash(&[(token, "1")]), 500, &held, 0), 1000).unwrap();
        assert_eq!(seen.holders[0].who.as_deref(), Some("ann@web 1"));
        assert_eq!(seen.fence.map(|fence| fence.get()), Some(42));
        let waiters = seen.waiters.unwrap();
        assert_eq!((waiters.len(), waiters[0].who.as_deref()), (1, Some("bob@web 2")));
        for (mode, kept) in [("keep", false), ("kept", true)] {
            let held = held.replacen("mutex", mode, 1);
            let seen = read(&key, answers(hash(&[(token, "1")]), 500, &held, 0), 1000).unwrap();
            assert_eq!(seen.holders[0].kept, kept, "{mode}");
        }
        let free = read(&key, answers(hash(&[]), -2, &held, 0), 1000).unwrap();
        assert!(free.holders.is_empty());
        let fair = held.replacen("mutex", "fair", 1);
        for (lock, left, held, queues) in [
            (hash(&[(token, "1")]), 500, &held, 1),
            (hash(&[(token, "1")]), -1, &held, 0),
            (hash(&[(token, "x")]), 500, &held, 0),
            (hash(&[("name", "1")]), 500, &held, 0),
            (hash(&[(token, "1"), ("mode", "read")]), 500, &held, 0),
            (hash(&[(token, "1")]), 500, &held.replace(token, "another"), 0),
            (hash(&[(token, "1")]), 500, &fair, 0),
            (Value::Okay, 500, &held, 0),
        ] {
            assert!(
                read(&key, answers(lock.clone(), left, held, queues), 1000).is_none(),
                "{lock:?}"
            );
        }
    }
}
