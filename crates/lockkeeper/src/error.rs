//! The errors a caller branches on.
//!
//! "Busy" is not among them: `try_acquire` answers `Ok(None)`.
//! "I do not know" is never reported as "no": an engine that cannot be asked is [`Error::Engine`].

use std::error::Error as StdError;
use std::time::Duration;

use crate::key::Key;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something a caller would handle differently from the other variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was busy for the whole of the time that the caller was ready to wait.
    #[error("lock {key:?} was still busy after {}", humantime::format_duration(*.waited))]
    Timeout {
        /// The lock that was waited for.
        key: Key,
        /// How long the caller waited.
        waited: Duration,
    },

    /// The lock was held and is not any more, or nobody can vouch for it.
    #[error("lock {key:?} is lost: {reason}")]
    Lost {
        /// The lock that was held.
        key: Key,
        /// Why it is not held any more.
        reason: Loss,
    },

    /// The engine cannot do this honestly. Refused before any I/O.
    #[error("{engine} cannot do this: {what}")]
    Unsupported {
        /// The engine that was asked.
        engine: &'static str,
        /// What was asked for, why it is refused, and what would be accepted.
        what: String,
    },

    /// A URL, option, key or duration that makes no sense. Says what would be accepted.
    #[error("{0}")]
    Config(String),

    /// The key holds another kind of thing than the one asked for.
    #[error("lock {key:?} is in use as something else: {found}")]
    Conflict {
        /// The key that was asked for.
        key: Key,
        /// What is there, and what was asked for.
        found: String,
    },

    /// The engine failed or could not be reached.
    #[error("{engine}: cannot {doing}: {source}")]
    Engine {
        /// The engine that failed.
        engine: &'static str,
        /// What was being done, and to which key.
        doing: String,
        /// Whether the same call may succeed later.
        retryable: bool,
        /// The cause, as the engine's client reported it.
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Error {
    /// Whether the same call may succeed later without anyone changing anything.
    ///
    /// A [`Timeout`](Error::Timeout) is retryable; so is an engine that could not be reached.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Timeout { .. } => true,
            Error::Engine { retryable, .. } => *retryable,
            _ => false,
        }
    }

    /// An engine's failure that may pass: a connection lost, a reply that never came.
    pub fn unreachable(
        engine: &'static str,
        doing: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Error::Engine { engine, doing: doing.into(), retryable: true, source: source.into() }
    }

    /// An engine's failure that trying again will not cure: permissions, a full disk, garbage.
    pub fn broken(
        engine: &'static str,
        doing: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Error::Engine { engine, doing: doing.into(), retryable: false, source: source.into() }
    }
}

/// Why a lock that was held is not held any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ran out by the local clock: no renewal was confirmed in time.
    #[error("its lease ran out without a confirmed renewal")]
    Expired,
    /// A fixed lease reached its end, as asked.
    #[error("its fixed lease ended")]
    Ended,
    /// The engine says positively that the lock is not ours.
    #[error("the engine says that it is no longer ours")]
    Gone,
    /// The engine lost the connection, session or file that the lock was bound to.
    #[error("the engine can no longer vouch for it: {0}")]
    Disconnected(String),
    /// The guard was released.
    #[error("it was released")]
    Released,
}
