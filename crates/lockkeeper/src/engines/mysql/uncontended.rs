//! What a client knows about uncontended locks: those are acquired by one statement, and released
//! by another that does not wait for the disk.
//!
//! An uncontended holder is recorded in the lock's own row. It stays there until another client
//! arrives, which does not matter here, or until it is renewed, which copies it into the queue. If
//! it is in two places, a procedure has to remove both.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::engine::Held;
use crate::key::Key;
use crate::owner::Token;

/// This many keys are remembered, and then forgotten all at once: forgetting only costs time.
const KEYS: usize = 10_000;

/// Which of our claims last had a key, for keys that we released.
#[derive(Debug, Default)]
pub(super) struct Uncontended(Mutex<HashMap<Key, Token>>);

impl Uncontended {
    /// A lock that was only in its own row was released.
    pub(super) fn gave_back(&self, key: &Key, token: Token) {
        let mut freed = self.freed();
        if freed.len() >= KEYS {
            freed.clear();
        }
        freed.insert(key.clone(), token);
    }

    /// Which of our claims released the key: unless another client came since, the lock's row still
    /// names it. Returned once.
    pub(super) fn last(&self, key: &Key) -> Option<Token> {
        self.freed().remove(key)
    }

    fn freed(&self) -> MutexGuard<'_, HashMap<Key, Token>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

/// Where a granted lease is, as far as the client knows.
#[derive(Debug)]
pub(super) struct LeaseHeld(Mutex<Location>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    /// Only in the lock's own row.
    Row,
    /// There, and perhaps in the queue too: a renewal was sent.
    RowOrQueue,
    Queue,
}

impl Held for LeaseHeld {}

impl LeaseHeld {
    pub(super) fn new(in_row: bool) -> Self {
        Self(Mutex::new(if in_row { Location::Row } else { Location::Queue }))
    }

    /// A renewal is about to be sent. Returns whether the lease may have to be copied to the queue.
    pub(super) fn begin_renewal(&self) -> bool {
        let mut location = self.location();
        if *location == Location::Row {
            *location = Location::RowOrQueue;
        }
        *location != Location::Queue
    }

    /// The lease is in the queue, or nowhere. Returns whether it was only in its own row until now.
    pub(super) fn leave_row(&self) -> bool {
        std::mem::replace(&mut *self.location(), Location::Queue) == Location::Row
    }

    fn location(&self) -> MutexGuard<'_, Location> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_renewed_is_not_alone_in_its_row() {
        assert!(!LeaseHeld::new(false).begin_renewal(), "it was never there");
        assert!(LeaseHeld::new(true).leave_row());
        let held = LeaseHeld::new(true);
        assert!(held.begin_renewal() && held.begin_renewal(), "the first may have got lost");
        assert!(!held.leave_row());
        assert!(!held.begin_renewal());
    }

    #[test]
    fn keys_are_not_remembered_forever() {
        let (alone, token) = (Uncontended::default(), Token::fresh());
        for n in 0..=KEYS {
            alone.gave_back(&Key::new(n.to_string()).unwrap(), token);
        }
        assert_eq!(alone.last(&Key::new("0").unwrap()), None);
        let last = Key::new(KEYS.to_string()).unwrap();
        assert_eq!((alone.last(&last), alone.last(&last)), (Some(token), None));
    }
}
