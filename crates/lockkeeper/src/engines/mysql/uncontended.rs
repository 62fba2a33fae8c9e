//! What a client knows of locks that nobody else wants: those are taken by one statement, and given back
//! by another that waits for no disk.
//!
//! A holder that is alone is told in the lock's own row. It stays there until somebody else comes, which
//! does not matter here, or until it is renewed, which puts a copy of it into the line. What is then left
//! of it in two places is for a procedure to remove.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::key::Key;
use crate::owner::Token;

/// So many keys are remembered, and then forgotten all at once: forgetting only costs time.
const KEYS: usize = 10_000;

/// The locks that this client holds alone, and those that it gave back.
#[derive(Debug, Default)]
pub(super) struct Uncontended(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Whether it may have been renewed, of each that was put into the lock's own row.
    held: HashMap<Token, bool>,
    /// Who of us had the key last.
    freed: HashMap<Key, Token>,
}

impl Uncontended {
    /// A lock was given, in its own row.
    pub(super) fn took(&self, token: Token) {
        self.known().held.insert(token, false);
    }

    /// A renewal is about to be sent. Says whether the lock may have to be copied to the line.
    pub(super) fn renewing(&self, token: Token) -> bool {
        self.known().held.get_mut(&token).is_some_and(|renewed| {
            *renewed = true;
            true
        })
    }

    /// The lock is in the line, or nowhere. Says whether it was in its own row alone until now.
    pub(super) fn forget(&self, token: Token) -> bool {
        self.known().held.remove(&token) == Some(false)
    }

    /// A lock that was in its own row alone was given back.
    pub(super) fn gave_back(&self, key: &Key, token: Token) {
        let freed = &mut self.known().freed;
        if freed.len() >= KEYS {
            freed.clear();
        }
        freed.insert(key.clone(), token);
    }

    /// Who gave the key back, if that was one of us: unless somebody else came since, the lock's row
    /// still names that one. Told once.
    pub(super) fn last(&self, key: &Key) -> Option<Token> {
        self.known().freed.remove(key)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_renewed_is_not_alone_in_its_row() {
        let (alone, token) = (Uncontended::default(), Token::fresh());
        assert!(!alone.renewing(token), "never taken");
        alone.took(token);
        assert!(alone.forget(token));
        alone.took(token);
        assert!(alone.renewing(token) && alone.renewing(token), "the first may have got lost");
        assert!(!alone.forget(token));
    }

    #[test]
    fn keys_are_not_remembered_for_ever() {
        let (alone, token) = (Uncontended::default(), Token::fresh());
        for n in 0..=KEYS {
            alone.gave_back(&Key::new(n.to_string()).unwrap(), token);
        }
        assert_eq!(alone.last(&Key::new("0").unwrap()), None);
        let last = Key::new(KEYS.to_string()).unwrap();
        assert_eq!((alone.last(&last), alone.last(&last)), (Some(token), None));
    }
}
