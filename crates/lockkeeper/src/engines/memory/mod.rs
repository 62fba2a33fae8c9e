//! `memory:`: locks between the tasks of one process, with the behaviour of a remote store.
//!
//! It has leases, queues and fences like any other engine, so you can test code that uses locks
//! against it, including the loss of a lock: [`Memory::expire`], [`Memory::partition`],
//! [`Memory::delay`]. Its only clock is the runtime's, which tests can pause.

mod store;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

use self::store::{Signals, Store};
use super::Registration;
use crate::core::clock::{Clock, Moment};
use crate::engine::{
    Break, Breaker, Claim, Death, Engine, Entry, FenceSource, Grant, Guarantees, Lease, Order,
    Query, Reentrance, Released, Renewal, Request, Scope, Snapshot, Support, Survives, Wakeup,
    YieldRequest,
};
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::key::Key;

pub(crate) const ENGINE: Registration = Registration {
    open: |endpoint| Box::pin(open(endpoint)),
    guarantees: |endpoint| endpoint.options().finish().map(|()| GUARANTEES),
    ways: &["memory:"],
};

/// What this engine promises.
const GUARANTEES: Guarantees = Guarantees {
    engine: "memory",
    read_write: Support::Yes,
    semaphore: Support::Yes,
    most_permits: 100_000,
    order: Order::Fifo,
    fence: FenceSource::Counter,
    death: Death::Lease,
    wakeup: Wakeup::Notify,
    scope: Scope::Process,
    survives: Survives::NothingApart,
    reentrance: Reentrance::Store,
    hand_over: Support::Yes,
    keep: Support::Yes,
};

/// A store inside this process. Clones share it, and so do connections to the same `memory:NAME`.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    shared: Arc<Shared>,
}

impl Memory {
    /// Creates a separate store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the leases of all holders of a key, as if they had expired.
    ///
    /// Holders are not notified: as on a real store, they find out at their next renewal.
    pub fn expire(&self, key: impl AsRef<str>) {
        self.shared.lock().evict(key.as_ref());
    }

    /// Disconnects or reconnects the store. Calls hang meanwhile; requests that reached the store
    /// take effect.
    pub fn partition(&self, cut: bool) {
        self.shared.link.send_modify(|link| link.cut = cut);
    }

    /// Delays every call by `delay`, half of it before the store sees the request.
    pub fn delay(&self, delay: Duration) {
        self.shared.link.send_modify(|link| link.delay = delay);
    }
}

/// Opens `memory:` (a separate store) or `memory:NAME` (one per name and process).
async fn open(endpoint: Endpoint) -> Result<Arc<dyn Engine>> {
    static NAMED: OnceLock<Mutex<HashMap<String, Weak<Shared>>>> = OnceLock::new();
    endpoint.options().finish()?;
    let name = endpoint.expose().path();
    if endpoint.expose().has_host() {
        return Err(Error::Url(
            "memory: has no host; write memory: or memory:NAME to share a store inside a process"
                .to_owned(),
        ));
    }
    if name.is_empty() {
        return Ok(Arc::new(Memory::new()));
    }
    let mut named =
        NAMED.get_or_init(Mutex::default).lock().expect("nothing panics under this lock");
    named.retain(|_, shared| shared.strong_count() > 0);
    if let Some(shared) = named.get(name).and_then(Weak::upgrade) {
        return Ok(Arc::new(Memory { shared }));
    }
    let memory = Memory::new();
    named.insert(name.to_owned(), Arc::downgrade(&memory.shared));
    Ok(Arc::new(memory))
}

#[async_trait]
impl Engine for Memory {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let signals = Signals::of(&request);
        Box::new(MemoryClaim { shared: self.shared.clone(), request, signals })
    }

    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        self.shared.travel().await;
        let renewals = {
            let mut store = self.shared.lock();
            leases.iter().map(|lease| store.renew(lease)).collect()
        };
        self.shared.travel().await;
        Ok(renewals)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        self.shared.travel().await;
        let snapshots = self.shared.lock().inspect(query);
        self.shared.travel().await;
        Ok(snapshots)
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        self.shared.travel().await;
        let broken = self.shared.lock().break_lock(key, by);
        self.shared.travel().await;
        Ok(broken)
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        self.shared.travel().await;
        let breaks = self.shared.lock().broken();
        self.shared.travel().await;
        Ok(breaks)
    }

    async fn request_yield(&self, key: &Key, asked: &YieldRequest) -> Result<Vec<Entry>> {
        self.shared.travel().await;
        let asked = self.shared.lock().request_yield(key, asked);
        self.shared.travel().await;
        Ok(asked)
    }

    fn clock(&self) -> Clock {
        Clock::Runtime
    }
}

/// A claim on a lock in memory.
#[derive(Debug)]
struct MemoryClaim {
    shared: Arc<Shared>,
    request: Request,
    signals: Signals,
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        self.shared.travel().await;
        let answer = self.shared.lock().attempt(&self.request, &self.signals, asked);
        self.shared.travel().await;
        answer
    }

    async fn wait(&mut self) -> Result<()> {
        let expiry = self.shared.lock().next_expiry(&self.request.key);
        match expiry {
            Some(expiry) => tokio::select! {
                biased;
                () = self.signals.turn.notified() => {}
                () = sleep_until(expiry) => {}
            },
            None => self.signals.turn.notified().await,
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        self.shared.travel().await;
        let released = self.shared.lock().release(&self.request.key, self.request.token);
        self.shared.travel().await;
        Ok(released)
    }
}

#[derive(Debug, Default)]
struct Shared {
    store: Mutex<Store>,
    link: watch::Sender<Link>,
}

/// The simulated network to the store.
#[derive(Debug, Default, Clone)]
struct Link {
    cut: bool,
    delay: Duration,
}

impl Shared {
    /// One trip to the store or back.
    async fn travel(&self) {
        let link = self.link.borrow().clone();
        if link.cut {
            let mut changes = self.link.subscribe();
            // The sender lives in `self`, so this ends when the link is reconnected.
            let _ = changes.wait_for(|link| !link.cut).await;
        }
        if !link.delay.is_zero() {
            sleep(link.delay / 2).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("nothing panics under this lock")
    }
}
