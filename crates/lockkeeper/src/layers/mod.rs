//! Engines that wrap engines.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::core::clock::{Clock, Moment};
use crate::engine::{
    Break, Breaker, Claim, Engine, Entry, Finding, Grant, Guarantees, Lease, Query, Released,
    Renewal, Request, Signal, Snapshot, YieldRequest,
};
use crate::error::Result;
use crate::key::Key;

pub mod faults;

/// The calls of the contract that change the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// [`Claim::attempt`].
    Attempt,
    /// [`Engine::renew`].
    Renew,
    /// [`Claim::release`].
    Release,
}

/// A hook around every call that changes the store. Implementing it makes an engine; all other
/// calls go straight to the wrapped engine.
pub trait Layer: Debug + Clone + Send + Sync + 'static {
    /// The wrapped engine.
    fn inner(&self) -> &Arc<dyn Engine>;

    /// Makes the call or not, and returns its answer or another.
    fn pass<T: Send>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send;
}

#[async_trait]
impl<L: Layer> Engine for L {
    fn guarantees(&self) -> Guarantees {
        self.inner().guarantees()
    }

    fn lease_of(&self, ttl: Duration) -> Duration {
        self.inner().lease_of(ttl)
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(LayeredClaim { claim: self.inner().claim(request), layer: self.clone() })
    }

    fn ordered(&self) -> bool {
        self.inner().ordered()
    }

    async fn renew(&self, leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>> {
        self.pass(Call::Renew, self.inner().renew(leases, asked)).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        self.inner().inspect(query).await
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        self.inner().break_lock(key, by).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        self.inner().broken().await
    }

    async fn request_yield(&self, key: &Key, asked: &YieldRequest) -> Result<Vec<Entry>> {
        self.inner().request_yield(key, asked).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner().doctor().await
    }

    async fn why_silent(&self) -> Option<String> {
        self.inner().why_silent().await
    }

    fn disconnected(&self) -> Option<Signal> {
        self.inner().disconnected()
    }

    fn clock(&self) -> Clock {
        self.inner().clock()
    }

    async fn close(&self) {
        self.inner().close().await;
    }
}

#[derive(Debug)]
struct LayeredClaim<L> {
    claim: Box<dyn Claim>,
    layer: L,
}

#[async_trait]
impl<L: Layer> Claim for LayeredClaim<L> {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        self.layer.pass(Call::Attempt, self.claim.attempt(asked)).await
    }

    async fn wait(&mut self) -> Result<()> {
        self.claim.wait().await
    }

    async fn release(&mut self) -> Result<Released> {
        self.layer.pass(Call::Release, self.claim.release()).await
    }
}
