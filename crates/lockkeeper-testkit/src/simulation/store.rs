//! The store of a simulation: its clock differs from ours, and it records every grant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::clock::{Clock, Moment};
use lockkeeper::engine::{
    Break, Breaker, Claim, Engine, Entry, Grant, Guarantees, Lease, Mode, Query, Released, Renewal,
    Request, Snapshot,
};
use lockkeeper::engines::memory::Memory;
use lockkeeper::{Fence, Guard, Key, Result};

use crate::history::Recorder;

/// A store whose clock is fast by a fraction of a percent, and which records when it granted what.
#[derive(Debug, Clone)]
pub(super) struct Store {
    memory: Memory,
    /// In thousandths.
    fast: u32,
    recorder: Arc<Recorder>,
    /// By key and fence.
    admitted: Arc<Mutex<HashMap<(String, u64), Admission>>>,
}

/// When a lock was granted, and how many fences the grant reserved.
#[derive(Debug, Clone, Copy)]
struct Admission {
    at: Duration,
    reserved: u32,
}

impl Store {
    pub(super) fn new(fast: u32, recorder: Arc<Recorder>) -> Self {
        Self { memory: Memory::new(), fast, recorder, admitted: Arc::default() }
    }

    /// When the store granted this lock. Unknown for readers, which share a fence, and for a task
    /// that another task handed the lock over to.
    pub(super) fn admitted(&self, guard: &Guard) -> Option<Duration> {
        if guard.mode() == Mode::Read {
            return None;
        }
        self.admission(guard.key(), guard.fence()).map(|admission| admission.at)
    }

    fn admission(&self, key: &Key, fence: Fence) -> Option<Admission> {
        let grant = (key.to_string(), fence.get());
        self.admitted.lock().expect("nothing panics under this lock").get(&grant).copied()
    }

    /// Breaks a lock, and records that.
    pub(super) async fn evict(&self, key: &str) {
        let key = Key::new(key).expect("the keys of a simulation are fine");
        let by = Breaker::new(lockkeeper::whoami().into(), None);
        let evicted = self.memory.break_lock(&key, &by).await.expect("memory does not fail");
        for fence in evicted.iter().filter_map(|entry| entry.fence) {
            let reserved = self.admission(&key, fence).map_or(0, |admission| admission.reserved);
            let last = fence.get() + u64::from(reserved);
            self.recorder.evicted(key.as_str(), fence.get(), last);
        }
    }

    /// All holders and waiters that are still in the store, apart from what is kept if `kept` is
    /// not set.
    pub(super) async fn left(&self, kept: bool) -> Vec<String> {
        let all = Query::Prefix(String::new());
        let mut snapshots = self.memory.inspect(&all).await.expect("memory does not fail");
        let counts = |entry: &Entry| kept || !entry.kept;
        snapshots.retain(|seen| {
            seen.holders.iter().any(counts) || seen.waiters.as_ref().is_some_and(|w| !w.is_empty())
        });
        let each = |snapshot: &Snapshot| {
            let (holders, waiters) = (snapshot.holders.len(), snapshot.waiters.iter().flatten());
            format!("{holders} holders and {} waiters of {}", waiters.count(), snapshot.key)
        };
        snapshots.iter().map(each).collect()
    }

    /// How long the store really keeps a lease of `ttl`.
    fn really(&self, ttl: Duration) -> Duration {
        ttl - ttl * self.fast / 1000
    }
}

#[async_trait]
impl Engine for Store {
    fn guarantees(&self) -> Guarantees {
        self.memory.guarantees()
    }

    fn claim(&self, mut request: Request) -> Box<dyn Claim> {
        let asked = request.clone();
        request.ttl = self.really(request.ttl);
        Box::new(WatchedClaim { claim: self.memory.claim(request), asked, store: self.clone() })
    }

    async fn renew(&self, leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>> {
        let mut leases = leases.to_vec();
        leases.iter_mut().for_each(|lease| lease.ttl = self.really(lease.ttl));
        self.memory.renew(&leases, asked).await
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
        self.memory.clock()
    }
}

#[derive(Debug)]
struct WatchedClaim {
    claim: Box<dyn Claim>,
    asked: Request,
    store: Store,
}

#[async_trait]
impl Claim for WatchedClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let mut grant = self.claim.attempt(asked).await?;
        if let Some(grant) = &mut grant {
            grant.ttl = self.asked.ttl;
            if self.asked.mode != Mode::Read {
                let this = (self.asked.key.to_string(), grant.fence.get());
                let now = self.store.recorder.now();
                let mut admitted = self.store.admitted.lock().expect("nothing panics here");
                let admission = Admission { at: now, reserved: grant.reserved };
                admitted.entry(this).or_insert(admission);
            }
        }
        Ok(grant)
    }

    async fn wait(&mut self) -> Result<()> {
        self.claim.wait().await
    }

    async fn release(&mut self) -> Result<Released> {
        self.claim.release().await
    }
}
