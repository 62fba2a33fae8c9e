//! The errors a caller branches on.
//!
//! "Busy" is not among them: `try_acquire` answers `Ok(None)`.
//! "I do not know" is never reported as "no": an engine that cannot be asked is [`Error::Engine`].

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::key::Key;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something a caller would handle differently from the other variants.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The lock was busy for the whole of the time that the caller was ready to wait.
    #[non_exhaustive]
    Timeout {
        /// The lock that was waited for.
        key: Key,
        /// How long the caller waited.
        waited: Duration,
    },

    /// The lock was held and is not any more, or nobody can vouch for it.
    #[non_exhaustive]
    Lost {
        /// The lock that was held.
        key: Key,
        /// Why it is not held any more.
        reason: Loss,
    },

    /// The work of a `run` ended, but the lock was lost before its end, so that others may have been in
    /// meanwhile. Unlike [`Lost`](Error::Lost), all of the work was done.
    #[non_exhaustive]
    Late {
        /// The lock that was held.
        key: Key,
        /// Why it is not held any more.
        reason: Loss,
    },

    /// The client is shutting down: [`Client::shutdown`](crate::Client::shutdown) was called.
    Shutdown,

    /// The engine cannot do this honestly. Refused before any I/O.
    #[non_exhaustive]
    Unsupported {
        /// The engine that was asked.
        engine: &'static str,
        /// What was asked for, why it is refused, and what would be accepted.
        what: String,
    },

    /// A name that cannot be a key. Says what would be accepted.
    Key(String),

    /// A URL, or one of its options, that is not understood. Says what would be accepted.
    Url(String),

    /// A setting that makes no sense: a duration, a number of permits, an owner, a directory, a runtime.
    /// Says what would be accepted.
    Config(String),

    /// The key holds another kind of thing than the one asked for.
    #[non_exhaustive]
    Conflict {
        /// The key that was asked for.
        key: Key,
        /// What is there, and what was asked for.
        found: String,
    },

    /// The engine failed or could not be reached.
    ///
    /// The message contains that of the cause, so [`source`](StdError::source) goes on behind it.
    #[non_exhaustive]
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

    /// What an engine does not do: what was asked for, why it is refused, and what would be accepted.
    pub fn unsupported(engine: &'static str, what: impl Into<String>) -> Self {
        Error::Unsupported { engine, what: what.into() }
    }

    /// Another kind of thing at a key: what is there, and what was asked for.
    pub fn conflict(key: &Key, found: impl Into<String>) -> Self {
        Error::Conflict { key: key.clone(), found: found.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Timeout { key, waited } => {
                let waited = humantime::format_duration(*waited);
                write!(f, "lock {key:?} was still busy after {waited}")
            }
            Error::Lost { key, reason } => write!(f, "lock {key:?} is lost: {reason}"),
            Error::Late { key, reason } => {
                write!(f, "the work ended after lock {key:?} was lost: {reason}")
            }
            Error::Shutdown => f.write_str("the client is shutting down"),
            Error::Unsupported { engine, what } => write!(f, "{engine} cannot do this: {what}"),
            Error::Key(what) | Error::Url(what) | Error::Config(what) => f.write_str(what),
            Error::Conflict { key, found } => {
                write!(f, "lock {key:?} is in use as something else: {found}")
            }
            Error::Engine { engine, doing, source, .. } => {
                write!(f, "{engine}: cannot {doing}: {source}")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            // Its own message is part of ours: a report that prints the chain must not say it twice.
            Error::Engine { source, .. } => source.source(),
            _ => None,
        }
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
    /// The client is [shutting down](crate::Client::shutdown). The lock is still ours until its guard is
    /// dropped or the grace is over.
    #[error("the client is shutting down")]
    Shutdown,
    /// The guard was released.
    #[error("it was released")]
    Released,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_the_chain_says_everything_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("no route")]
        struct Cause(#[source] std::io::Error);
        let cause = Cause(std::io::Error::other("cable cut"));
        let error = Error::unreachable("redis", "connect", cause);
        let mut said = vec![error.to_string()];
        let mut next = error.source();
        while let Some(cause) = next {
            said.push(cause.to_string());
            next = cause.source();
        }
        assert_eq!(said, ["redis: cannot connect: no route", "cable cut"]);
    }
}
