//! The errors of this crate.
//!
//! "Busy" is not an error: `try_acquire` returns `Ok(None)`. "Unknown" is never reported as "no":
//! an engine that cannot be reached is [`Error::Engine`].

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::key::Key;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a lock or an engine. Each variant is one that a caller may handle differently.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The lock stayed busy for the whole time the caller was willing to wait.
    #[non_exhaustive]
    Timeout {
        /// The key that was waited for.
        key: Key,
        /// How long the caller waited.
        waited: Duration,
    },

    /// The lock was held and no longer is, or can no longer be vouched for.
    #[non_exhaustive]
    Lost {
        /// The key that was held.
        key: Key,
        /// Why it is no longer held.
        reason: Loss,
    },

    /// The work of a `run` finished, but the lock was lost before its end, so another client may
    /// have held it meanwhile. Unlike with [`Lost`](Error::Lost), all of the work was done.
    #[non_exhaustive]
    Late {
        /// The key that was held.
        key: Key,
        /// Why it is no longer held.
        reason: Loss,
    },

    /// The client is shutting down: [`Client::shutdown`](crate::Client::shutdown) was called.
    Shutdown,

    /// The engine does not support the request. Refused before any I/O.
    #[non_exhaustive]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// What was requested, why it is refused, and what would be accepted.
        what: String,
    },

    /// The key is invalid. The message says what would be accepted.
    Key(String),

    /// The URL or one of its options is invalid. The message says what would be accepted.
    Url(String),

    /// A setting is invalid: a duration, a number of permits, an owner, a directory, a runtime. The
    /// message says what would be accepted.
    Config(String),

    /// The key is in use as another kind of lock, or by something that is no lock.
    #[non_exhaustive]
    Conflict {
        /// The key that was requested.
        key: Key,
        /// What exists there, and what was requested.
        found: String,
    },

    /// The engine failed or could not be reached.
    ///
    /// The message includes that of the cause, so [`source`](StdError::source) returns the cause of
    /// the cause.
    #[non_exhaustive]
    Engine {
        /// The engine that failed.
        engine: &'static str,
        /// The operation that failed, and its key.
        doing: String,
        /// Whether the same call may succeed later.
        retryable: bool,
        /// The cause, as the engine's client reported it.
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Error {
    /// Whether the same call may succeed later without any other change.
    ///
    /// True for a [`Timeout`](Error::Timeout), and for an engine that could not be reached.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Timeout { .. } => true,
            Error::Engine { retryable, .. } => *retryable,
            _ => false,
        }
    }

    /// A transient failure of an engine: a lost connection, a missing reply.
    pub fn unreachable(
        engine: &'static str,
        doing: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Error::Engine { engine, doing: doing.into(), retryable: true, source: source.into() }
    }

    /// A permanent failure of an engine: missing permissions, a full disk, corrupt data.
    pub fn broken(
        engine: &'static str,
        doing: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Error::Engine { engine, doing: doing.into(), retryable: false, source: source.into() }
    }

    /// A request that the engine does not support: what was requested, why it is refused, and what
    /// would be accepted.
    pub fn unsupported(engine: &'static str, what: impl Into<String>) -> Self {
        Error::Unsupported { engine, what: what.into() }
    }

    /// A key that is in use as something else: what exists there, and what was requested.
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
            // Our message includes that of the source: a report that prints the chain must not
            // repeat it.
            Error::Engine { source, .. } => source.source(),
            _ => None,
        }
    }
}

/// Why a lock that was held no longer is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ran out by the local clock: no renewal was confirmed in time.
    #[error("its lease ran out without a confirmed renewal")]
    Expired,
    /// A fixed lease ended, as requested.
    #[error("its fixed lease ended")]
    Ended,
    /// The engine reported that this client no longer holds the lock.
    #[error("the engine says that it is no longer ours")]
    Gone,
    /// Somebody [broke](crate::Client::break_lock_because) the lock, and recorded it in the store.
    #[error("broken by {by}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    #[non_exhaustive]
    Broken {
        /// Who: `user@host pid`.
        by: String,
        /// The reason that was given.
        why: Option<String>,
    },
    /// The engine lost the connection, session or file that the lock was bound to.
    #[error("the engine can no longer vouch for it: {0}")]
    Disconnected(String),
    /// The client is [shutting down](crate::Client::shutdown). The lock is still held until its
    /// guard is dropped or the grace period ends.
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
    fn a_report_of_the_chain_prints_everything_once() {
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
