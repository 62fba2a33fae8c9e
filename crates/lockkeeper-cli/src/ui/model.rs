//! Locks as the page and the API show them.
//!
//! A [`Snapshot`] is one poll of a store; a [`Lock`] adds what earlier polls showed: when a holder
//! was first seen, and how long its lease is. Whole identities may be secrets: they are compared
//! here, and only their start is ever printed.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper::engine::{Entry, Mode, Snapshot};
use serde::{Deserialize, Serialize};

use super::time;

/// The name of an engine on the page: from the configuration, or the URL without secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(crate) struct EngineName(Arc<str>);

impl Deref for EngineName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl From<String> for EngineName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl From<EngineName> for String {
    fn from(name: EngineName) -> Self {
        name.to_string()
    }
}

/// A lock with holders or waiters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lock {
    pub(crate) engine: EngineName,
    pub(crate) key: String,
    pub(crate) fence: Option<u64>,
    /// When this was seen.
    pub(crate) looked: SystemTime,
    pub(crate) holders: Vec<Party>,
    /// In order; `None` if the engine does not know them.
    pub(crate) waiters: Option<Vec<Party>>,
    /// Why it does not, if it says so.
    pub(crate) unknown: Option<&'static str>,
}

/// A holder or a waiter. `null` in the API means that the store does not know the value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Party {
    #[serde(skip)]
    pub(crate) identity: String,
    #[serde(skip)]
    pub(crate) mode: Mode,
    /// The start of the identity.
    pub(crate) id: String,
    /// The mode, in words.
    pub(crate) kind: String,
    /// `user@host pid`.
    pub(crate) who: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    /// The first characters of its command line.
    pub(crate) command: Option<String>,
    pub(crate) note: Option<String>,
    #[serde(serialize_with = "time::optional")]
    pub(crate) since: Option<SystemTime>,
    /// The poll that first saw it.
    #[serde(serialize_with = "time::plain")]
    pub(crate) seen: SystemTime,
    #[serde(serialize_with = "time::optional")]
    pub(crate) lease_ends: Option<SystemTime>,
    /// The longest lease seen so far, in seconds: the store reports only what is left.
    pub(crate) lease: Option<f64>,
    pub(crate) fence: Option<u64>,
    pub(crate) slots: Vec<u32>,
    /// Whether a holder has released the lock and keeps it.
    pub(crate) kept: bool,
}

/// A lease end that moved by less than this was not renewed: clocks and network jitter.
const JITTER: Duration = Duration::from_millis(500);

/// How many characters of a note or a name are kept.
const MOST_TEXT: usize = 256;

impl Lock {
    /// The result of a poll, combined with that of the previous one (`before`).
    pub(crate) fn seen(
        engine: &EngineName,
        snapshot: Snapshot,
        before: Option<&Lock>,
        now: SystemTime,
    ) -> Self {
        let party = |entry, known: Option<&Vec<Party>>| {
            let mut party = Party::new(entry, now);
            let same = |old: &&Party| old.identity == party.identity && old.mode == party.mode;
            if let Some(old) = known.into_iter().flatten().find(same) {
                party.carry_over(old);
            }
            party
        };
        let known = before.map(|lock| &lock.holders);
        let holders = snapshot.holders.into_iter().map(|entry| party(entry, known)).collect();
        let known = before.and_then(|lock| lock.waiters.as_ref());
        let waiters = snapshot
            .waiters
            .map(|waiters| waiters.into_iter().map(|entry| party(entry, known)).collect());
        Self {
            engine: engine.clone(),
            key: snapshot.key.to_string(),
            fence: snapshot.fence.map(|fence| fence.get()),
            looked: now,
            holders,
            waiters,
            unknown: snapshot.unknown,
        }
    }

    /// The known waiters.
    pub(crate) fn waiting(&self) -> &[Party] {
        self.waiters.as_deref().unwrap_or_default()
    }
}

impl Party {
    pub(crate) fn new(entry: Entry, now: SystemTime) -> Self {
        let who = entry.who.map(bounded);
        let (host, pid) = who.as_deref().map_or((None, None), host_and_pid);
        Self {
            id: entry.identity.chars().take(8).collect(),
            identity: entry.identity,
            mode: entry.mode,
            kind: entry.mode.to_string(),
            host,
            pid,
            who,
            command: entry.command.map(bounded),
            note: entry.note.map(bounded),
            since: entry.since,
            seen: now,
            lease_ends: entry.left.map(|left| now + left),
            lease: entry.left.map(|left| left.as_secs_f64()),
            fence: entry.fence.map(|fence| fence.get()),
            slots: entry.slots,
            kept: entry.kept,
        }
    }

