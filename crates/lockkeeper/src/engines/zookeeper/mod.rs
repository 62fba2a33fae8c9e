//! `zookeeper:` keeps locks as ephemeral sequential nodes, in the layout of Curator's recipes.
//!
//! Every claim creates a node in the directory of its lock. The lowest sequence holds, and every
//! other claim watches the one node that blocks it. Nodes belong to a session, of which a client
//! has one, so the lock of a dead holder is free when the servers expire its session.
//!
//! Easy to get wrong: a follower may show a past in which our session was alive. So grants and
//! renewals are always confirmed by a write, to which a majority has to agree.

mod broken;
mod claim;
mod doctor;
mod error;
mod held;
mod inspect;
mod layout;
mod nodes;
mod other_kind;
mod permits;
mod queue_node;
mod renew;
mod semaphore;
mod session;
mod settings;
#[cfg(feature = "zookeeper-tls")]
mod tls;
mod watch;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use self::claim::LockClaim;
use self::error::NAME;
use self::layout::Node;
use self::queue_node::OwnNode;
use self::semaphore::SemaphoreClaim;
use self::session::{Session, Sessions};
use self::settings::Settings;
use super::{Registration, queued};
use crate::core::admission::Turn;
use crate::core::clock::Moment;
use crate::engine::{
    Break, Breaker, Claim, Death, Engine, Entry, FenceSource, Finding, Guarantees, Lease, Mode,
    Order, Query, Reentrance, Renewal, Request, Scope, Signal, Snapshot, Support, Survives, Wakeup,
    YieldRequest,
};
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::key::Key;

pub(crate) const ENGINE: Registration = Registration {
    open: |endpoint| Box::pin(async { Ok(Arc::new(open(endpoint).await?) as Arc<dyn Engine>) }),
    guarantees: |endpoint| Settings::parse(endpoint).map(|_| GUARANTEES),
    ways: &["zookeeper://h1,h2,h3/locks"],
};

/// The same over TLS.
#[cfg(feature = "zookeeper-tls")]
pub(crate) const SECURE: Registration = Registration { ways: &[], ..ENGINE };

/// What this engine promises.
const GUARANTEES: Guarantees = Guarantees {
    engine: error::NAME,
    read_write: Support::Yes,
    semaphore: Support::Yes,
    // They are created in one request, which keeps the servers busy; with a long note, fewer fit
    // into it.
    most_permits: 1_000,
    order: Order::Fifo,
    fence: FenceSource::Revision,
    death: Death::Session,
    wakeup: Wakeup::Push,
    scope: Scope::Network,
    survives: Survives::Minority,
    reentrance: Reentrance::Client,
    hand_over: Support::No("its fence is the store's revision"),
    keep: Support::No("its fence is the store's revision"),
};

/// Locks in a ZooKeeper ensemble.
#[derive(Debug)]
pub struct ZooKeeper {
    shared: Arc<Shared>,
}

/// Opens `zookeeper://h1,h2,h3/root` or, with TLS, `zookeepers://`.
async fn open(endpoint: Endpoint) -> Result<ZooKeeper> {
    let settings = Settings::parse(&endpoint)?;
    check_process()?;
    let sessions = Sessions::connect(settings.clone()).await?;
    let shared = Shared { settings, sessions, in_use: Arc::default() };
    Ok(ZooKeeper { shared: Arc::new(shared) })
}

/// Fails instead of waiting in vain: one thread per process serves the sockets and timers of the
/// client crate, and a process that is forked after it was started does not have it.
fn check_process() -> Result<()> {
    static STARTED_BY: OnceLock<u32> = OnceLock::new();
    if *STARTED_BY.get_or_init(std::process::id) == std::process::id() {
        return Ok(());
    }
    Err(Error::Unsupported {
        engine: NAME,
        what: "connect in a process that was forked from one which had connected (the thread that \
               serves its sockets stayed there); fork first, or start a program"
            .to_owned(),
    })
}

#[async_trait]
impl Engine for ZooKeeper {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn lease_of(&self, ttl: Duration) -> Duration {
        ttl.min(self.shared.sessions.length() / 2)
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        match request.mode {
            Mode::Permits { take, limit } => {
                Box::new(SemaphoreClaim::new(&self.shared, request, take, limit))
            }
            _ => Box::new(LockClaim::new(&self.shared, request)),
        }
    }

    async fn renew(&self, leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>> {
        renew::renew(leases, asked).await.map_err(|mut error| {
            // The client's error does not name the servers.
            if let Error::Engine { doing, .. } = &mut error {
                *doing += &format!(" at {}", self.shared.settings.servers());
            }
            error
        })
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        inspect::inspect(&self.shared, query).await
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        broken::break_lock(&self.shared, key, by).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        broken::breaks(&self.shared).await
    }

    async fn request_yield(&self, key: &Key, asked: &YieldRequest) -> Result<Vec<Entry>> {
        inspect::request_yield(&self.shared, key, asked).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(&self.shared).await
    }

    fn disconnected(&self) -> Option<Signal> {
        Some(self.shared.sessions.disconnections.next())
    }

    async fn why_silent(&self) -> Option<String> {
        self.shared.settings.why_unreachable().await
    }

    async fn close(&self) {
        // Locks that are still held need the session; it ends with the last of them.
        if Arc::strong_count(&self.shared.in_use) == 1 {
            self.shared.sessions.close().await;
        }
    }
}

/// What all claims of a client share.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    sessions: Sessions,
    /// Cloned by every claim that holds.
    in_use: Arc<()>,
}

impl Shared {
    /// The directory of a lock.
    fn dir(&self, key: &Key) -> String {
        let root = &self.settings.root;
        format!("{root}/{}", layout::encode(key, root.is_empty()))
    }

    /// A list beside the locks.
    fn list(&self, name: &str) -> String {
        format!("{}/{name}", self.settings.root)
    }

    /// The root as a path.
    fn root(&self) -> &str {
        if self.settings.root.is_empty() { "/" } else { &self.settings.root }
    }
}

/// Whether our node is granted.
fn turn(queue: &[Node], own: &OwnNode) -> Turn {
    let at = queue.iter().position(|node| node.name == own.name);
    let at = at.expect("a node is in the queue when the turn is asked for");
    queued::turn(queue.iter().map(|node| node.kind.mode()), at)
}
