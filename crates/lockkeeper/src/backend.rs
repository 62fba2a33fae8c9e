//! The contract of an engine: what it must do, and nothing else.
//!
//! A [`Backend`] makes [`Claim`]s; a claim is the live thing (a token, a queue entry, an open file,
//! a connection) that takes, holds and gives back one lock. Waiting, deadlines, cancellation, renewal,
//! loss, queueing inside the process, re-entrance and multi-locks are written once, in the core.
//!
//! Easy to get wrong: `attempt`, `renew` and `release` always run to their end, `wait` may be dropped
//! at any await; and a claim whose reply was lost must recognise its own grant when it asks again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::clock::Clock;
use crate::error::{Error, Loss, Result};
use crate::key::Key;
use crate::owner::{Owner, Token};

/// A store that can keep locks.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this engine promises. Constant, no I/O.
    fn guarantees(&self) -> Guarantees;

    /// How long a lease that is asked for with this length is really granted, as far as is known without I/O.
    ///
    /// Only what a grant says counts; this is for refusing early what cannot work.
    fn lease_of(&self, ttl: Duration) -> Duration {
        ttl
    }

    /// Makes a claim. No I/O, cannot fail: nothing exists in the store before the first `attempt`.
    fn claim(&self, request: Request) -> Box<dyn Claim>;

    /// Extends leases, in as few round trips as the store allows. Never acquires, never re-creates.
    ///
    /// Answers one [`Renewal`] per lease, in order. An `Err` means that nothing is known of any of them;
    /// an engine of several servers says [`Renewal::Unknown`] of those it could not ask.
    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Renewal>>;

    /// Who holds and who waits. Must not disturb anyone.
    ///
    /// Keys that nobody holds or waits for are left out; the order is that of the keys.
    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>>;

    /// Takes a lock away from whoever holds it, for operators, and says who that was.
    ///
    /// Its waiters stay; the next grant has a higher fence than the broken one.
    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>>;

    /// Asks whoever holds a lock to give way, and says who was asked. Nothing is taken away.
    ///
    /// Holders hear of it by [`Claim::yield_requested`].
    async fn request_yield(&self, _key: &Key) -> Result<Vec<Entry>> {
        Err(Error::Unsupported {
            engine: self.guarantees().engine,
            what: "ask a holder to give way (there is no way to reach it); break the lock instead"
                .to_owned(),
        })
    }

    /// Looks at a real deployment for what would hurt: permissions, persistence, clocks.
    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Why the store does not answer, for people, if that can be found out quickly.
    ///
    /// Called when a renewal leaves while the one before has no answer.
    async fn why_silent(&self) -> Option<String> {
        None
    }

    /// The clocks by which a lease of this engine is counted on our side.
    fn clock(&self) -> Clock {
        Clock::System
    }

    /// Closes connections. Called once, after the last release was confirmed or given up.
    async fn close(&self) {}
}

/// One try at one lock, from the first request to the confirmed release.
#[async_trait]
pub trait Claim: fmt::Debug + Send {
    /// Takes a place if it has none, and asks: is it my turn?
    ///
    /// A claim that already holds (its earlier reply was lost) answers with its grant again,
    /// its lease extended to the full length from this call on.
    /// With [`Request::queue`] unset, a claim that is not let in leaves nothing behind.
    async fn attempt(&mut self) -> Result<Option<Grant>>;

    /// Until `attempt` may answer differently. A hint: it may return early, and the core re-checks anyway.
    ///
    /// # Cancel safety
    /// May be dropped at any await.
    async fn wait(&mut self) -> Result<()>;

    /// Undoes whatever `attempt` and `wait` did or may have done; conditional on our own token, idempotent.
    ///
    /// The request should leave on the first poll: the core lets the next claim of this process
    /// start after that poll, so that it does not find our ghost.
    async fn release(&mut self) -> Result<Released>;

