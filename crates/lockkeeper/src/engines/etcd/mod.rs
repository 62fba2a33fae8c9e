//! `etcd:`: locks kept by a cluster that agrees on every step, in the layout of etcd's own clients.
//!
//! An entry in a queue is a key that lives as long as a lease; the lowest create revision holds,
//! and is the fence. Each waiter watches the entry ahead of it. `etcdctl lock` and services that
//! use etcd's own `concurrency` package wait in the same queues.

mod ahead;
mod broken;
mod claim;
mod client;
mod cluster;
mod doctor;
mod enter;
mod error;
mod held;
mod inspect;
mod keepalive;
mod layout;
mod leases;
mod renew;
mod settings;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::claim::EtcdClaim;
use self::client::{RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse};
use self::cluster::{Cluster, PATIENCE};
use self::error::{NAME, is_denied};
use self::keepalive::KeepAlive;
use self::layout::KeyNames;
use self::leases::Leases;
use self::settings::Settings;
use self::watch::Watches;
use super::Registration;
use crate::core::clock::Moment;
use crate::engine::{
    Break, Breaker, Claim, Death, Engine, Entry, FenceSource, Finding, Guarantees, Lease, Order,
    Query, Reentrance, Renewal, Request, Scope, Signal, Snapshot, Support, Survives, Wakeup,
    YieldRequest,
};
use crate::engines::endpoint::Endpoint;
use crate::error::Result;
use crate::key::Key;

pub(crate) const ENGINE: Registration = Registration {
    open: |endpoint| Box::pin(async { Ok(Arc::new(open(endpoint).await?) as Arc<dyn Engine>) }),
    guarantees: |endpoint| Settings::read(endpoint).map(|_| GUARANTEES),
    ways: &["etcd://h1,h2,h3"],
};

/// What this engine promises.
const GUARANTEES: Guarantees = Guarantees {
    engine: NAME,
    read_write: Support::Yes,
    semaphore: Support::Yes,
    // With the longest name, about as many as fit into a request.
    most_permits: 800,
    order: Order::Fifo,
    fence: FenceSource::Revision,
    death: Death::Lease,
    wakeup: Wakeup::Push,
    scope: Scope::Network,
    survives: Survives::Minority,
    reentrance: Reentrance::Client,
    hand_over: Support::No("its fence is the store's revision"),
    keep: Support::No("its fence is the store's revision"),
};

/// How many operations go into one transaction; servers refuse more than 128.
const OPERATIONS: usize = 100;

/// Locks in an etcd cluster.
#[derive(Debug, Clone)]
pub struct Etcd {
    shared: Arc<Shared>,
}

/// What all claims of a client share.
#[derive(Debug)]
struct Shared {
    cluster: Arc<Cluster>,
    names: KeyNames,
    leases: Leases,
    keepalive: KeepAlive,
    watches: Watches,
    bare_password: bool,
}

/// Opens `etcd://h1,h2,h3` or, with TLS, `etcds://`, and checks that a member answers.
async fn open(endpoint: Endpoint) -> Result<Etcd> {
    let settings = Settings::read(&endpoint)?;
    let cluster = Arc::new(Cluster::new(settings.addresses, &settings.access)?);
    let names = KeyNames::new(settings.prefix);
    greet(&cluster, &names).await?;
    let shared = Shared {
        watches: Watches::new(cluster.clone()),
        cluster,
        names,
        leases: Leases::default(),
        keepalive: KeepAlive::default(),
        bare_password: settings.bare_password,
    };
    Ok(Etcd { shared: Arc::new(shared) })
}

/// Reads a key of ours, which every user of locks may do; the status of a member is for root.
///
/// A member that refuses even this key is reachable. Missing permissions are reported when they are
/// needed.
async fn greet(cluster: &Cluster, names: &KeyNames) -> Result<()> {
    let hello = cluster.ask("connect", PATIENCE, |client| {
        let key = RangeRequest::key(names.greeting());
        client.range(RangeRequest { serializable: true, count_only: true, ..key })
    });
    match hello.await {
        Err(error) if !is_denied(&error) => Err(error),
        _ => Ok(()),
    }
}

#[async_trait]
impl Engine for Etcd {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(EtcdClaim::new(self.shared.clone(), request))
    }

    /// Servers process the requests of one connection concurrently.
    fn ordered(&self) -> bool {
        false
    }

    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        renew::renew(&self.shared, leases).await
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
        doctor::examine(&self.shared).await
    }

    fn disconnected(&self) -> Option<Signal> {
        Some(self.shared.cluster.disconnections.next())
    }

    async fn close(&self) {
        for id in self.shared.leases.drain() {
            // A lease that cannot be revoked expires.
            let _ = leases::revoke(&self.shared.cluster, id, &mut false).await;
        }
    }
}

impl Shared {
    async fn txn(&self, doing: &str, txn: TxnRequest, doubt: &mut bool) -> Result<TxnResponse> {
        self.cluster.change(doing, PATIENCE, doubt, |client| client.txn(txn.clone())).await
    }

    async fn get(&self, doing: &str, request: RangeRequest) -> Result<RangeResponse> {
        self.cluster.ask(doing, PATIENCE, |client| client.range(request.clone())).await
    }
}

/// Any number of operations for one transaction, most of them in nested transactions.
///
/// The first one stays first. Servers limit the number of operations side by side and of those
/// around them.
fn nested(mut operations: Vec<RequestOp>) -> Vec<RequestOp> {
    if operations.len() > OPERATIONS {
        let more = operations.split_off(1);
        let parts = more.chunks(OPERATIONS / 2);
        operations.extend(parts.map(|part| RequestOp::txn(TxnRequest::when([], part.to_vec()))));
    }
    operations
}

/// How long a member may take to answer about a lease, so that another can be asked before it
/// expires.
fn patience(ttl: Duration) -> Duration {
    (ttl / 6).clamp(Duration::from_millis(500), PATIENCE)
}
