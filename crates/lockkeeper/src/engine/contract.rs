//! The contract of an engine: what it must implement, and nothing else.
//!
//! An [`Engine`] creates [`Claim`]s. A claim is the live object (a token, a queue entry, an open
//! file, a connection) that acquires, holds and releases one lock. Waiting, deadlines,
//! cancellation, renewal, loss, queueing inside the process, re-entrance and multi-locks are
//! implemented once, in the core.
//!
//! Easy to get wrong: `attempt`, `renew` and `release` always run to completion, but `wait` may be
//! dropped at any await. And a claim whose reply was lost must recognise its own grant when it asks
//! again.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Break, Breaker, Entry, Fence, Finding, Guarantees, Lease, Query, Released, Renewal, Request,
    Snapshot, YieldRequest,
};
use crate::core::clock::{Clock, Moment};
use crate::error::{Error, Loss, Result};
use crate::key::Key;

/// A store that can keep locks.
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// What this engine promises. Constant, no I/O.
    fn guarantees(&self) -> Guarantees;

    /// How long a lease of this length will really be granted, as far as that is known without I/O.
    ///
    /// Used to refuse early what cannot work; only the grant itself is binding.
    fn lease_of(&self, ttl: Duration) -> Duration {
        ttl
    }

    /// Creates a claim. No I/O, cannot fail: nothing exists in the store before the first
    /// `attempt`.
    fn claim(&self, request: Request) -> Box<dyn Claim>;

    /// Whether requests reach the store in the order in which the claims of this client first poll
    /// them.
    ///
    /// If they may overtake each other, the core starts the next claim on a key only after the
    /// previous release was answered.
    fn ordered(&self) -> bool {
        true
    }

    /// Extends leases, in as few round trips as the store allows. Never acquires, never re-creates.
    ///
    /// Returns one [`Renewal`] per lease, in order. An `Err` means that nothing is known about any
    /// of them; an engine with several servers returns [`Renewal::Unknown`] for the leases it could
    /// not ask about. `asked` was read before this call: a renewed lease counts from there.
    async fn renew(&self, leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>>;

    /// Returns the holders and waiters of locks, without disturbing them.
    ///
    /// Keys without holders and waiters are left out; the result is ordered by key.
    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>>;

    /// Takes a lock away from its holders and returns them. For operators.
    ///
    /// Waiters stay in the queue; the next grant has a higher fence than the broken one. The break
    /// is recorded before its holders can learn of it, if the store can keep the record: a lock that
    /// cannot be recorded is broken nevertheless.
    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>>;

    /// Returns the last breaks of locks, the last one first: [`Breaker::breaks`], as recorded.
    async fn broken(&self) -> Result<Vec<Break>> {
        Err(Error::unsupported(self.guarantees().engine, "list broken locks: it records none"))
    }

    /// Asks the holders of a lock to release it, and returns those that were asked. Nothing is
    /// taken away.
    ///
    /// Holders learn of it, with who asks and why, through [`Held::yield_requested`].
    async fn request_yield(&self, _key: &Key, _asked: &YieldRequest) -> Result<Vec<Entry>> {
        Err(Error::Unsupported {
            engine: self.guarantees().engine,
            what: "ask a holder to give way (there is no way to reach it); break the lock instead"
                .to_owned(),
        })
    }

    /// Checks a real deployment for problems: permissions, persistence, clocks.
    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Why the store does not answer, in words for people, if that can be found out quickly.
    ///
    /// Called when a renewal is due while the previous one is still unanswered.
    async fn why_silent(&self) -> Option<String> {
        None
    }

    /// Resolves when a connection breaks that is used for locks, if the engine notices that before
    /// its next request; `None` if it has none. Only breaks after this call count.
    ///
    /// The core then asks at once whether its locks are still held, and says if the store cannot be
    /// reached. A break that nothing comes of costs a request.
    fn disconnected(&self) -> Option<Signal> {
        None
    }

    /// The clocks that measure this engine's leases on the client's side.
    fn clock(&self) -> Clock {
        Clock::System
    }

    /// Closes connections. Called once, after the last release was confirmed or abandoned.
    async fn close(&self) {}
}

