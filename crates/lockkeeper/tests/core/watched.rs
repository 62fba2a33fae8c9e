//! An engine that watches its holds, for the tests of the core.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lockkeeper::clock::{Clock, Moment};
use lockkeeper::engine::{
    Break, Breaker, Claim, Engine, Entry, Grant, Guarantees, Held, Lease, Query, Released, Renewal,
    Request, Signal, Snapshot,
};
use lockkeeper::testing::Memory;
use lockkeeper::{Key, Loss, Result};
use tokio::sync::Notify;

/// `memory:` that reports losses by itself, as engines with sessions do, records its calls, and
/// never answers the release of the key `silent`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watched {
    pub(crate) memory: Memory,
    pub(crate) told: Arc<Notify>,
    pub(crate) calls: Arc<Mutex<Vec<&'static str>>>,
    pub(crate) unordered: bool,
}

#[derive(Debug)]
struct WatchedHeld(Arc<Notify>);

impl Held for WatchedHeld {
    fn gone(&self) -> Option<Signal<Loss>> {
        let told = self.0.clone();
        Some(Box::pin(async move {
            told.notified().await;
            Loss::Disconnected("cut".into())
        }))
    }
}

#[derive(Debug)]
struct WatchedClaim {
    claim: Box<dyn Claim>,
    silent: bool,
    engine: Watched,
}

#[async_trait]
impl Engine for Watched {
    fn guarantees(&self) -> Guarantees {
        self.memory.guarantees()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let silent = request.key.as_str() == "silent";
        Box::new(WatchedClaim { claim: self.memory.claim(request), silent, engine: self.clone() })
    }

    fn ordered(&self) -> bool {
        !self.unordered
    }

    async fn renew(&self, leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>> {
        self.memory.renew(leases, asked).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        self.memory.inspect(query).await
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        self.memory.break_lock(key, by).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        self.memory.broken().await
    }

    fn clock(&self) -> Clock {
        Clock::Runtime
    }
}

#[async_trait]
impl Claim for WatchedClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        self.engine.calls.lock().unwrap().push("attempt");
        let held = WatchedHeld(self.engine.told.clone());
        let grant = self.claim.attempt(asked).await?;
        Ok(grant.map(|mut grant| {
            grant.held = Arc::new(held);
            grant
        }))
    }

    async fn wait(&mut self) -> Result<()> {
        self.claim.wait().await
    }

    async fn release(&mut self) -> Result<Released> {
        self.engine.calls.lock().unwrap().push("release");
        let released = self.claim.release().await;
        if self.silent {
            std::future::pending::<()>().await;
        }
        released
    }
}
