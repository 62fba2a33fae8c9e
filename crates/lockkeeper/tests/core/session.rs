//! Engines whose store keeps a lock as long as its session lives: the core releases what ran out by
//! the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::clock::{Clock, Moment};
use lockkeeper::engine::{
    Break, Breaker, Claim, Death, Engine, Entry, Grant, Guarantees, Lease, Query, Released,
    Renewal, Request, Snapshot,
};
use lockkeeper::engines::memory::Memory;
use lockkeeper::{Client, Error, Key, Loss, Release, Result};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// What the session grants, whatever was requested.
const VOUCHED: Duration = Duration::from_secs(6);

/// A store that never expires a lock while its session lives, which is forever.
#[derive(Debug, Clone, Default)]
struct Session {
    memory: Memory,
    silent: Arc<AtomicBool>,
    /// Whether it does not answer releases.
    keeps: Arc<AtomicBool>,
    renewals: Arc<AtomicUsize>,
    /// The most leases in one call.
    most_leases: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct SessionClaim {
    claim: Box<dyn Claim>,
    keeps: Arc<AtomicBool>,
}

#[async_trait]
impl Engine for Session {
    fn guarantees(&self) -> Guarantees {
        let mut guarantees = self.memory.guarantees();
        guarantees.death = Death::Session;
        guarantees
    }

    fn claim(&self, mut request: Request) -> Box<dyn Claim> {
        request.ttl = Duration::from_secs(365 * 24 * 3600);
        let (claim, keeps) = (self.memory.claim(request), self.keeps.clone());
        Box::new(SessionClaim { claim, keeps })
    }

    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.most_leases.fetch_max(leases.len(), Ordering::Relaxed);
        if self.silent.load(Ordering::Relaxed) {
            return Err(Error::unreachable("session", "renew", "silence"));
        }
        Ok(vec![Renewal::Renewed; leases.len()])
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
impl Claim for SessionClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let grant = self.claim.attempt(asked).await?;
        Ok(grant.map(|mut grant| {
            grant.ttl = VOUCHED;
            grant
        }))
    }

    async fn wait(&mut self) -> Result<()> {
        self.claim.wait().await
    }

    async fn release(&mut self) -> Result<Released> {
        if self.keeps.load(Ordering::Relaxed) {
            return Err(Error::unreachable("session", "release", "silence"));
        }
        self.claim.release().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_fixed_lease_is_kept_alive_to_its_end_and_ended_then() {
    let store = Session::default();
    let (client, other) = (Client::new(store.clone()), Client::new(store.clone()));
    let asked = Instant::now();
    let guard = client.mutex("key").lease(60 * SECOND).acquire().await.unwrap();
    sleep(59 * SECOND).await;
    guard.check().unwrap();
    assert!(guard.remaining() <= SECOND, "{:?}", guard.remaining());
    assert!(other.mutex("key").try_acquire().await.unwrap().is_none());
    let next = other.mutex("key").acquire().await.unwrap();
    let taken = asked.elapsed();
    assert!(taken > 59 * SECOND && taken < 61 * SECOND, "{taken:?}");
    assert_eq!(guard.lost().await, Loss::Ended);
    let renewals = store.renewals.load(Ordering::Relaxed);
    assert!((25..45).contains(&renewals), "{renewals} renewals in 60 s, one every two");
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_is_about_to_end_is_renewed_once_in_a_call() {
    let store = Session::default();
    let client = Client::new(store.clone());
    // A renewal is due a moment before its end.
    let lease = 60 * SECOND + Duration::from_millis(100);
    let guard = client.mutex("key").lease(lease).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Ended);
    assert_eq!(store.most_leases.load(Ordering::Relaxed), 1);
    let renewals = store.renewals.load(Ordering::Relaxed);
    assert!((25..45).contains(&renewals), "{renewals} renewals in 60 s, one every two");
}

#[tokio::test(start_paused = true)]
async fn a_long_fixed_lease_is_lost_when_the_session_is() {
    let store = Session::default();
    let client = Client::new(store.clone());
    let asked = Instant::now();
    let guard = client.mutex("key").lease(60 * SECOND).acquire().await.unwrap();
    store.silent.store(true, Ordering::Relaxed);
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(asked.elapsed(), 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_ran_out_by_the_clock_is_released_when_its_lease_is_over() {
    let store = Session::default();
    let (client, other) = (Client::new(store.clone()), Client::new(store.clone()));
    let asked = Instant::now();
    let guard = client.mutex("key").acquire().await.unwrap();
    store.silent.store(true, Ordering::Relaxed);
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(asked.elapsed(), 4 * SECOND, "a third of the lease before its end");
    let next = other.mutex("key").acquire().await.unwrap();
    let taken = asked.elapsed();
    assert!(taken >= VOUCHED && taken < VOUCHED + SECOND, "let in after {taken:?}");
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_kept_when_lost_is_released_by_its_guard_alone() {
    let store = Session::default();
    let (client, other) = (Client::new(store.clone()), Client::new(store.clone()));
    for fixed in [false, true] {
        let lock = client.mutex("key").keep_when_lost();
        let lock = if fixed { lock.lease(VOUCHED) } else { lock };
        let guard = lock.acquire().await.unwrap();
        store.silent.store(true, Ordering::Relaxed);
        guard.lost().await;
        tokio::time::sleep(10 * VOUCHED).await;
        assert!(other.mutex("key").try_acquire().await.unwrap().is_none(), "fixed: {fixed}");
        store.silent.store(false, Ordering::Relaxed);
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
        other.mutex("key").acquire().await.unwrap().release().await.unwrap();
    }
}

/// A lease would have expired meanwhile; a session that outlives the silence of its servers has
/// not.
#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_for_as_long_as_the_session_may_live() {
    let store = Session::default();
    let (client, other) = (Client::new(store.clone()), Client::new(store.clone()));
    let (dropped, released) = (
        client.mutex("dropped").acquire().await.unwrap(),
        client.mutex("key").acquire().await.unwrap(),
    );
    let _held = other.mutex("wanted").acquire().await.unwrap();
    let wanted = tokio::spawn(client.mutex("wanted").acquire());
    while other
        .inspect("wanted")
        .await
        .unwrap()
        .is_none_or(|seen| seen.waiters.unwrap_or_default().is_empty())
    {
        sleep(SECOND).await;
    }
    store.keeps.store(true, Ordering::Relaxed);
    drop(dropped);
    wanted.abort();
    assert_eq!(released.release().await.unwrap(), Release::Unconfirmed);
    sleep(600 * SECOND).await;
    store.keeps.store(false, Ordering::Relaxed);
    for key in ["dropped", "key"] {
        let freed = other.mutex(key).acquire_within(10 * SECOND).await;
        assert!(freed.is_ok(), "{key} stays held for ever: {freed:?}");
    }
    let waiters = other.inspect("wanted").await.unwrap().unwrap().waiters.unwrap();
    assert!(waiters.is_empty(), "{waiters:?}");
}
