//! Which keys of the store belong to which lock.
//!
//! A place in line is `NAME/LEASE`, the lease in hexadecimal: the layout of etcd's own clients, so that
//! they and we exclude each other. What only we need lies outside of every line, in keys without a slash.
//!
//! Easy to get wrong: `a/b/77` is in the range of `a/`, but not in the line of `a`. Only what is left
//! after the *last* slash is the lease.

use etcd_client::KeyValue;

use crate::key::Key;

/// Everything between two keys, the second one excluded.
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

    /// The place in line that a lease stands for.
    pub(super) fn seat(&self, key: &Key, lease: i64) -> Vec<u8> {
        format!("{}{key}/{lease:x}", self.prefix).into_bytes()
    }

    /// The line of a lock, together with the lines of all locks nested in it.
    pub(super) fn line(&self, key: &Key) -> Range {
        // The slash is followed by the zero.
        (format!("{}{key}/", self.prefix).into_bytes(), format!("{}{key}0", self.prefix).into())
    }

    /// Every key that a lock whose name starts so can have.
    pub(super) fn starting_with(&self, prefix: &str) -> Range {
        let start = format!("{}{prefix}", self.prefix).into_bytes();
        let end = end_of_prefix(&start);
        // A range cannot start with the empty key.
        (if start.is_empty() { vec![0] } else { start }, end)
    }

    /// Whose last change is the fence of the last writer, which readers carry.
    pub(super) fn written(&self, key: &Key) -> Vec<u8> {
        format!("{}lockkeeper.written:{}", self.prefix, escaped(key)).into_bytes()
    }

    /// What is never there, to be asked for.
    pub(super) fn greeting(&self) -> Vec<u8> {
        format!("{}lockkeeper.greeting", self.prefix).into_bytes()
    }

    /// The permits that are taken of a semaphore, one key each.
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

    /// Which lock a stored key is a place in line for, if it is one at all.
    pub(super) fn lock_of(&self, stored: &KeyValue) -> Option<Key> {
        let text = stored.key_str().ok()?.strip_prefix(&self.prefix)?;
        let (name, lease) = text.rsplit_once('/')?;
        let is_seat = stored.lease() != 0 && lease == format!("{:x}", stored.lease());
        is_seat.then(|| Key::new(name).ok()).flatten()
    }
}

/// A name without slashes and colons.
fn escaped(key: &Key) -> String {
    key.as_str().replace('%', "%25").replace('/', "%2F").replace(':', "%3A")
}

/// The first key that does not start so; a single zero byte means that there is none.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn a_place_in_line_is_named_as_etcds_own_clients_name_it() {
        let names = KeyNames::new(String::new());
        assert_eq!(names.seat(&key("foo"), 0x1eeea1e0a4523315), b"foo/1eeea1e0a4523315");
        let names = KeyNames::new("locks/".to_owned());
        assert_eq!(names.seat(&key("a/b"), 10), b"locks/a/b/a");
    }

    #[test]
    fn a_line_holds_its_places_and_no_others_but_nested_ones() {
        let names = KeyNames::new(String::new());
        let (start, end) = names.line(&key("a"));
        let inside =
            |name: &str| names.seat(&key(name), 7) >= start && names.seat(&key(name), 7) < end;
        assert!(inside("a") && inside("a/b") && inside("a//"));
        assert!(!inside("ab") && !inside("a ") && !inside("a0") && !inside("A"));
    }

    #[test]
    fn keys_beside_the_line_are_in_nobodys_line() {
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
}
