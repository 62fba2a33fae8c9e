//! What the engines over SQL databases share: connections of their own, words for modes, and times.

mod lease;
mod rows;
mod session_claim;
mod session_engine;
mod session_lock;
mod sessions;
mod settings;

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

pub(crate) use self::lease::{grant, leases, pause, renewals};
pub(crate) use self::rows::{Row, fence, since, snapshots};
pub(crate) use self::session_engine::{Dedicated, SessionEngine};
pub(crate) use self::session_lock::{Ask, Marked, Seen, SessionLock, Taken, promises};
#[cfg(any(feature = "postgres", test))]
pub(crate) use self::sessions::failed;
pub(crate) use self::sessions::{Dialect, Session, Sessions, within};
pub(crate) use self::settings::Settings;
use crate::core::Backoff;
use crate::engine::{Finding, Mode, Severity};
use crate::error::{Error, Result};
use crate::key::Key;

/// How long a waiter that is not heard of keeps its place in line.
pub(crate) const WAITER_LEASE: Duration = Duration::from_secs(5);

/// How long a waiter trusts the database to wake it; every look also keeps its place.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(1_500);

/// How soon one whose turn it is looks again whether a guarded transaction is over, of which nobody is told.
pub(crate) const GUARDED: Backoff =
    Backoff::between(Duration::from_millis(5), Duration::from_millis(200));

/// How long one statement may take.
pub(crate) const STATEMENT: Duration = Duration::from_secs(10);

/// Whole microseconds, as both databases count.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// One of `n`, always the same for a key.
pub(crate) fn stripe(key: &Key, n: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() % n as u64).unwrap_or(0)
}

/// How many permits a mode takes, and of how many; one of none for locks that are no semaphores.
pub(crate) fn permits(mode: Mode) -> (i64, i64) {
    match mode {
        Mode::Permits { take, limit } => (take.into(), limit.into()),
        _ => (1, 0),
    }
}

/// The mode that these columns say.
pub(crate) fn mode(kind: &str, take: i64, limit: i64) -> Mode {
    match kind {
        "write" => Mode::Write,
        "read" => Mode::Read,
        "semaphore" => Mode::Permits {
            take: u32::try_from(take).unwrap_or(u32::MAX),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        },
        _ => Mode::Mutex,
    }
}

/// The refusal of a key that is in use as something else.
pub(crate) fn clash(key: &Key, asked: Mode, found: &str) -> Error {
    Error::Conflict {
        key: key.clone(),
        found: format!("it is used as {found}, and was asked for as {asked}"),
    }
}

/// The tables of this engine are not there, or not ours to use.
pub(crate) fn missing(engine: &'static str, why: &str) -> Error {
    let what_to_do =
        format!("`lockkeeper explain --schema {engine}:` prints what an administrator has to run");
    Error::broken(engine, "find the tables of lockkeeper", format!("{why}; {what_to_do}"))
}

/// What is wrong with tables of another version than the one that this code speaks, and what to do.
pub(crate) fn mismatch(engine: &'static str, found: i32, ours: i32) -> Option<(String, String)> {
    let what =
        format!("the tables of lockkeeper have version {found}, and this client needs {ours}");
    let advice = match found.cmp(&ours) {
        Ordering::Equal => return None,
        Ordering::Less => format!(
            "stop the clients that use them, then let an administrator run what `lockkeeper explain --schema \
             {engine}:` prints; it brings them up to date, and keeps what is there"
        ),
        Ordering::Greater => "use a newer lockkeeper, as the one that made them".to_owned(),
    };
    Some((what, advice))
}

/// Refuses tables of another version.
pub(crate) fn check_version(engine: &'static str, found: i32, ours: i32) -> Result<()> {
    match mismatch(engine, found, ours) {
        None => Ok(()),
        Some((what, advice)) => {
            Err(Error::broken(engine, "keep locks here", format!("{what}; {advice}")))
        }
    }
}

/// What `doctor` has to say of the version of the tables.
pub(crate) fn version_finding(engine: &'static str, found: i32, ours: i32) -> Finding {
    match mismatch(engine, found, ours) {
        None => {
            finding(Severity::Fine, &format!("the tables of lockkeeper have version {found}"), "")
        }
        Some((what, advice)) => finding(Severity::Problem, &what, &advice),
    }
}

/// Our own clock, to compare the server's with.
pub(crate) fn seconds_since_1970() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// A result of `doctor`.
pub(crate) fn finding(severity: Severity, what: &str, advice: &str) -> Finding {
    Finding { severity, what: what.to_owned(), advice: advice.to_owned() }
}
