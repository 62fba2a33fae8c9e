//! What can happen to a cluster and on the way to it.

use std::time::Duration;

use lockkeeper::{Client, Loss, Release};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, timeout};

use crate::load::Load;
use crate::proxy::{Proxy, Way};
use crate::server::Servers;

const TTL: Duration = Duration::from_secs(5);

async fn connect(url: impl AsRef<str>) -> Client {
    Client::connect(url).await.expect("a cluster that runs can be connected to")
}

/// Waits until something is true.
async fn eventually(what: &str, limit: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// What is left in a cluster after everyone has closed and every lease had time to end.
async fn left(servers: &Servers) -> Vec<String> {
    let started = Instant::now();
    loop {
        let (keys, leases) = (servers.keys(), servers.leases());
        if keys.is_empty() && leases == 0 || started.elapsed() > TTL * 4 {
            let leases = (leases > 0).then(|| format!("{leases} leases"));
            return keys.into_iter().chain(leases).collect();
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn load(servers: &Servers) -> Load {
    let mut clients = Vec::new();
    for first in 0..3 {
        // Each talks to another member at first.
        let order: Vec<_> = (0..3).map(|n| servers.address((first + n) % 3)).collect();
        clients.push(connect(format!("etcd://{}", order.join(","))).await);
    }
    Load::start(clients, 12, TTL)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_under_load_costs_no_lock() {
    let servers = Servers::start(3);
    let load = load(&servers).await;
    for _ in 0..2 {
        load.goes_on(50).await;
        let leader = servers.leader();
        servers.kill(leader);
        load.goes_on(50).await;
        servers.restart(leader);
    }
    load.end(async || left(&servers).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_under_load_costs_no_lock() {
    let servers = Servers::start(3);
    let load = load(&servers).await;
    for _ in 0..2 {
        load.goes_on(50).await;
        let leader = servers.leader();
        servers.signal(leader, Signal::SIGSTOP);
        load.goes_on(50).await;
        servers.signal(leader, Signal::SIGCONT);
    }
    load.end(async || left(&servers).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_from_its_member_moves_over_and_keeps_its_locks() {
    let servers = Servers::start(3);
    let proxy = Proxy::to(servers.address(0)).await;
    let url = format!("etcd://{},{},{}", proxy.address(), servers.address(1), servers.address(2));
    let (client, other) = (connect(url).await, connect(servers.url("")).await);
    let guard = client.mutex("key").ttl(TTL).acquire().await.unwrap();
    let first = other.mutex("awaited").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(client.mutex("awaited").ttl(TTL).acquire());
    eventually("it is in line", TTL, async || {
        let line = other.inspect("awaited").await.unwrap().unwrap();
        line.waiters.is_some_and(|waiters| waiters.len() == 1)
    })
    .await;
    proxy.set(Way::Hole);
    // Longer than the lease that it had when it was cut off.
    assert!(timeout(TTL * 2, guard.lost()).await.is_err(), "lost, though two members were there");
    guard.check().unwrap();
    assert!(other.mutex("key").try_acquire().await.unwrap().is_none());
    drop(first);
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    client.close().await;
    other.close().await;
    assert_eq!(left(&servers).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_from_everyone_is_told_in_time() {
    let servers = Servers::start(1);
    let proxy = Proxy::to(servers.address(0)).await;
    let (client, other) =
        (connect(format!("etcd://{}", proxy.address())).await, connect(servers.url("")).await);
    for way in [Way::Hole, Way::NoReplies, Way::Cut] {
        let guard = client.mutex("key").ttl(TTL).acquire_within(TTL * 4).await.unwrap();
        let next = tokio::spawn(other.mutex("key").ttl(TTL).acquire());
        proxy.set(way);
        assert_eq!(guard.lost().await, Loss::Expired, "{way:?}");
        assert!(!next.is_finished(), "{way:?}: told only after the next one was let in");
        let next = next.await.unwrap().unwrap();
        assert!(next.fence() > guard.fence());
        proxy.set(Way::Cut);
        proxy.set(Way::Open);
        let _ = guard.release().await;
        next.check().unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_an_operator_revokes_is_a_lock_lost() {
    let servers = Servers::start(1);
    let client = connect(servers.url("")).await;
    let guard = client.mutex("key").ttl(TTL).acquire().await.unwrap();
    let lease = servers.ctl(&["lease", "list"]).lines().nth(1).unwrap().to_owned();
    servers.ctl(&["lease", "revoke", &lease]);
    let told = timeout(TTL / 2, guard.lost()).await;
    assert_eq!(told, Ok(Loss::Gone));
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    // The lease is not used again, though it was handed back.
    client.mutex("key").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_place_is_taken_away_lines_up_again() {
    let servers = Servers::start(1);
    let (holder, waiter) = (connect(servers.url("")).await, connect(servers.url("")).await);
    let guard = holder.mutex("key").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("key").ttl(TTL).acquire());
    let places =
        async || servers.keys().into_iter().filter(|key| key.starts_with("key/")).collect();
    let mut before: Vec<String> = Vec::new();
    eventually("two are in line", TTL, async || {
        before = places().await;
        before.len() == 2
    })
    .await;
    let held = holder.inspect("key").await.unwrap().unwrap().holders[0].identity.clone();
    let taken = before.into_iter().find(|place| !place.ends_with(&held)).unwrap();
    servers.ctl(&["del", &taken]);
    eventually("it is in line again", TTL * 2, async || {
        holder.inspect("key").await.unwrap().unwrap().waiters.unwrap().len() == 1
    })
    .await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_while_waiting_loses_no_wake_up() {
    let servers = Servers::start(1);
    let proxy = Proxy::to(servers.address(0)).await;
    let holder = connect(servers.url("")).await;
    let waiter = connect(format!("etcd://{}", proxy.address())).await;
    let guard = holder.mutex("key").ttl(TTL * 4).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("key").ttl(TTL * 4).acquire());
    eventually("it is in line", TTL, async || {
        let line = holder.inspect("key").await.unwrap().unwrap();
        line.waiters.is_some_and(|waiters| waiters.len() == 1)
    })
    .await;
    // The watch has to begin again, from a revision that is not there any more.
    proxy.set(Way::Cut);
    servers.ctl(&["put", "other", "1"]);
    servers.ctl(&["put", "other", "2"]);
    let revision = servers.ctl(&["get", "other", "-w", "fields"]);
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
    servers.ctl(&["compact", revision]);
    proxy.set(Way::Open);
    guard.release().await.unwrap();
    let next = timeout(TTL * 2, waiting).await.expect("it is woken, or looks by itself");
    next.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_are_swallowed_leave_one_grant_and_nothing_behind() {
    let servers = Servers::start(1);
    let proxy = Proxy::to(servers.address(0)).await;
    let observer = connect(servers.url("")).await;
    let client = connect(format!("etcd://{}", proxy.address())).await;
    let mend = || {
        proxy.set(Way::Cut);
        proxy.set(Way::Open);
    };
    // Of the lease: it is made, and nobody hears of it.
    proxy.set(Way::NoReplies);
    let acquire = tokio::spawn(client.mutex("key").ttl(TTL).acquire());
    eventually("the lease is made", TTL, async || servers.leases() == 1).await;
    mend();
    let guard = acquire.await.unwrap().unwrap();
    assert_eq!(servers.leases(), 1, "it was not recognised");
    // Of the release: the place is given up, and nobody hears of it.
    proxy.set(Way::NoReplies);
    let release = tokio::spawn(guard.release());
    eventually("the place is given up", TTL, async || servers.keys().is_empty()).await;
    mend();
    assert!(matches!(release.await.unwrap(), Ok(Release::Released | Release::Unconfirmed)));
    // Of the transaction: the place is taken with a spare lease, and nobody hears of it.
    // One that was named in a request over a connection that is being cut is revoked, not kept.
    eventually("doubtful leases are revoked", TTL, async || servers.leases() == 0).await;
    eventually("there is a spare lease", TTL, async || {
        client.mutex("warm").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
        servers.leases() == 1
    })
    .await;
    proxy.set(Way::NoReplies);
    let acquire = tokio::spawn(client.mutex("key").ttl(TTL).acquire());
    eventually("the place is taken", TTL, async || servers.keys().len() == 1).await;
    mend();
    let guard = acquire.await.unwrap().unwrap();
    let snapshot = observer.inspect("key").await.unwrap().unwrap();
    assert_eq!((snapshot.holders.len(), snapshot.waiters.unwrap().len()), (1, 0));
    assert!(observer.mutex("key").try_acquire().await.unwrap().is_none());
    // Of the revocation, which is how a claim in doubt is undone.
    proxy.set(Way::NoReplies);
    let release = tokio::spawn(guard.release());
    eventually("it is revoked", TTL, async || servers.keys().is_empty()).await;
    mend();
    assert!(matches!(release.await.unwrap(), Ok(Release::Released | Release::Unconfirmed)));
    client.close().await;
    observer.close().await;
    assert_eq!(left(&servers).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_given_up_on_without_a_reply_leaves_nothing() {
    let servers = Servers::start(1);
    let proxy = Proxy::to(servers.address(0)).await;
    let client = connect(format!("etcd://{}", proxy.address())).await;
    client.mutex("warm").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    proxy.set(Way::NoReplies);
    let acquire = tokio::spawn(client.mutex("key").ttl(TTL).acquire());
    eventually("the place is taken", TTL, async || servers.keys().len() == 1).await;
    acquire.abort();
    proxy.set(Way::Cut);
    proxy.set(Way::Open);
    eventually("the place is given up", TTL, async || servers.keys().is_empty()).await;
    client.close().await;
    assert_eq!(left(&servers).await, [""; 0]);
}
