//! What the engines over SQL databases share: their own connections, names of modes, and times.

mod batch;
mod broken;
mod error;
mod lease_claim;
mod lease_engine;
mod rows;
mod schema;
mod session_claim;
mod session_engine;
mod session_lock;
mod sessions;
mod settings;
mod yielding;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

pub(crate) use self::error::ServerErrors;
#[cfg(any(feature = "postgres", test))]
pub(crate) use self::error::failed;
pub(crate) use self::lease_engine::{Answer, Busy, LeaseAsk, LeaseEngine, LeaseTable, leases};
pub(crate) use self::rows::{Row, fence, since};
pub(crate) use self::schema::{prepare, version_finding};
pub(crate) use self::session_engine::{Dedicated, SessionEngine};
pub(crate) use self::session_lock::{Ask, Looked, Marked, Seen, SessionLock, Taken, promises};
pub(crate) use self::sessions::{Dialect, Session, Sessions, answered, within};
pub(crate) use self::settings::Settings;
use crate::core::Backoff;
use crate::engine::Mode;
use crate::key::Key;

/// How long a silent waiter keeps its place in the queue.
pub(crate) const WAITER_LEASE: Duration = Duration::from_secs(5);

/// How long a waiter relies on being woken by the database; every poll also keeps its place.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(1_500);

/// How soon the first waiter checks again whether a guarded transaction has ended, which sends no
/// notification.
pub(crate) const GUARDED: Backoff =
    Backoff::between(Duration::from_millis(5), Duration::from_millis(200));

/// How often a holder that cannot be notified checks whether it was asked to give way.
const ASKED: Duration = Duration::from_secs(2);

/// The same for one that is notified. Nothing relies on a notification alone.
const ASKED_ANYWAY: Duration = Duration::from_secs(30);

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

/// The mode in these columns.
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

/// Our own clock, for comparison with the server's.
pub(crate) fn seconds_since_1970() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}