/// One attempt at one lock, from the first request to the confirmed release.
#[async_trait]
pub trait Claim: fmt::Debug + Send {
    /// Enters the queue if it has not yet, and asks whether the lock is granted.
    ///
    /// A claim that already holds the lock (its earlier reply was lost) returns its grant again,
    /// with the lease extended to the full length from this call on. With [`Request::queue`] unset,
    /// a claim that is not granted leaves nothing behind. `asked` was read before this call; the
    /// grant counts from there.
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>>;

    /// Waits until `attempt` may return something else. A hint: it may return early, and the core
    /// checks again anyway.
    ///
    /// # Cancel safety
    /// May be dropped at any await.
    async fn wait(&mut self) -> Result<()>;

    /// Undoes everything that `attempt` and `wait` did or may have done. Conditional on our own
    /// token, idempotent.
    ///
    /// The request should be sent on the first poll: the core lets the next claim of this process
    /// start after that poll, and it must not find the remains of this one.
    async fn release(&mut self) -> Result<Released>;
}

/// What an engine knows about a lock that it granted. The core passes it back with every renewal.
///
/// An engine that needs only the [`Lease`] to renew uses `()`.
pub trait Held: Any + fmt::Debug + Send + Sync {
    /// Whether the grant ends by time alone. False if the kernel holds it as long as this process
    /// lives: renewals then only ask whether an operator broke the lock.
    fn expires(&self) -> bool {
        true
    }

    /// Resolves when the engine learns that the lock is gone before its lease ends; `None` if there
    /// is nothing to watch.
    ///
    /// Called once, some time after the grant, and dropped with the hold.
    fn gone(&self) -> Option<Signal<Loss>> {
        None
    }

    /// Resolves when the holder is asked to release the lock; `None` if the engine cannot deliver
    /// that.
    ///
    /// It is independent of the claim, and never resolves after the lock was released.
    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        None
    }

    /// Resolves when another claim of anybody finds the lock busy, or an operator asks for it or
    /// breaks it, or none of these could be noticed any more; `None` if the lock must not be kept.
    ///
    /// Nothing that happened since the grant may be missed. Called once, at a grant of a
    /// [`Request::keep`], and dropped with the hold.
    fn wanted(&self) -> Option<Signal> {
        None
    }

    /// How long the grant lasts at first, if that is shorter than its `ttl`. The first renewal, which
    /// is due after a third of it, makes it a full lease; so does another attempt of the claim.
    fn probation(&self) -> Option<Duration> {
        None
    }

    /// How many replicas had the grant when it was made, if the engine waits for them.
    fn replicas(&self) -> Option<u32> {
        None
    }

    /// The open file whose kernel lock *is* this grant, on engines that work that way.
    ///
    /// A process that inherits it keeps the lock after this one has ended. The command passes it to
    /// the process that supervises its child, so that the lock cannot pass on before the child is
    /// dead.
    #[cfg(unix)]
    fn bequeath(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }
}

impl Held for () {}

/// A future that resolves when an event happened. It may be dropped at any time.
pub type Signal<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A lock that was granted.
#[derive(Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The fence. Readers carry that of the last writer; every other grant has its own.
    pub fence: Fence,
    /// Which permits of a semaphore, numbered from 0; empty for other kinds.
    pub slots: Vec<u32>,
    /// How long the grant lasts without a renewal, which may differ from the requested `ttl`.
    pub ttl: Duration,
    /// The moment from which `ttl` counts: `asked`, or an earlier moment if the store counts from
    /// an earlier request.
    pub since: Moment,
    /// What the engine needs to know about the grant later.
    pub held: Arc<dyn Held>,
    /// How many fences after `fence` belong to this grant as well, at most
    /// [`Request::reserve`]: the next grant of anybody has a higher fence than all of them.
    ///
    /// With each of them, the core may hand the lock over once to another task of this client,
    /// under the same token, without asking the engine. Zero is always right, and the only answer
    /// for a fence that the store itself assigns to every grant.
    pub reserved: u32,
}

impl Grant {
    /// A grant with no slots, nothing to know about it later and no reserved fences; set the fields that differ.
    pub fn new(fence: Fence, ttl: Duration, since: Moment) -> Self {
        Self { fence, slots: Vec::new(), ttl, since, held: Arc::new(()), reserved: 0 }
    }
}
