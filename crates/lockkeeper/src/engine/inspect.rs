//! What people ask about locks: who holds, who waits, and whether a deployment is sound.

use std::time::{Duration, SystemTime};

use super::{Fence, Mode};
use crate::key::Key;
use crate::who;

/// Which locks to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Query {
    /// One lock.
    Key(Key),
    /// Every lock whose key starts so; the empty prefix means all.
    Prefix(String),
}

impl Query {
    /// Whether a key is asked for.
    pub fn matches(&self, key: &str) -> bool {
        match self {
            Query::Key(wanted) => wanted.as_str() == key,
            Query::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

/// What a store knows of one lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// The lock.
    pub key: Key,
    /// Who is in.
    pub holders: Vec<Entry>,
    /// Who waits, in order; `None` where the engine cannot tell.
    pub waiters: Option<Vec<Entry>>,
    /// The highest fence given so far, where the engine can tell.
    pub fence: Option<Fence>,
}

impl Snapshot {
    /// A lock that nobody is known to hold; set the fields that differ.
    pub fn new(key: Key) -> Self {
        Self { key, holders: Vec::new(), waiters: None, fence: None }
    }
}

/// A holder or a waiter, as far as the store knows it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// The identity in the store, which may be secret: show its start only.
    pub identity: String,
    /// How it holds or wants to hold.
    pub mode: Mode,
    /// `user@host pid`.
    pub who: Option<String>,
    /// The first characters of the command line of that process.
    pub command: Option<String>,
    /// Why.
    pub note: Option<String>,
    /// Since when, by the store's or the holder's wall clock.
    pub since: Option<SystemTime>,
    /// What is left of the lease; `None` when there is none or the engine cannot tell.
    pub left: Option<Duration>,
    /// The fence of a holder.
    pub fence: Option<Fence>,
    /// Which permits a holder has.
    pub slots: Vec<u32>,
}

impl Entry {
    /// Somebody of whom nothing else is known; set the fields that differ.
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
        }
    }

    /// The same entry of whoever [`Request::who`](super::Request::who) was recorded for.
    pub fn by(self, recorded: &str) -> Self {
        let (who, command) = who::take_apart(recorded);
        Self { who: Some(who.to_owned()), command: command.map(str::to_owned), ..self }
    }
}

/// One result of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at and found, in one sentence.
    pub what: String,
    /// What to do about it; empty when nothing is wrong.
    pub advice: String,
}

impl Finding {
    /// Something that is as it should be.
    pub fn fine(what: impl Into<String>) -> Self {
        Self { severity: Severity::Fine, what: what.into(), advice: String::new() }
    }

    /// Something that may hurt, and what to do about it.
    pub fn warning(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, what: what.into(), advice: advice.into() }
    }

    /// Something that keeps locks from working, and what to do about it.
    pub fn problem(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, what: what.into(), advice: advice.into() }
    }

    /// Something that was looked at: fine, or as bad as `otherwise`, and only then in need of advice.
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
    /// Locks work, but a failure may hurt more than it must.
    Warning,
    /// Locks do not work, or do not exclude.
    Problem,
}