    /// Resolves when somebody asks the holder to give way; `None` where the engine cannot carry that.
    ///
    /// It is independent of the claim, and never resolves once the lock is given back.
    fn yield_requested(&self) -> Option<Asked> {
        None
    }

    /// How many replicas had the grant when it was given, where the engine waits for them.
    fn replicas(&self) -> Option<u32> {
        None
    }

    /// The open file whose kernel lock *is* this grant, for engines that work that way.
    ///
    /// A process that inherits it keeps the lock after we are gone. The command hands it to the
    /// process that watches over its child, so that the lock cannot pass on before the child is dead.
    #[cfg(unix)]
    fn bequeath(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }
}

/// Resolves when a holder is asked to give way.
pub type Asked = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is asked of an engine.
#[derive(Debug, Clone)]
pub struct Request {
    /// The lock.
    pub key: Key,
    /// Identifies this claim and no other.
    pub token: Token,
    /// For re-entrance; without one, the token is the identity.
    pub owner: Option<Owner>,
    /// How the lock is to be held.
    pub mode: Mode,
    /// How long a grant lasts without renewal.
    pub ttl: Duration,
    /// Whether it is never renewed, and so has to have its whole length from the start.
    pub fixed: bool,
    /// First come, first served across processes, where the engine does not do so anyway.
    pub fair: bool,
    /// Whether to take a place in the queue when it is not our turn. Unset for a single try.
    pub queue: bool,
    /// Why, for people who look.
    pub note: Option<Arc<str>>,
}

impl Request {
    /// The identity that a store compares: the owner if there is one, else the token.
    pub fn identity(&self) -> String {
        self.owner.as_ref().map_or_else(|| self.token.to_string(), |owner| owner.id().to_owned())
    }
}

/// How a lock is held.
///
/// A key has one kind at a time: mutex, read-write or semaphore.
/// `Mutex` and `Write` admit alike; engines whose layout tells them apart refuse a mix as a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Mutex,
    /// Alone, against readers of the same key.
    Write,
    /// Together with other readers.
    Read,
    /// Some of a number of permits.
    Permits {
        /// How many are taken at once.
        take: u32,
        /// How many there are. Everyone must name the same number.
        limit: u32,
    },
}

