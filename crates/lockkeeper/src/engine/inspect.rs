//! Inspection of locks and deployments: holders, waiters, and the findings of `doctor`.

use std::time::{Duration, SystemTime};

use super::{Fence, Mode};
use crate::key::Key;
use crate::who;

/// Which locks to inspect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Query {
    /// One lock.
    Key(Key),
    /// Every lock whose key has this prefix; an empty prefix means all.
    Prefix(String),
}

impl Query {
    /// Whether a key matches.
    pub fn matches(&self, key: &str) -> bool {
        match self {
            Query::Key(wanted) => wanted.as_str() == key,
            Query::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

/// What a store knows about one lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// The key of the lock.
    pub key: Key,
    /// The holders.
    pub holders: Vec<Entry>,
    /// The waiters, in order; `None` if the engine does not know them.
    pub waiters: Option<Vec<Entry>>,
    /// Why the waiters are not known, if they are not: the right that is missing, or what the store
    /// lacks.
    pub unknown: Option<&'static str>,
    /// The highest fence granted so far, if the engine knows it.
    pub fence: Option<Fence>,
}

impl Snapshot {
    /// A lock without known holders; set the fields that differ.
    pub fn new(key: Key) -> Self {
        Self { key, holders: Vec::new(), waiters: None, unknown: None, fence: None }
    }
}

/// A holder or a waiter, as far as the store knows it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// The identity in the store, which may be secret: show only its start.
    pub identity: String,
    /// How it holds or wants to hold.
    pub mode: Mode,
    /// `user@host pid`.
    pub who: Option<String>,
    /// The first characters of the command line of that process.
    pub command: Option<String>,
    /// The note that says why.
    pub note: Option<String>,
    /// Since when, by the store's or the holder's wall clock.
    pub since: Option<SystemTime>,
    /// What is left of the lease; `None` if there is none or the engine does not know it.
    pub left: Option<Duration>,
    /// The fence of a holder.
    pub fence: Option<Fence>,
    /// Which permits a holder has.
    pub slots: Vec<u32>,
    /// Whether a holder has released the lock and [keeps](crate::Lock::keep) it until somebody
    /// wants it. The store learns of a change after a moment.
    pub kept: bool,
}

impl Entry {
    /// An entry with nothing else known; set the fields that differ.
    pub fn new(identity: impl Into<String>, mode: Mode) -> Self {
        Self {
            identity: identity.into(),
            mode,
            who: None,
            command: None,
            note: None,
            since: None,
            left: None,
            fence: None,
            slots: Vec::new(),
            kept: false,
        }
    }

    /// The same entry, with the recorded text of [`Request::who`](super::Request::who).
    pub fn by(self, recorded: &str) -> Self {
        let (who, command) = who::take_apart(recorded);
        Self { who: Some(who.to_owned()), command: command.map(str::to_owned), ..self }
    }
}

/// One finding of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was checked and found, in one sentence.
    pub what: String,
    /// What to do about it; empty if nothing is wrong.
    pub advice: String,
}

impl Finding {
    /// A finding that is as it should be.
    pub fn fine(what: impl Into<String>) -> Self {
        Self { severity: Severity::Fine, what: what.into(), advice: String::new() }
    }

    /// A finding that may cause harm, and what to do about it.
    pub fn warning(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, what: what.into(), advice: advice.into() }
    }

    /// A finding that prevents locks from working, and what to do about it.
    pub fn problem(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, what: what.into(), advice: advice.into() }
    }

    /// A check: fine, or as severe as `otherwise`, in which case the advice applies.
    pub fn check(
        is_fine: bool,
        otherwise: Severity,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        match is_fine {
            true => Self::fine(what),
            false => Self { severity: otherwise, what: what.into(), advice: advice.into() },
        }
    }
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Locks work, but a failure may cause more harm than necessary.
    Warning,
    /// Locks do not work, or do not exclude.
    Problem,
}
