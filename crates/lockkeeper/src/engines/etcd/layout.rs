//! What is stored: which keys belong to which lock, and what an entry says about its claim.
//!
//! An entry in the queue is `NAME/LEASE`, with the lease in hexadecimal: the layout of etcd's own
//! clients, so that they and we exclude each other. They leave the value empty; ours is a
//! [`Record`]. Everything else is in keys without a slash, outside of every queue.
//!
//! Easy to get wrong: `a/b/77` is in the range of `a/`, but not in the queue of `a`. Only the part
//! after the *last* slash is the lease.

use std::time::{Duration, SystemTime};

use super::client::KeyValue;
use crate::core::admission;
use crate::engine::{Fence, Mode, Request, YieldRequest};
use crate::error::{Error, Result};
use crate::key::Key;

/// All keys from the first to the second, which is excluded.
pub(super) type Range = (Vec<u8>, Vec<u8>);

/// The names of keys under one prefix.
#[derive(Debug, Clone)]
pub(super) struct KeyNames {
    prefix: String,
}

impl KeyNames {
    pub(super) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// The entry that is attached to a lease.
    pub(super) fn entry(&self, key: &Key, lease: i64) -> Vec<u8> {
        format!("{}{key}/{lease:x}", self.prefix).into_bytes()
    }

    /// The queue of a lock, together with the queues of all locks nested in it.
    pub(super) fn queue(&self, key: &Key) -> Range {
        // The character after the slash is the zero.
        (format!("{}{key}/", self.prefix).into_bytes(), format!("{}{key}0", self.prefix).into())
    }

    /// Every key that a lock with this prefix can have.
    pub(super) fn starting_with(&self, prefix: &str) -> Range {
        let start = format!("{}{prefix}", self.prefix).into_bytes();
        let end = end_of_prefix(&start);
        // A range cannot start with the empty key.
        (if start.is_empty() { vec![0] } else { start }, end)
    }

    /// The key whose last change is the fence of the last writer, which readers carry.
    pub(super) fn written(&self, key: &Key) -> Vec<u8> {
        format!("{}lockkeeper.written:{}", self.prefix, escaped(key)).into_bytes()
    }

    /// A key that never exists, for a request without effect.
    pub(super) fn greeting(&self) -> Vec<u8> {
        format!("{}lockkeeper.greeting", self.prefix).into_bytes()
    }

    /// The key that lists the last locks that were broken.
    pub(super) fn broken(&self) -> Vec<u8> {
        format!("{}lockkeeper.broken", self.prefix).into_bytes()
    }

    /// The permits of a semaphore that are taken, one key each.
    pub(super) fn slots(&self, key: &Key) -> Range {
        let start = format!("{}lockkeeper.slot:{}:", self.prefix, escaped(key)).into_bytes();
        let end = end_of_prefix(&start);
        (start, end)
    }

    /// One permit of a semaphore.
    pub(super) fn slot(&self, key: &Key, number: u32) -> Vec<u8> {
        let (mut slot, _) = self.slots(key);
        slot.extend_from_slice(number.to_string().as_bytes());
        slot
    }

    /// The lock that a stored key is an entry of, if it is one at all.
    pub(super) fn lock_of(&self, stored: &KeyValue) -> Option<Key> {
        let text = std::str::from_utf8(&stored.key).ok()?.strip_prefix(&self.prefix)?;
        let (name, lease) = text.rsplit_once('/')?;
        let is_entry = stored.lease != 0 && lease == format!("{:x}", stored.lease);
        is_entry.then(|| Key::new(name).ok()).flatten()
    }
}

/// A name without slashes and colons.
fn escaped(key: &Key) -> String {
    key.as_str().replace('%', "%25").replace('/', "%2F").replace(':', "%3A")
}

