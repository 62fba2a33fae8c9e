//! What the core asks of an engine, and how the engine answers.

use std::any::Any;
use std::fmt;
use std::num::{ParseIntError, TryFromIntError};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Held;
use crate::error::Error;
use crate::key::Key;
use crate::owner::{Owner, Token};
use crate::who::whoami;

/// A request for a lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Request {
    /// The key of the lock.
    pub key: Key,
    /// Identifies this claim and no other.
    pub token: Token,
    /// For re-entrance; without an owner, the token is the identity.
    pub owner: Option<Owner>,
    /// How the lock is to be held.
    pub mode: Mode,
    /// How long a grant lasts without renewal.
    pub ttl: Duration,
    /// Whether the lease is never renewed, and so needs its whole length from the start.
    pub fixed: bool,
    /// First come, first served across processes, if the engine does not always do so.
    pub fair: bool,
    /// Whether to enter the queue if the lock is busy. Unset for a single attempt.
    pub queue: bool,
    /// Who makes the request, for people who inspect the lock: [`whoami`](crate::whoami), and if it
    /// is to be recorded, a space and a command line.
    /// It is one line, and recorded as it is; [`Entry::by`](super::Entry::by) reads it.
    pub who: Arc<str>,
    /// Why the lock is held, for people who inspect it.
    pub note: Option<Arc<str>>,
    /// How many further fences the grant should reserve, so that the core can hand the lock over to
    /// other tasks of this client. An engine may reserve fewer, or none; see
    /// [`Grant::reserved`](super::Grant::reserved).
    pub reserve: u32,
    /// Whether the core may keep the lock after its release, as long as nobody else wants it. An
    /// engine that [can](super::Guarantees::keep) then tells of every other claim that finds the
    /// lock busy: [`Held::wanted`](super::Held::wanted).
    pub keep: bool,
}

impl Request {
    /// A request that queues, with defaults for everything else; set the fields that differ.
    pub fn new(key: Key, token: Token, mode: Mode, ttl: Duration) -> Self {
        Self {
            key,
            token,
            owner: None,
            mode,
            ttl,
            fixed: false,
            fair: false,
            queue: true,
            who: whoami().into(),
            note: None,
            reserve: 0,
            keep: false,
        }
    }

    /// The identity that the store compares: the owner if there is one, otherwise the token.
    pub fn identity(&self) -> String {
        self.owner.as_ref().map_or_else(|| self.token.to_string(), |owner| owner.id().to_owned())
    }

    /// The error for a key that is in use as something else.
    #[allow(dead_code, reason = "it depends on the features which engines are there to use it")]
    pub(crate) fn conflict(&self, found: impl fmt::Display) -> Error {
        let found = format!("it is used as {found}, and was asked for as {}", self.mode);
        Error::Conflict { key: self.key.clone(), found }
    }

    /// A single attempt at a lock of its own, by which `doctor` finds out whether locks work.
    #[allow(dead_code, reason = "it depends on the features which engines are there to use it")]
    pub(crate) fn probe(mode: Mode) -> Self {
        let token = Token::fresh();
        // Not `lockkeeper…`: a user that may use the engine's own records may not use every key.
        let key = Key::new(format!("doctor-{token}")).expect("a token is visible text");
        Self { queue: false, ..Self::new(key, token, mode, Duration::from_secs(5)) }
    }
}

/// How a lock is held.
///
/// A key has one kind at a time: mutex, read-write or semaphore. `Mutex` and `Write` exclude alike;
/// engines whose layout distinguishes them refuse a mix as a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Exclusively.
    Mutex,
    /// Exclusively, with readers on the same key.
    Write,
    /// Together with other readers.
    Read,
    /// As one or more permits of a semaphore.
    Permits {
        /// How many are acquired at once.
        take: u32,
        /// How many exist. All clients must use the same number.
        limit: u32,
    },
}

impl Mode {
    /// Whether there is at most one holder.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Mode::Mutex | Mode::Write)
    }

    /// The kind of lock, as metrics and messages name it.
    pub fn kind(self) -> &'static str {
        match self {
            Mode::Mutex => "mutex",
            Mode::Write => "write",
            Mode::Read => "read",
            Mode::Permits { .. } => "semaphore",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Permits { take, limit } => write!(f, "semaphore({take} of {limit})"),
            other => f.write_str(other.kind()),
        }
    }
}

/// A number that rises with every grant of a key, so that a resource can reject stale holders.
///
/// It is printed as a number and parses from one. Stores without unsigned integers keep it as an
/// `i64`:
///
/// ```
/// # use lockkeeper::Fence;
/// let fence: Fence = "42".parse()?;
/// let column = i64::try_from(fence)?;
/// assert_eq!(Fence::try_from(column)?, fence);
/// assert_eq!(u64::from(fence), 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With the feature `serde`, it is serialized as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Fence(u64);

