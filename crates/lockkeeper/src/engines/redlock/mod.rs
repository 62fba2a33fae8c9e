//! Redlock: a lock granted by a majority of independent Redis servers.
//!
//! An engine made of engines: every server is asked in the way of the Redis engine, and this module
//! adds only the majority. Exclusion depends on clocks and on servers that keep their data; the
//! order of the fences does not depend on clocks. docs/engines/redlock.md describes what is
//! promised and what is not, docs/redlock-proof.md why the fences rise.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::core::clock::Moment;
use crate::engine::{
    Break, Breaker, Claim, Death, Engine, Entry, FenceSource, Finding, Guarantees, Held, Lease,
    Order, Query, Reentrance, Renewal, Request, Scope, Signal, Snapshot, Support, Survives, Wakeup,
    YieldRequest,
};
use crate::engines::Registration;
use crate::engines::endpoint::Endpoint;
use crate::engines::redis::layout::entry;
use crate::engines::redis::yielding;
use crate::error::{Error, Result};
use crate::key::Key;

mod claim;
mod doctor;
mod fan_out;
mod inspect;
mod node;
mod node_claim;
mod reader_fence;
mod renew;
mod rw_claim;
mod settings;
mod votes;

use claim::RedlockClaim;
use fan_out::{FanOut, question};
use node::Node;
use node_claim::NodeClaim;
use settings::Settings;

/// The name of this engine.
const NAME: &str = "redlock";

/// How long a majority may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) const ENGINE: Registration = Registration {
    open: |endpoint| {
        Box::pin(async move { Ok(Arc::new(Redlock::connect(&endpoint).await?) as Arc<dyn Engine>) })
    },
    guarantees: |endpoint| settings::read(endpoint).map(|(_, settings)| promises(settings)),
    ways: &["redlock://h1,h2,h3", "redlock://h1,h2,h3?strict=1m"],
};

/// What this engine promises.
const fn promises(settings: Settings) -> Guarantees {
    Guarantees {
        engine: NAME,
        read_write: Support::Yes,
        semaphore: Support::No(
            "with two permits, each of three users can have one at two of three servers",
        ),
        most_permits: 0,
        order: Order::Chance("independent servers have no common queue of waiters"),
        fence: FenceSource::Quorum,
        death: Death::Lease,
        wakeup: Wakeup::BackOff,
        scope: Scope::Network,
        // A server that is gone for good does no harm, but one that comes back empty votes again.
        survives: if settings.strict.is_some() { Survives::Minority } else { Survives::None },
        reentrance: Reentrance::Client,
        hand_over: Support::No("its fence is a number that a majority agrees on"),
        keep: Support::No("its fence is a number that a majority agrees on"),
    }
}

/// Locks granted by a majority of Redis servers.
///
/// Created by [`connect`](Redlock::connect), or by [`Client::connect`](crate::Client::connect).
#[derive(Debug, Clone)]
pub struct Redlock {
    quorum: Arc<Quorum>,
}

/// What all claims share.
#[derive(Debug)]
struct Quorum {
    nodes: Vec<Arc<Node>>,
    settings: Settings,
}

/// What a claim of ours holds; renewals use it to acquire the lock at servers that lack it.
#[derive(Debug, Clone)]
struct RedlockHeld {
    /// Its part at each server.
    claims: Arc<[Arc<NodeClaim>]>,
    fence: u64,
    quorum: Arc<Quorum>,
    lease: Lease,
}

impl Held for RedlockHeld {
    /// Whichever server tells it first.
    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        let token = self.lease.token.to_string();
        let field = entry(&token, &token, self.lease.mode);
        let listen = |node: &Arc<Node>| {
            let store = node.store().clone();
            let names = store.names(&self.lease.key);
            yielding::asked(store, names, field.clone())
        };
        Some(first(self.quorum.nodes.iter().map(listen).collect()))
    }
}

/// Resolves with the first of these.
fn first<T: 'static>(mut signals: Vec<Signal<T>>) -> Signal<T> {
    Box::pin(poll_fn(move |cx| {
        let ready = signals.iter_mut().find_map(|signal| match signal.as_mut().poll(cx) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    }))
}

impl Quorum {
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// How many servers may be missing.
    fn minority(&self) -> usize {
        self.nodes.len() - self.majority()
    }

    /// The error of a request that no majority answered.
    fn too_few(&self, doing: impl Into<String>, silent: Vec<(usize, Error)>) -> Error {
        let retryable = silent.is_empty() || silent.iter().any(|(_, error)| error.is_retryable());
        let (all, few) = (self.nodes.len(), self.nodes.len() - silent.len());
        let each: Vec<_> = silent
            .iter()
            .map(|(server, error)| match error {
                Error::Engine { source, .. } => {
                    format!("{}: {source}", self.nodes[*server].name())
                }
                other => format!("{}: {other}", self.nodes[*server].name()),
            })
            .collect();
        let source = format!("only {few} of {all} servers took part; {}", each.join("; "));
        Error::Engine { engine: NAME, doing: doing.into(), retryable, source: source.into() }
    }
}

impl Redlock {
    /// Connects to the servers that a URL names. A majority has to be reachable.
    ///
    /// # Errors
    /// [`Error::Url`] for an invalid URL, [`Error::Engine`] if too few servers answer.
    pub async fn connect(endpoint: &Endpoint) -> Result<Self> {
        let (nodes, settings) = settings::read(endpoint)?;
        let nodes: Vec<_> = nodes.into_iter().map(Arc::new).collect();
        let quorum = Quorum { nodes, settings };
        let started = Instant::now();
        while let Err(error) = quorum.greet().await {
            if !error.is_retryable() || started.elapsed() >= PATIENCE {
                return Err(error);
            }
            tokio::time::sleep(settings.node_timeout).await;
        }
        Ok(Self { quorum: Arc::new(quorum) })
    }
}

impl Quorum {
    /// Checks that a majority answers.
    async fn greet(&self) -> Result<()> {
        let pings = self.nodes.iter().enumerate();
        let pings = pings.map(|(at, node)| (at, question(node.clone().ping())));
        let mut calls = FanOut::new(pings.collect());
        let (mut heard, mut silent) = (0, Vec::new());
        while heard < self.majority() {
            match calls.next().await {
                Some((_, Ok(()))) => heard += 1,
                Some((server, Err(error))) => silent.push((server, error)),
                None => return Err(self.too_few("connect", silent)),
            }
        }
        calls.leave();
        Ok(())
    }
}

#[async_trait]
impl Engine for Redlock {
    fn guarantees(&self) -> Guarantees {
        promises(self.quorum.settings)
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(RedlockClaim::new(self.quorum.clone(), request))
    }

    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        renew::renew(&self.quorum, leases).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        inspect::inspect(&self.quorum, query).await
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        inspect::break_lock(&self.quorum, key, by).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        inspect::breaks(&self.quorum).await
    }

    async fn request_yield(&self, key: &Key, asked: &YieldRequest) -> Result<Vec<Entry>> {
        inspect::request_yield(&self.quorum, key, asked).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(doctor::doctor(&self.quorum).await)
    }

    fn disconnected(&self) -> Option<Signal> {
        let nodes = self.quorum.nodes.iter();
        Some(first(nodes.map(|node| node.store().settings.disconnections.next()).collect()))
    }

    async fn close(&self) {
        self.quorum.nodes.iter().for_each(|node| node.close());
    }
}