    fn carry_over(&mut self, old: &Party) {
        self.seen = old.seen;
        self.lease = self.lease.map(|lease| lease.max(old.lease.unwrap_or(0.0)));
        if let (Some(new), Some(old)) = (self.lease_ends, old.lease_ends)
            && new.max(old).duration_since(new.min(old)).is_ok_and(|moved| moved < JITTER)
        {
            self.lease_ends = Some(old);
        }
    }

    /// When it started to hold or to wait, as far as is known. No later than it was first seen.
    pub(crate) fn began(&self) -> SystemTime {
        self.since.unwrap_or(self.seen).min(self.seen)
    }

    /// For people, and to distinguish processes.
    pub(crate) fn name(&self) -> String {
        self.who.clone().unwrap_or_else(|| format!("{}…", self.id))
    }
}

/// Text from others, truncated to a length that can be kept a hundred thousand times.
fn bounded(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MOST_TEXT) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Splits what [`lockkeeper::whoami`] returns. Other clients may write anything.
fn host_and_pid(who: &str) -> (Option<String>, Option<u32>) {
    let (place, pid) = match who.rsplit_once(' ') {
        Some((place, pid)) => (place, pid.parse().ok()),
        None => (who, None),
    };
    let host = place.rsplit_once('@').map(|(_, host)| host.to_owned());
    (host, pid)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lockkeeper::Key;

    /// A moment, in seconds after some other.
    pub(crate) fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    pub(crate) fn entry(who: &str, mode: Mode, left: Option<u64>) -> Entry {
        let mut entry = Entry::new(format!("secret identity of {who}"), mode);
        entry.who = Some(who.to_owned());
        entry.left = left.map(Duration::from_secs);
        entry
    }

    /// What a store shows of a mutex with leases of 30 s.
    pub(crate) fn snapshot(key: &str, holders: &[&str], waiters: &[&str]) -> Snapshot {
        let mutex = |who: &&str, left| entry(who, Mode::Mutex, left);
        let mut snapshot = Snapshot::new(Key::new(key).unwrap());
        snapshot.holders = holders.iter().map(|who| mutex(who, Some(30))).collect();
        snapshot.waiters = Some(waiters.iter().map(|who| mutex(who, None)).collect());
        snapshot
    }

    pub(crate) fn lock(key: &str, holders: &[&str], waiters: &[&str]) -> Lock {
        Lock::seen(&EngineName::from("e".to_owned()), snapshot(key, holders, waiters), None, at(0))
    }

    #[test]
    fn who_is_taken_apart_where_it_can_be() {
        assert_eq!(host_and_pid("bob@h 12"), (Some("h".to_owned()), Some(12)));
        assert_eq!(host_and_pid("a@b@h 12"), (Some("h".to_owned()), Some(12)));
        assert_eq!(host_and_pid("bob"), (None, None));
        assert_eq!(host_and_pid("some words @ x"), (Some(String::new()), None));
    }

    #[test]
    fn a_lease_is_as_long_as_it_was_ever_seen_and_jitter_is_no_renewal() {
        let look = |left, before: Option<&Lock>, now| {
            let mut snapshot = snapshot("k", &[], &[]);
            snapshot.holders = vec![entry("a@h 1", Mode::Mutex, Some(left))];
            Lock::seen(&EngineName::from("e".to_owned()), snapshot, before, now)
        };
        let first = look(29, None, at(0));
        let second = look(27, Some(&first), at(2) + Duration::from_millis(3));
        assert_eq!(second.holders[0].lease, Some(29.0));
        assert_eq!(second.holders[0].lease_ends, Some(at(29)));
        assert_eq!(second.holders[0].seen, at(0));
        let renewed = look(30, Some(&second), at(4));
        assert_eq!(renewed.holders[0].lease_ends, Some(at(34)));
    }

    #[test]
    fn the_whole_identity_is_not_written_out() {
        let shown = serde_json::to_string(&lock("k", &["a@h 1"], &[]).holders[0]).unwrap();
        assert!(shown.contains("\"id\":\"secret i\"") && !shown.contains("identity of"), "{shown}");
    }
}
