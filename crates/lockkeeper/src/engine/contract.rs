//! The contract of an engine: what it must do, and nothing else.
//!
//! An [`Engine`] makes [`Claim`]s; a claim is the live thing (a token, a queue entry, an open file,
//! a connection) that takes, holds and releases one lock. Waiting, deadlines, cancellation, renewal,
//! loss, queueing inside the process, re-entrance and multi-locks are written once, in the core.
//!
//! Easy to get wrong: `attempt`, `renew` and `release` always run to their end, `wait` may be dropped
//! at any await; and a claim whose reply was lost must recognise its own grant when it asks again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Entry, Fence, Finding, Guarantees, Lease, Query, Released, Renewal, Request, Snapshot,
};
use crate::core::clock::Clock;
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