impl Fence {
    /// Wraps a store's number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The plain number, to send with every access to the protected resource.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next fence of the hybrid counter: the last fence plus one, or the clock in microseconds
    /// if that is higher.
    ///
    /// A store that lost its counter continues from its clock, so the order breaks only if memory
    /// is lost *and* the clock goes back.
    pub fn after(self, now: SystemTime) -> Self {
        let micros = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        Self(self.0.saturating_add(1).max(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// Like [`after`](Fence::after), for a grant that reserves fences: the fence of the grant, and
    /// how many after it are reserved, at most `reserve`.
    ///
    /// The counter is where `after` would be. The reserved fences are numbers that the clock has
    /// skipped since `self`, so reserving never makes the counter run ahead of the clock. `self`
    /// must be a counter that nothing was lost of: after a loss, the skipped numbers may have been
    /// granted.
    pub fn after_with(self, now: SystemTime, reserve: u32) -> (Self, u32) {
        let counter = self.after(now).0;
        let first = counter.saturating_sub(reserve.into()).max(self.0.saturating_add(1));
        // At most `reserve`, which fits.
        (Self(first), (counter - first) as u32)
    }

    /// The next number.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Fence {
    type Err = ParseIntError;
    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

impl From<u64> for Fence {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

impl TryFrom<i64> for Fence {
    type Error = TryFromIntError;
    fn try_from(number: i64) -> Result<Self, TryFromIntError> {
        number.try_into().map(Self)
    }
}

impl TryFrom<Fence> for i64 {
    type Error = TryFromIntError;
    fn try_from(fence: Fence) -> Result<Self, TryFromIntError> {
        fence.0.try_into()
    }
}

/// All that an engine needs to extend a grant.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Lease {
    /// The key of the lock.
    pub key: Key,
    /// The claim that holds it.
    pub token: Token,
    /// The owner it is held for, if there is one.
    pub owner: Option<Owner>,
    /// How it is held.
    pub mode: Mode,
    /// How long each extension lasts: what the store granted, which may differ from what was
    /// requested.
    pub ttl: Duration,
    /// What the engine returned with the grant.
    pub held: Arc<dyn Held>,
    /// Whether it is kept at this moment, and so not in use, for people who inspect the lock.
    /// `None` if it is never kept.
    pub kept: Option<bool>,
}

impl Lease {
    /// The lease that a request asks for, with its full length.
    pub fn of(request: &Request) -> Self {
        Self {
            key: request.key.clone(),
            token: request.token,
            owner: request.owner.clone(),
            mode: request.mode,
            ttl: request.ttl,
            held: Arc::new(()),
            kept: None,
        }
    }

    /// What the engine returned with the grant, if it is of this type.
    pub fn held<H: Held>(&self) -> Option<&H> {
        let held: &dyn Any = &*self.held;
        held.downcast_ref()
    }
}

/// An engine's answer about one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// Still held, and extended to the full length.
    Renewed,
    /// The store reports that it is no longer held.
    Gone,
    /// The store could not be asked about this one. The clock runs on, and the next renewal asks
    /// again.
    Unknown,
}

/// An engine's answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It was held and is now free, or there was nothing to undo.
    Yes,
    /// Like `Yes`, and another client is waiting. Engines without a queue report it if they can;
    /// the core then pauses from time to time, so that the other client gets the lock.
    Wanted,
    /// It was no longer held.
    AlreadyGone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_converts_to_and_from_numbers() {
        let fence = Fence::new(u64::MAX);
        assert_eq!(fence.to_string().parse(), Ok(fence));
        assert_eq!(Fence::from(u64::from(fence)), fence);
        assert!(i64::try_from(fence).is_err() && Fence::try_from(-1_i64).is_err());
        assert_eq!(i64::try_from(Fence::new(7)), Ok(7));
        assert!("".parse::<Fence>().is_err() && "-1".parse::<Fence>().is_err());
    }

    #[test]
    fn reserved_fences_are_those_that_the_clock_skipped() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(1_000);
        let first = |last, reserve| {
            let (fence, reserved) = Fence::new(last).after_with(now, reserve);
            // Whatever is reserved, the counter is where it would be without.
            assert_eq!(fence.get() + u64::from(reserved), Fence::new(last).after(now).get());
            (fence.get(), reserved)
        };
        assert_eq!(first(500, 0), (1_000, 0));
        assert_eq!(first(500, 100), (900, 100));
        assert_eq!(first(500, 10_000), (501, 499));
        assert_eq!(first(999, 100), (1_000, 0));
        assert_eq!(first(2_000, 100), (2_001, 0));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_fence_is_the_number_in_json() {
        assert_eq!(serde_json::to_string(&Fence::new(7)).unwrap(), "7");
        assert_eq!(serde_json::from_str::<Fence>("7").unwrap(), Fence::new(7));
        assert!(serde_json::from_str::<Fence>("-7").is_err());
    }
}
