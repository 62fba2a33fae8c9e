//! Identities: an explicit owner for re-entrance, a token for every claim.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// An identity for which a lock is re-entrant.
///
/// Re-entrance is never bound to a thread or a task: any code that has the `Owner` may re-enter. If
/// others can access the store, treat the id as a secret: anyone who knows it can re-enter.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// Creates a random, unique owner.
    pub fn new() -> Self {
        Self(Token::fresh().to_string().into())
    }

    /// Creates an owner with an id of your choice, for instance to re-enter from another process.
    ///
    /// # Errors
    /// [`Error::Config`] unless the id is 1 to 128 visible ASCII characters.
    pub fn named(id: impl AsRef<str>) -> Result<Self> {
        let id = id.as_ref();
        if id.is_empty() || id.len() > 128 || !id.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::Config(format!(
                "{id:?} is not an owner id; one is 1 to 128 visible ASCII characters"
            )));
        }
        Ok(Self(id.into()))
    }

    /// The id, as it appears in the store and in the command's environment.
    pub fn id(&self) -> &str {
        &self.0
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Owner {
    /// Prints only the start: the whole id is a bearer secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({}…)", self.0.chars().take(8).collect::<String>())
    }
}

/// Identifies one claim. It is chosen before the first request is sent, so that a claim can
/// recognise its own grant after a lost reply.
///
/// 128 random bits per source and a counter, printed as `<uuid>:<n>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    source: u128,
    n: u64,
}

impl Token {
    /// Creates a unique token. The core creates tokens itself; this is for tests of engines.
    pub fn fresh() -> Self {
        TokenSource::new().next()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Formatted by hand into one buffer, because every acquire and release needs it.
        let mut text = [b'-'; 36 + 1 + 20];
        let mut at = 0;
        for (n, byte) in self.source.to_be_bytes().into_iter().enumerate() {
            at += usize::from(matches!(n, 4 | 6 | 8 | 10));
            text[at] = b"0123456789abcdef"[usize::from(byte >> 4)];
            text[at + 1] = b"0123456789abcdef"[usize::from(byte & 15)];
            at += 2;
        }
        text[at] = b':';
        let digits = self.n.checked_ilog10().unwrap_or(0) as usize + 1;
        let mut rest = self.n;
        for digit in text[at + 1..][..digits].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let text = &text[..at + 1 + digits];
        f.write_str(std::str::from_utf8(text).expect("digits, a colon and dashes are ASCII"))
    }
}

impl fmt::Debug for Token {
    /// Prints only the start and the number: the whole token is a bearer secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:08x}…:{})", self.source >> 96, self.n)
    }
}

/// Creates tokens without a system call for random bits each time.
///
/// Easy to get wrong: a forked process inherits it and would create the same tokens. So every
/// client has its own source, and is refused in a process that did not create it.
#[derive(Debug)]
pub(crate) struct TokenSource {
    source: u128,
    next: AtomicU64,
}

impl TokenSource {
    pub(crate) fn new() -> Self {
        Self { source: random(), next: AtomicU64::new(1) }
    }

    pub(crate) fn next(&self) -> Token {
        Token { source: self.source, n: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

/// Unique random bits, even in a process that was forked a moment ago.
pub(crate) fn random() -> u128 {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).expect("the operating system gives random bits");
    u128::from_le_bytes(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_does_not_show_the_secret() {
        let owner = Owner::new();
        assert!(!format!("{owner:?}").contains(owner.id()));
        let token = Token::fresh();
        assert!(!format!("{token:?}").contains(&token.to_string()));
    }

    #[test]
    fn owner_ids_are_visible_ascii() {
        assert!(Owner::named("build-7").is_ok());
        for bad in ["", "a b", "é", &"x".repeat(129)] {
            assert!(Owner::named(bad).unwrap_err().to_string().contains("visible ASCII"));
        }
    }

    #[test]
    fn a_token_looks_like_a_uuid_and_a_number() {
        let token = Token { source: 0x0d1c_89ab_cdef_4000_8000_0123_4567_89af, n: 57 };
        assert_eq!(token.to_string(), "0d1c89ab-cdef-4000-8000-0123456789af:57");
        for n in [0, 9, 10, u64::MAX] {
            let token = Token { source: 0, n };
            assert_eq!(token.to_string(), format!("00000000-0000-0000-0000-000000000000:{n}"));
        }
    }

    #[test]
    fn tokens_and_owners_are_unique() {
        assert_ne!(Token::fresh(), Token::fresh());
        assert_ne!(Owner::new(), Owner::new());
    }
}
