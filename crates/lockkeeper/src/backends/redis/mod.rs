//! Redis: one server, the master that sentinels know, or a Cluster.
//!
//! Locks are Redisson's hashes, so that a Java service can share them, or with `layout=string` the
//! one string that most other libraries use. An acquire is one script, a release is one script, a
//! waiter is told by pub/sub. The page docs/engines/redis.md says what is in the store and what
//! survives which failure.

use std::sync::Arc;

use async_trait::async_trait;
use redis::Value;

use crate::backend::{
    Backend, Claim, Death, Entry, FenceSource, Finding, Guarantees, Lease, Order, Query,
    Reentrance, Renewal, Request, Scope, Snapshot, Support, Survives, Wakeup,
};
use crate::backends::Engine;
use crate::error::Result;
use crate::key::Key;
use crate::url::Endpoint;

mod claim;
mod cluster;
mod dial;
mod doctor;
mod ear;
mod error;
mod inspect;
mod link;
mod mismatch;
mod names;
mod pipe;
pub mod redlock;
mod renew;
mod script;
mod sentinel;
mod servers;
mod settings;

use claim::Ticket;
use error::{NAME, sort};
use names::Names;
use servers::Servers;
use settings::{Layout, Settings};

pub(crate) const ENGINE: Engine =
    Engine { ways: &["redis://host", "redis://host?layout=string"], ..SIBLING };

/// For the schemes that promise the same as `redis:`.
pub(crate) const SIBLING: Engine = Engine {
    open: |endpoint| {
        Box::pin(async move { Ok(Arc::new(Redis::connect(&endpoint).await?) as Arc<dyn Backend>) })
    },
    guarantees: |endpoint| settings::read(endpoint).map(|(_, settings)| promises(settings.layout)),
    ways: &[],
};

/// What this engine promises.
const fn promises(layout: Layout) -> Guarantees {
    const ONE: &str = "layout=string has room for one holder; use layout=hash";
    let hash = Guarantees {
        engine: NAME,
        read_write: Support::Yes,
        semaphore: Support::Yes,
        // The server does nothing else meanwhile, for some tens of milliseconds.
        most_permits: 10_000,
        order: Order::FifoOnRequest,
        fence: FenceSource::Hybrid,
        death: Death::Lease,
        wakeup: Wakeup::Push,
        scope: Scope::Network,
        survives: Survives::None,
        reentrance: Reentrance::Store,
    };
    match layout {
        Layout::Hash => hash,
        Layout::String => Guarantees {
            read_write: Support::No(ONE),
            semaphore: Support::No(ONE),
            most_permits: 0,
            order: Order::Chance("layout=string has no line of waiters; use layout=hash"),
            wakeup: Wakeup::BackOff,
            reentrance: Reentrance::Client,
            ..hash
        },
    }
}

/// Locks in Redis. Made by [`connect`](Redis::connect), or by [`Client::connect`](crate::Client::connect).
#[derive(Debug, Clone)]
pub struct Redis {
    store: Arc<Store>,
}

/// What all claims share.
#[derive(Debug)]
struct Store {
    servers: Servers,
    settings: Settings,
    /// Whether releases are told by sharded pub/sub.
    sharded: bool,
}

impl Store {
    fn names(&self, key: &Key) -> Names {
        Names::new(&self.settings.prefix, key.as_str(), self.servers.is_cluster())
    }

    fn publish(&self) -> &'static str {
        if self.sharded { "spublish" } else { "publish" }
    }
}

impl Redis {
    /// Connects to what a URL names.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a URL that is not understood,
    /// [`Error::Backend`](crate::Error::Backend) when nobody is there.
    pub async fn connect(endpoint: &Endpoint) -> Result<Self> {
        let (servers, settings) = settings::read(endpoint)?;
        if let Err(error) = servers.any(&redis::cmd("PING")).await {
            return Err(mismatch::explain(endpoint, NAME, sort("connect", error)).await);
        }
        let sharded = servers.is_cluster() && {
            let known = servers.any(redis::cmd("PUBSUB").arg("SHARDNUMSUB")).await;
            matches!(known, Ok(Value::Array(_)))
        };
        Ok(Self { store: Arc::new(Store { servers, settings, sharded }) })
    }

    /// The scripts that take and give back the common mutex, to measure what the library adds to them.
    #[doc(hidden)]
    pub fn mutex_scripts() -> [&'static str; 2] {
        [script::MUTEX.text, script::MUTEX_RELEASE.text]
    }
}

#[async_trait]
impl Backend for Redis {
    fn guarantees(&self) -> Guarantees {
        promises(self.store.settings.layout)
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(Ticket::new(self.store.clone(), request))
    }

    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Renewal>> {
        renew::renew(&self.store, leases).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        inspect::inspect(&self.store, query).await
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>> {
        inspect::break_lock(&self.store, key).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(&self.store).await
    }

    async fn close(&self) {
        self.store.servers.close();
    }
}
