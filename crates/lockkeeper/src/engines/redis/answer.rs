//! The answers of the scripts to an attempt, and the wording of a conflict.

use std::time::Duration;

use redis::{FromRedisValue, Value};

use crate::engine::Mode;

/// What an attempt learned about when to ask again.
#[derive(Debug, Default)]
pub(super) struct Remaining {
    /// How long the holder may stay; `None` if that is unknown.
    pub(super) left: Option<Duration>,
    /// Whether we are the first waiter.
    pub(super) first: bool,
    /// Whether the holder will not hand the lock to us, because it does not know of our queue.
    pub(super) foreign: bool,
    /// Whether we are in the queue of a mutex.
    pub(super) in_queue: bool,
}

/// The answer to an attempt.
pub(super) enum Answer {
    Granted { fence: u64, reserved: u32, slots: Vec<u32>, minted: bool },
    Busy(Remaining),
    Conflict(Vec<String>),
}

/// Parses an answer; `None` if it is malformed.
pub(super) fn read_answer(value: &Value) -> Option<Answer> {
    let parts = match value {
        Value::Int(fence) => {
            let fence = u64::try_from(*fence).ok()?;
            return Some(Answer::Granted { fence, reserved: 0, slots: Vec::new(), minted: true });
        }
        Value::Array(parts) => parts,
        _ => return None,
    };
    let (Value::Int(kind), rest) = parts.split_first()? else { return None };
    match kind {
        2 => {
            let [fence, reserved] = rest else { return None };
            Some(Answer::Granted {
                fence: u64::from_redis_value_ref(fence).ok()?,
                reserved: u32::from_redis_value_ref(reserved).ok()?,
                slots: Vec::new(),
                minted: true,
            })
        }
        1 => {
            let (fence, slots) = rest.split_first()?;
            Some(Answer::Granted {
                fence: u64::from_redis_value_ref(fence).ok()?,
                reserved: 0,
                slots: slots
                    .iter()
                    .map(u32::from_redis_value_ref)
                    .collect::<Result<_, _>>()
                    .ok()?,
                minted: false,
            })
        }
        0 => {
            let left = i64::from_redis_value_ref(rest.first()?).ok()?;
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            let flags = if let Some(Value::Int(flags)) = rest.get(1) { *flags } else { 0 };
            let [first, foreign, in_queue] = [1, 2, 4].map(|flag| flags & flag != 0);
            Some(Answer::Busy(Remaining { left, first, foreign, in_queue }))
        }
        _ => rest
            .iter()
            .map(String::from_redis_value_ref)
            .collect::<Result<_, _>>()
            .ok()
            .map(Answer::Conflict),
    }
}

/// Describes what is at the key instead of the lock.
pub(in crate::engines) fn describe(found: &[String], wanted: Mode) -> String {
    format!("{}, and was asked for as {wanted}", what_is_there(found))
}

/// Describes what a script found at the key.
pub(in crate::engines) fn what_is_there(found: &[String]) -> String {
    match found {
        [kind, limit] => format!("it is used as a {kind} of {limit}"),
        [kind] => match kind.as_str() {
            "mutex" | "semaphore" => format!("it is used as a {kind}"),
            "read" | "write" => "it is used as a read-write lock".to_owned(),
            "hash" => "a hash is there, and layout=string needs a string".to_owned(),
            "data" => "a hash is there that is no lock: a lock expires, and its fields are <uuid>:<n>, as Redisson and layout=hash write them".to_owned(),
            "string" => "a string is there, as layout=string and SET NX write it".to_owned(),
            other => format!("a {other} is there, which is no lock"),
        },
        _ => "something else is there".to_owned(),
    }
}
