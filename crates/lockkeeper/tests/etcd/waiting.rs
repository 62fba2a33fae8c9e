//! Waiters that nothing wakes but the events that they wait for.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Clock;
use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::{Claim, Engine, Grant, Mode, Request};
use lockkeeper::{Client, Key, Token};
use lockkeeper_testkit::server::etcd::Servers;
use tokio::time::timeout;

/// Longer than any test: what is noticed meanwhile was not noticed by a poll.
const LONG: Duration = Duration::from_secs(60);

async fn open(servers: &Servers) -> Arc<dyn Engine> {
    let endpoint = Endpoint::parse(&servers.url("")).unwrap();
    lockkeeper::engines::open(endpoint).await.unwrap()
}

/// A bare claim: nothing polls for it.
fn claim(engine: &Arc<dyn Engine>, key: &str, mode: Mode) -> Box<dyn Claim> {
    engine.claim(Request::new(Key::new(key).unwrap(), Token::fresh(), mode, LONG))
}

async fn attempt(claim: &mut Box<dyn Claim>) -> Option<Grant> {
    claim.attempt(Clock::System.now()).await.unwrap()
}

/// Waits for a wake-up, not for the poll that would come otherwise.
async fn woken(claim: &mut Box<dyn Claim>) {
    timeout(LONG / 4, claim.wait()).await.expect("it is woken").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_before_a_watch_starts_wakes_the_waiter() {
    let servers = Servers::start(1);
    let engine = open(&servers).await;
    for mode in [Mode::Mutex, Mode::Write, Mode::Permits { take: 1, limit: 1 }] {
        let claim = || claim(&engine, mode.kind(), mode);
        let [mut holder, mut next] = [claim(), claim()];
        attempt(&mut holder).await.expect("it is free");
        assert!(attempt(&mut next).await.is_none());
        // Nobody watches yet.
        holder.release().await.unwrap();
        woken(&mut next).await;
        attempt(&mut next).await.expect("it is its turn");
        next.release().await.unwrap();
    }
    let permits = |take| claim(&engine, "granted", Mode::Permits { take, limit: 2 });
    let [mut holder, mut next, mut last] = [permits(2), permits(1), permits(1)];
    attempt(&mut holder).await.expect("it is free");
    assert!(attempt(&mut next).await.is_none());
    assert!(attempt(&mut last).await.is_none());
    holder.release().await.unwrap();
    attempt(&mut next).await.expect("it is its turn");
    // The one ahead stays, but is granted.
    woken(&mut last).await;
    attempt(&mut last).await.expect("there is room for two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_not_the_first_because_the_one_ahead_gave_up() {
    let servers = Servers::start(1);
    let engine = open(&servers).await;
    for mode in [Mode::Mutex, Mode::Write, Mode::Read] {
        let claim = |one| claim(&engine, mode.kind(), one);
        let ahead = if mode == Mode::Mutex { Mode::Mutex } else { Mode::Write };
        let [mut holder, mut between, mut last] = [claim(ahead), claim(ahead), claim(mode)];
        let first = attempt(&mut holder).await.expect("it is free").fence;
        assert!(attempt(&mut between).await.is_none());
        assert!(attempt(&mut last).await.is_none());
        between.release().await.unwrap();
        woken(&mut last).await;
        assert!(attempt(&mut last).await.is_none(), "{mode:?} beside a holder");
        holder.release().await.unwrap();
        woken(&mut last).await;
        let fence = attempt(&mut last).await.expect("it is its turn").fence;
        assert!(if mode == Mode::Read { fence == first } else { fence > first }, "{mode:?}");
        last.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_entry_is_deleted_notices_and_queues_again() {
    let servers = Servers::start(1);
    let holder = Client::connect(servers.url("")).await.unwrap();
    let guard = holder.mutex("key").ttl(LONG).acquire().await.unwrap();
    let held = servers.keys();
    let mut waiter = claim(&open(&servers).await, "key", Mode::Mutex);
    assert!(waiter.attempt(Clock::System.now()).await.unwrap().is_none());
    let place = servers.keys().into_iter().find(|place| !held.contains(place)).unwrap();
    servers.ctl(&["del", &place]);
    timeout(LONG / 4, waiter.wait()).await.expect("it is told").unwrap();
    assert!(waiter.attempt(Clock::System.now()).await.unwrap().is_none());
    assert_eq!(holder.inspect("key").await.unwrap().unwrap().waiters.unwrap().len(), 1);
    guard.release().await.unwrap();
    timeout(LONG / 4, waiter.wait()).await.expect("it is its turn").unwrap();
    waiter.attempt(Clock::System.now()).await.unwrap().expect("it is let in");
    waiter.release().await.unwrap();
}
