//! The contract of an engine: what it must do, and nothing else.
//!
//! An [`Engine`] makes [`Claim`]s; a claim is the live thing (a token, a queue entry, an open file,
//! a connection) that takes, holds and releases one lock. Waiting, deadlines, cancellation, renewal,
//! loss, queueing inside the process, re-entrance and multi-locks are written once, in the core.
//!
//! Easy to get wrong: `attempt`, `renew` and `release` always run to their end, `wait` may be dropped
//! at any await; and a claim whose reply was lost must recognise its own grant when it asks again.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Entry, Fence, Finding, Guarantees, Lease, Query, Released, Renewal, Request, Snapshot,
};
use crate::core::clock::{Clock, Moment};
use crate::error::{Error, Loss, Result};
use crate::key::Key;

/// A store that can keep locks.
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync + 'static {
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

    /// Whether requests reach the store in the order in which claims of this client first poll them.
    ///
    /// Where they may overtake each other, the core lets the next claim on a key start only after the
    /// release before it was answered.
    fn ordered(&self) -> bool {
        true
    }

    /// Extends leases, in as few round trips as the store allows. Never acquires, never re-creates.
    ///
    /// Answers one [`Renewal`] per lease, in order. An `Err` means that nothing is known of any of them;
    /// an engine of several servers says [`Renewal::Unknown`] of those it could not ask.
    /// `asked` was read before this call: a lease that is renewed counts from there.
    async fn renew(&self, leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>>;

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
    /// Holders hear of it by [`Held::yield_requested`].
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
    /// `asked` was read before this call, and is what a grant counts from.
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>>;

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
}

/// What an engine knows of a lock that it granted. It goes back to the engine with every renewal.
///
/// An engine that needs nothing but the [`Lease`] to renew grants with `()`.
pub trait Held: Any + fmt::Debug + Send + Sync {
    /// Whether time alone ends it. Not so where the kernel holds it for as long as this process lives:
    /// renewals then only ask whether an operator broke it.
    fn expires(&self) -> bool {
        true
    }

    /// Resolves when the engine learns that the lock is gone before its lease says so; `None` where
    /// there is nothing of the sort to watch.
    ///
    /// Asked for once, some time after the grant, and dropped with the hold.
    fn gone(&self) -> Option<Signal<Loss>> {
        None
    }

    /// Resolves when somebody asks the holder to give way; `None` where the engine cannot carry that.
    ///
    /// It is independent of the claim, and never resolves once the lock is given back.
    fn yield_requested(&self) -> Option<Signal> {
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

impl Held for () {}

/// Resolves when something happened. It may be dropped at any time.
pub type Signal<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A lock that was given.
#[derive(Debug)]
#[non_exhaustive]
pub struct Grant {
    /// Readers carry the last writer's; every other grant has one of its own.
    pub fence: Fence,
    /// Which permits of a semaphore, numbered from 0; empty for other kinds.
    pub slots: Vec<u32>,
    /// How long it lasts without a renewal, which may differ from what was asked.
    pub ttl: Duration,
    /// What it counts from: `asked`, or a moment before an earlier request that the store counts from.
    pub since: Moment,
    /// What the engine needs to know of it later.
    pub held: Arc<dyn Held>,
}

impl Grant {
    /// A grant of a lock that is no semaphore, with nothing to know of it later; set the fields that differ.
    pub fn new(fence: Fence, ttl: Duration, since: Moment) -> Self {
        Self { fence, slots: Vec::new(), ttl, since, held: Arc::new(()) }
    }
}