/// The first key that does not have this prefix; a single zero byte means that there is none.
fn end_of_prefix(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// An entry in a queue.
#[derive(Debug, Clone)]
pub(super) struct QueueEntry {
    /// The key as it is stored.
    pub(super) name: Vec<u8>,
    pub(super) lease: i64,
    /// The create revision: unique, and higher than those ahead.
    pub(super) created: i64,
    /// The revision of its last change.
    pub(super) changed: i64,
    /// `None` for a key that is named like an entry, but holds something else.
    pub(super) record: Option<Record>,
}

impl QueueEntry {
    pub(super) fn read(stored: &KeyValue) -> Self {
        Self {
            name: stored.key.clone(),
            lease: stored.lease,
            created: stored.create_revision,
            changed: stored.mod_revision,
            record: Record::read(&stored.value),
        }
    }

    /// Something that is not a lock excludes everything.
    pub(super) fn mode(&self) -> Mode {
        self.record.as_ref().map_or(Mode::Mutex, |record| record.mode)
    }

    /// Whether it may be in one queue with a claim of this mode. A mutex has its own fence and
    /// readers carry that of the last writer, so those two do not mix.
    pub(super) fn mixes(&self, mode: Mode) -> bool {
        let found = self.mode();
        self.record.is_some()
            && admission::mixes(mode, found)
            && (mode == Mode::Mutex) == (found == Mode::Mutex)
    }
}

/// The queue of a lock, in order, among the keys in its range.
pub(super) fn queue_of(names: &KeyNames, key: &Key, stored: &[KeyValue]) -> Vec<QueueEntry> {
    let ours = stored.iter().filter(|stored| names.lock_of(stored).as_ref() == Some(key));
    let mut queue: Vec<_> = ours.map(QueueEntry::read).collect();
    queue.sort_by_key(|entry| entry.created);
    queue
}

/// Refuses a mode that does not mix with the head of the queue, and any mode next to other data.
pub(super) fn refuse_mix(request: &Request, queue: &[QueueEntry]) -> Result<()> {
    refuse_data(&request.key, queue)?;
    match queue.first() {
        Some(first) if !first.mixes(request.mode) => Err(request.conflict(first.mode())),
        _ => Ok(()),
    }
}

/// Refuses a queue that contains something that is not a lock.
pub(super) fn refuse_data(key: &Key, queue: &[QueueEntry]) -> Result<()> {
    let Some(data) = queue.iter().find(|entry| entry.record.is_none()) else { return Ok(()) };
    let name = String::from_utf8_lossy(&data.name);
    Err(Error::Conflict {
        key: key.clone(),
        found: format!("{name:?} holds data that is not a lock"),
    })
}

/// A permit that is taken.
pub(super) struct Slot {
    pub(super) number: u32,
    pub(super) lease: i64,
    /// The create revision, which is the fence.
    pub(super) created: i64,
}

impl Slot {
    pub(super) fn read(stored: &KeyValue) -> Option<Self> {
        let number = std::str::from_utf8(&stored.key).ok()?.rsplit_once(':')?.1.parse().ok()?;
        Some(Self { number, lease: stored.lease, created: stored.create_revision })
    }
}

pub(super) fn fence(revision: i64) -> Fence {
    Fence::new(u64::try_from(revision).unwrap_or_default())
}

/// The prefix of our values.
const MAGIC: &str = "lockkeeper ";

/// Who created an entry, how and why. Text, so that `etcdctl get` shows it; the note comes last and
/// may contain anything.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    pub(super) mode: Mode,
    pub(super) who: Option<String>,
    pub(super) note: Option<String>,
    /// By the wall clock of its machine.
    pub(super) since: Option<SystemTime>,
    /// The request to give way.
    pub(super) asked: Option<YieldRequest>,
}

impl Record {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            mode: request.mode,
            who: Some(request.who.to_string()),
            note: request.note.as_deref().map(str::to_owned),
            since: Some(SystemTime::now()),
            asked: None,
        }
    }

    /// The value as it is stored.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{MAGIC}{}\n", mode_text(self.mode));
        if let Some(who) = &self.who {
            text += &format!("who {who}\n");
        }
        if let Some(since) = self.since.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok())
        {
            text += &format!("since {}\n", since.as_millis());
        }
        if let Some(asked) = &self.asked {
            text += &format!("asked {}\n", asked.line());
        }
        if let Some(note) = &self.note {
            text += &format!("note {note}\n");
        }
        text
    }

    /// Parses a value: ours, or an empty one, which is a mutex of etcd's own clients. `None` for
    /// other data.
    pub(super) fn read(stored: &[u8]) -> Option<Self> {
        let mut record =
            Self { mode: Mode::Mutex, who: None, note: None, since: None, asked: None };
        if stored.is_empty() {
            return Some(record);
        }
        let text = std::str::from_utf8(stored).ok()?;
        let (mode, mut rest) = text.strip_prefix(MAGIC)?.split_once('\n')?;
        record.mode = read_mode(mode)?;
        while let Some((word, _)) = rest.split_once(' ') {
            if word == "note" {
                let note = &rest[word.len() + 1..];
                record.note = Some(note.strip_suffix('\n').unwrap_or(note).to_owned());
                break;
            }
            let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
            let value = line.get(word.len() + 1..).unwrap_or_default();
            match word {
                "who" => record.who = Some(value.to_owned()),
                "since" => {
                    let since = value.parse().ok().map(Duration::from_millis);
                    record.since = since.and_then(|s| SystemTime::UNIX_EPOCH.checked_add(s));
                }
                "asked" => record.asked = Some(YieldRequest::parse(value)),
                // A later version may add lines.
                _ => {}
            }
            rest = after;
        }
        Some(record)
    }
}

fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Permits { take, limit } => format!("permits {take} of {limit}"),
        other => other.kind().to_owned(),
    }
}

fn read_mode(text: &str) -> Option<Mode> {
    match text {
        "mutex" => Some(Mode::Mutex),
        "write" => Some(Mode::Write),
        "read" => Some(Mode::Read),
        other => {
            let (take, limit) = other.strip_prefix("permits ")?.split_once(" of ")?;
            Some(Mode::Permits { take: take.parse().ok()?, limit: limit.parse().ok()? })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn an_entry_is_named_as_etcds_own_clients_name_it() {
        let names = KeyNames::new(String::new());
        assert_eq!(names.entry(&key("foo"), 0x1eeea1e0a4523315), b"foo/1eeea1e0a4523315");
        let names = KeyNames::new("locks/".to_owned());
        assert_eq!(names.entry(&key("a/b"), 10), b"locks/a/b/a");
    }

    #[test]
    fn a_queue_holds_its_entries_and_no_others_but_nested_ones() {
        let names = KeyNames::new(String::new());
        let (start, end) = names.queue(&key("a"));
        let inside =
            |name: &str| names.entry(&key(name), 7) >= start && names.entry(&key(name), 7) < end;
        assert!(inside("a") && inside("a/b") && inside("a//"));
        assert!(!inside("ab") && !inside("a ") && !inside("a0") && !inside("A"));
    }

    #[test]
    fn keys_next_to_a_queue_are_in_no_queue() {
        let names = KeyNames::new(String::new());
        for name in ["a", "a/b", "a:b", "a%2Fb", "/"] {
            for beside in [names.written(&key(name)), names.slot(&key(name), 3)] {
                assert!(!beside.contains(&b'/'), "{name}");
            }
        }
        let (start, end) = names.slots(&key("a"));
        let slot = |name: &str| names.slot(&key(name), 1);
        assert!(slot("a") >= start && slot("a") < end);
        assert!(!(slot("a:1") >= start && slot("a:1") < end));
    }

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_that_does_not_start_so() {
        assert_eq!(end_of_prefix(b"a"), b"b");
        assert_eq!(end_of_prefix(b"a\xff"), b"b");
        assert_eq!(end_of_prefix(b""), [0]);
    }

    #[test]
    fn what_others_leave_empty_is_a_mutex_and_other_data_is_not() {
        assert_eq!(Record::read(b"").map(|record| record.mode), Some(Mode::Mutex));
        for data in [&b"hello"[..], b"\xff\xfe", b"lockkeeper", b"lockkeeper tower\nwho me\n"] {
            assert_eq!(Record::read(data), None);
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(
            mode in prop_oneof![
                Just(Mode::Mutex), Just(Mode::Write), Just(Mode::Read),
                (1u32.., 1u32..).prop_map(|(take, limit)| Mode::Permits { take, limit }),
            ],
            who in prop::option::of("[a-z]{1,9}@[a-z]{1,9} [0-9]{1,6}"),
            note in prop::option::of(any::<String>()),
            since in prop::option::of(0u64..4_000_000_000_000),
            asked in prop::option::of(("[a-z]{1,9}@[a-z]{1,9} [0-9]{1,6}", prop::option::of("[a-z]{1,9}"))),
        ) {
            let since = since.map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
            let asked = asked.map(|(by, why)| YieldRequest::new(&by, why.as_deref()));
            let record = Record { mode, who, note, since, asked };
            prop_assert_eq!(Record::read(record.text().as_bytes()), Some(record));
        }

        #[test]
        fn garbage_is_read_without_a_panic(bytes in any::<Vec<u8>>(), tail in any::<String>()) {
            Record::read(&bytes);
            Record::read(format!("lockkeeper mutex\n{tail}").as_bytes());
        }
    }
}
