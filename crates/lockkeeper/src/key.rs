//! The name of a lock, checked once.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters, case-sensitive.
///
/// Two different keys never share a lock on any engine, and `a` is independent of `a/b`: keys are
/// compared byte by byte, and no character has a special meaning. (`é` as one code point and `é` as
/// `e` with a combining accent are two keys.)
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key, in bytes.
    pub const MAX: usize = 512;

    /// Validates a name.
    ///
    /// # Errors
    /// [`Error::Key`], with a message that says what is wrong.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        let refuse = |what: &str| {
            Err(Error::Key(format!(
                "{what}; a key is 1 to {} bytes of UTF-8 without control characters",
                Self::MAX
            )))
        };
        if name.is_empty() {
            return refuse("the key is empty");
        }
        if name.len() > Self::MAX {
            return refuse(&format!("the key has {} bytes", name.len()));
        }
        if let Some(bad) = name.chars().find(|c| c.is_control()) {
            return refuse(&format!("the key contains the control character {bad:?}"));
        }
        Ok(Self(name.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::str::FromStr for Key {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_documentation() {
        assert!(Key::new("a").is_ok());
        assert!(Key::new("x".repeat(512)).is_ok());
        assert!(Key::new("orders/42 ; -- 'é' {tag} * ../ \u{202e}").is_ok());
        for bad in ["", "a\nb", "a\0", "\u{7f}", "\u{85}", &"x".repeat(513)] {
            let message = Key::new(bad).unwrap_err().to_string();
            assert!(message.contains("1 to 512 bytes"), "{message}");
        }
    }
}