impl Mode {
    /// Whether nobody else can hold the key meanwhile.
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

/// A number that rises with every grant of a key, for the resource to refuse stale holders by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence(u64);

impl Fence {
    /// Wraps a store's number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The plain number, to send along with every access to the protected resource.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The hybrid counter: the last fence plus one, or the clock's microseconds if they are further.
    ///
    /// A store that lost its counter goes on from its clock, so order breaks only when
    /// memory is lost *and* the clock goes back.
    pub fn after(self, now: SystemTime) -> Self {
        let micros = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        Self(self.0.saturating_add(1).max(u64::try_from(micros).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lock that was given.
pub struct Grant {
    /// Readers carry the last writer's; every other grant has one of its own.
    pub fence: Fence,
    /// Which permits of a semaphore, numbered from 0; empty for other kinds.
    pub slots: Vec<u32>,
    /// What keeps it alive, and how long.
    pub lease: Lease,
    /// The kernel holds it for as long as this process lives: time alone does not end it.
    /// Renewals then only ask whether an operator broke it.
    pub bound: bool,
    /// Resolves when the engine learns that the grant is gone before its lease says so.
    /// `None` where the engine has nothing of the sort to watch.
    pub gone: Option<Pin<Box<dyn Future<Output = Loss> + Send>>>,
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("fence", &self.fence)
            .field("slots", &self.slots)
            .field("lease", &self.lease)
            .field("bound", &self.bound)
            .field("gone", &self.gone.is_some())
            .finish()
    }
}

/// All that an engine needs to extend a grant.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The lock.
    pub key: Key,
    /// The claim that holds it.
    pub token: Token,
    /// The owner it is held for, if one was named.
    pub owner: Option<Owner>,
    /// How it is held.
    pub mode: Mode,
    /// How long each extension lasts: what the store really granted, which may differ from what was asked.
    pub ttl: Duration,
}

impl Lease {
    /// The lease that a request asks for, as long as it asks for.
    pub fn of(request: &Request) -> Self {
        Self {
            key: request.key.clone(),
            token: request.token,
            owner: request.owner.clone(),
            mode: request.mode,
            ttl: request.ttl,
        }
    }
}

/// An engine's answer about one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Ours, and extended to its full length.
    Renewed,
    /// Positively not ours any more.
    Gone,
    /// Nobody could be asked about this one. The clock runs on, and it is asked about again.
    Unknown,
}

/// An engine's answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// It was ours and is free, or there was nothing to undo.
    Yes,
    /// As `Yes`, and another client waits for the lock. Engines without a queue report it where they can;
    /// the core then pauses from time to time, so that the other client gets in.
    Wanted,
    /// It was not ours any more.
    AlreadyGone,
}

/// Which locks to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// A holder or a waiter, as far as the store knows it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The identity in the store, which may be secret: show its start only.
    pub identity: String,
    /// How it holds or wants to hold.
    pub mode: Mode,
    /// `user@host pid`.
    pub who: Option<String>,
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

/// One result of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at and found, in one sentence.
    pub what: String,
    /// What to do about it; empty when nothing is wrong.
    pub advice: String,
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

/// What an engine promises, as data: the core refuses by it, the conformance suite selects by it,
/// `lockkeeper explain` prints it, the README's table is made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantees {
    /// The engine's name.
    pub engine: &'static str,
    /// Readers together, writers alone.
    pub read_write: Support,
    /// A number of permits.
    pub semaphore: Support,
    /// How many permits of a semaphore one claim may take at once; 0 where there are no semaphores.
    pub most_permits: u32,
    /// In which order waiters are served.
    pub order: Order,
    /// Where fences come from.
    pub fence: FenceSource,
    /// How a dead holder is noticed.
    pub death: Death,
    /// How a waiter learns that it may be its turn.
    pub wakeup: Wakeup,
    /// Between whom it excludes.
    pub scope: Scope,
    /// Which failure of the store keeps exclusion.
    pub survives: Survives,
    /// Who counts an owner's holds.
    pub reentrance: Reentrance,
}

/// Whether an engine does a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It does.
    Yes,
    /// It refuses, for this reason.
    No(&'static str),
}

/// In which order waiters of different processes are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Always first come, first served.
    Fifo,
    /// First come, first served with `fair()`, else by chance.
    FifoOnRequest,
    /// As the server queues them.
    Server,
    /// By chance; `fair()` is refused, for this reason.
    Chance(&'static str),
}

/// Where fences come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceSource {
    /// A counter in this process.
    Counter,
    /// The last fence plus one, or the store's clock if that is further.
    Hybrid,
    /// The store's own revision number.
    Revision,
    /// A counter that a majority agrees on.
    Quorum,
}

/// How a dead holder is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its lease runs out.
    Lease,
    /// Its session runs out.
    Session,
    /// The kernel or the server sees it end, at once. There is no lease.
    AtOnce,
}

/// How a waiter learns that it may be its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// Told inside the process.
    Notify,
    /// Woken by the kernel.
    Kernel,
    /// Told by the store.
    Push,
    /// Blocked in the server.
    Server,
    /// Asks again after a random delay.
    BackOff,
}

/// Between whom an engine excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Tasks and threads of one process.
    Process,
    /// Processes of one machine.
    Machine,
    /// Whoever reaches the store.
    Network,
}

/// The worst failure of the store after which two holders are still impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// There is no store apart from the process or machine that uses it.
    NothingApart,
    /// None: what a restart or failover forgets, somebody else may take.
    None,
    /// A restart, with its data on disk.
    Restart,
    /// The loss of any minority of its members.
    Minority,
}

/// Who counts the holds of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reentrance {
    /// The client: re-entry costs no request, and works inside one client.
    Client,
    /// The store as well: another process with the same owner may enter too.
    Store,
}
