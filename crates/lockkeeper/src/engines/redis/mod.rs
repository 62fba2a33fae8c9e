//! Redis: a single server, a master behind sentinels, or a Cluster.
//!
//! Locks are Redisson's hashes, so that a Java service can share them, or with `layout=string` the
//! single string that most other libraries use. An acquire is one script, a release is one script,
//! and waiters are notified by pub/sub. docs/engines/redis.md describes the data in the store and
//! which failures it survives.

use std::sync::Arc;

use async_trait::async_trait;
use redis::{ErrorKind, Value};

use crate::core::clock::Moment;
use crate::engine::{
    Break, Breaker, Claim, Death, Engine, Entry, FenceSource, Finding, Guarantees, Lease, Order,
    Query, Reentrance, Renewal, Request, Scope, Signal, Snapshot, Support, Survives, Wakeup,
    YieldRequest,
};
use crate::engines::Registration;
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::key::Key;

pub(super) mod answer;
mod batch;
pub(super) mod broken;
mod calls;
pub(super) mod claim;
mod cluster;
pub(super) mod connection;
pub(super) mod connector;
pub(super) mod doctor;
pub(super) mod error;
mod held;
pub(super) mod inspect;
pub(super) mod layout;
mod message;
mod mutex_queue;
mod opinion;
mod plain_look;
mod pubsub;
pub(super) mod renew;
pub(super) mod script;
mod sentinel;
pub(super) mod settings;
mod subscriber;
pub(super) mod topology;
pub(super) mod yielding;

use claim::RedisClaim;
use error::{NAME, sort};
use layout::KeyNames;
use settings::{Layout, Settings};
use topology::Topology;

pub(crate) const ENGINE: Registration =
    Registration { ways: &["redis://host", "redis://host?layout=string"], ..SIBLING };

/// For the schemes that promise the same as `redis:`.
pub(crate) const SIBLING: Registration = Registration {
    open: |endpoint| {
        Box::pin(async move { Ok(Arc::new(Redis::connect(&endpoint).await?) as Arc<dyn Engine>) })
    },
    guarantees: |endpoint| {
        settings::read(endpoint).map(|(servers, settings)| promises(&servers, &settings))
    },
    ways: &[],
};

/// What this engine promises.
fn promises(servers: &Topology, settings: &Settings) -> Guarantees {
    const ONE: &str = "layout=string has room for one holder; use layout=hash";
    let hand_over = match (servers.is_single_server(), settings.redisson_fence) {
        (true, false) => Support::Yes,
        (_, true) => Support::No("Redisson's counter is not ours to reserve fences from"),
        (false, _) => Support::No("a failover may set its counters back"),
    };
    let hash = Guarantees {
        engine: NAME,
        read_write: Support::Yes,
        semaphore: Support::Yes,
        // Larger requests would block the server for some tens of milliseconds.
        most_permits: 10_000,
        order: Order::Fifo,
        fence: FenceSource::Hybrid,
        death: Death::Lease,
        wakeup: Wakeup::Push,
        scope: Scope::Network,
        survives: Survives::None,
        reentrance: Reentrance::Store,
        hand_over,
        keep: hand_over,
    };
    match settings.layout {
        Layout::Hash => hash,
        Layout::String => Guarantees {
            read_write: Support::No(ONE),
            semaphore: Support::No(ONE),
            most_permits: 0,
            order: Order::Chance("layout=string has no queue of waiters; use layout=hash"),
            wakeup: Wakeup::BackOff,
            reentrance: Reentrance::Client,
            hand_over: Support::No("its grants reserve no fences"),
            keep: Support::No("its grants reserve no fences"),
            ..hash
        },
    }
}

/// Locks in Redis. Created by [`connect`](Redis::connect), or by
/// [`Client::connect`](crate::Client::connect).
#[derive(Debug, Clone)]
pub struct Redis {
    store: Arc<Store>,
}

/// What all claims share.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) servers: Topology,
    pub(super) settings: Settings,
    /// Whether releases are published by sharded pub/sub.
    pub(super) sharded: bool,
}

impl Store {
    pub(super) fn names(&self, key: &Key) -> KeyNames {
        KeyNames::new(&self.settings.prefix, key.as_str(), self.servers.is_cluster())
    }

    pub(super) fn publish(&self) -> &'static str {
        if self.sharded { "spublish" } else { "publish" }
    }
}

impl Redis {
    /// Connects to the servers that a URL names.
    ///
    /// # Errors
    /// [`Error::Url`] for an invalid URL, [`Error::Engine`] if no server can be reached.
    pub async fn connect(endpoint: &Endpoint) -> Result<Self> {
        let (servers, settings) = settings::read(endpoint)?;
        if let Err(error) = servers.any(&redis::cmd("PING")).await {
            let user = endpoint.expose().username();
            // Together with a password, it is the name of a user, and not a password in the wrong
            // place.
            if error.kind() == ErrorKind::AuthenticationFailed && !user.is_empty() {
                let refused = format!("the server refuses user {user:?} or its password");
                return Err(Error::broken(NAME, "connect", refused));
            }
            let scheme = endpoint.scheme();
            let (family, topology) = scheme.split_at(scheme.find('+').unwrap_or(scheme.len()));
            // The first command is one that only such a server knows.
            let expected = match topology {
                "+sentinel" => Some("a sentinel"),
                "+cluster" => Some("a node of a Cluster"),
                _ => None,
            };
            if let Some(expected) = expected.filter(|_| error::code(&error) == Some("ERR")) {
                let advice = format!("write {family}: instead of {scheme}: for a single server");
                let refused = format!("the server that answers is not {expected}; {advice}");
                return Err(Error::broken(NAME, "connect", refused));
            }
            return Err(sort("connect", error));
        }
        let sharded = servers.is_cluster() && {
            let known = servers.any(redis::cmd("PUBSUB").arg("SHARDNUMSUB")).await;
            matches!(known, Ok(Value::Array(_)))
        };
        Ok(Self { store: Arc::new(Store { servers, settings, sharded }) })
    }

    /// The scripts that acquire and release the common mutex, to measure what the library adds to
    /// them.
    #[doc(hidden)]
    pub fn mutex_scripts() -> [&'static str; 2] {
        [script::MUTEX.text, script::MUTEX_RELEASE.text]
    }
}

#[async_trait]
impl Engine for Redis {
    fn guarantees(&self) -> Guarantees {
        promises(&self.store.servers, &self.store.settings)
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(RedisClaim::new(self.store.clone(), request))
    }

    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        renew::renew(&self.store, leases).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        inspect::inspect(&self.store, query).await
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        broken::break_lock(&self.store, key, by).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        broken::breaks(&self.store).await
    }

    async fn request_yield(&self, key: &Key, asked: &YieldRequest) -> Result<Vec<Entry>> {
        yielding::request_yield(&self.store, key, asked).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(&self.store).await
    }

    fn disconnected(&self) -> Option<Signal> {
        Some(self.store.settings.disconnections.next())
    }

    async fn close(&self) {
        self.store.servers.close();
    }
}
