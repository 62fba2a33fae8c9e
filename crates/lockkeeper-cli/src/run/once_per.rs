//! `--once-per D`: at most one run per slot, across machines.
//!
//! Time is divided into slots of D since 1970. A run first acquires a *mark*, a second lock whose
//! key names the slot, and keeps it until every clock that may lag behind has left the slot too. If
//! a lease outlives its holder, the mark costs nothing; otherwise a small holder process keeps it.
//!
//! The mark is acquired before the command starts: a command that fails does not run again in the
//! same slot, unless the mark is released then.

use std::time::{Duration, SystemTime};

use lockkeeper::engine::Death;
use lockkeeper::{Client, Guard, Owner};

use crate::args::{Release, Terms};
use crate::detached::handle;
use crate::detached::holder;
use crate::detached::protocol::Request;
use crate::exit::{self, Failure};
use crate::run::signals::Signals;

/// The largest expected difference between clocks of different machines; never more than a slot.
const SKEW: Duration = Duration::from_secs(60);

/// The mark of a slot.
#[derive(Debug)]
pub(crate) enum Mark {
    /// A lease that outlives us.
    Lease(Guard),
    /// A process that outlives us, by its handle.
    Holder(String),
}

impl Mark {
    /// Keeps it until its slot is over.
    pub(crate) fn leave(self) {
        if let Mark::Lease(guard) = self {
            // Meant to stay when we exit: it ends with its lease.
            std::mem::forget(guard);
        }
    }

    /// Allows another run in the slot.
    pub(crate) async fn take_back(self) {
        match self {
            Mark::Lease(guard) => {
                let _ = guard.release().await;
            }
            Mark::Holder(handle) => {
                let _ = handle::release(&Release { handle });
            }
        }
    }
}

/// The note of a mark, whose holder is gone, in `ls`.
const NOTE: &str = "mark of --once-per";

/// Acquires the mark of this slot. Busy means that the slot has had its run.
pub(crate) async fn mark(
    client: &Client,
    url: &str,
    key: &str,
    slot_length: Duration,
    signals: &Signals,
) -> Result<Mark, Failure> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let taken =
        Failure::new(exit::BUSY, format!("lock {key:?}: this slot has already had its run"));
    let (key, lease) = slot(key, now, slot_length)?;
    if client.guarantees().death == Death::Lease {
        let lock = client.mutex(&key).lease(lease).note(NOTE);
        let Some(guard) = lock.try_acquire().await? else { return Err(taken) };
        return Ok(Mark::Lease(guard));
    }
    let request = Request {
        url: url.to_owned(),
        key,
        terms: Terms { nonblock: true, note: Some(NOTE.to_owned()), ..Terms::default() },
        ttl: lockkeeper::DEFAULT_TTL,
        owner: Owner::new().id().to_owned(),
        command: None,
        shown: None,
        lease: Some(lease),
        pid: None,
        on_yield: None,
    };
    match holder::start(&request, signals).await {
        Ok(granted) => Ok(Mark::Holder(granted.handle)),
        Err(failure) if failure.code == exit::BUSY => Err(taken),
        Err(failure) => Err(failure),
    }
}

/// The key of the slot's mark, and how long it must stay.
fn slot(key: &str, now: Duration, length: Duration) -> Result<(String, Duration), Failure> {
    let (now, slot) = (now.as_nanos(), length.as_nanos());
    if length < Duration::from_secs(1) {
        return Err(Failure::usage("--once-per takes slots of at least 1s"));
    }
    let end = (now / slot + 1) * slot;
    let left = Duration::from_nanos(u64::try_from(end - now).unwrap_or(u64::MAX));
    Ok((
        format!("{key}#once-per/{}s/{}", length.as_secs_f64(), now / slot),
        left + SKEW.min(length),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_the_same_for_all_moments_in_it() {
        let hour = Duration::from_secs(3600);
        let at = |s| slot("k", Duration::from_secs(s), hour).unwrap();
        assert_eq!(at(7200).0, at(10_799).0);
        assert_ne!(at(10_799).0, at(10_800).0);
        assert_ne!(at(7200).0, slot("k", Duration::from_secs(7200), hour * 2).unwrap().0);
        assert_eq!(at(10_790).1, Duration::from_secs(10 + 60));
        let short = slot("k", Duration::from_secs(1), Duration::from_secs(2)).unwrap();
        assert_eq!(short.1, Duration::from_secs(1 + 2));
    }
}
