//! Failures of a cluster and of the connection to it.

use std::time::Duration;

use lockkeeper::{Client, Loss, Release};
use lockkeeper_testkit::load::Load;
use lockkeeper_testkit::proxy::{Proxy, Way};
use tokio::time::{Instant, sleep, timeout};

use lockkeeper_testkit::server::etcd::Servers;

const TTL: Duration = Duration::from_secs(5);

/// Longer than any test: what is noticed meanwhile was not noticed by a renewal.
const LONG: Duration = Duration::from_secs(60);

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(url: impl AsRef<str>) -> Client {
    Client::connect(url).await.expect("a cluster that runs can be connected to")
}

/// A connection to the first member that can be broken.
async fn proxy(servers: &Servers) -> Proxy {
    Proxy::start(servers[0].address()).await
}

/// Waits until something is true.
async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// What is left in a cluster after all clients have closed and every lease had time to expire.
async fn left(servers: &Servers) -> Vec<String> {
    let started = Instant::now();
    loop {
        let (keys, leases) = (servers.keys(), servers.leases());
        if keys.is_empty() && leases == 0 || started.elapsed() > PATIENCE {
            let leases = (leases > 0).then(|| format!("{leases} leases"));
            return keys.into_iter().chain(leases).collect();
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn load(servers: &Servers) -> Load {
    let mut clients = Vec::new();
    for first in 0..3 {
        // Each uses another member at first.
        let order: Vec<_> =
            (0..3).map(|n| servers[(first + n) % 3].address().to_string()).collect();
        clients.push(connect(format!("etcd://{}", order.join(","))).await);
    }
    Load::start(clients, 4, 3, TTL)
}

/// Ends a load. There must be no violation, and nothing may be left.
async fn judge(load: Load, servers: &Servers) {
    let judged = load.judge().await;
    assert!(judged.violations.is_empty(), "{:#?}", judged.violations);
    assert_eq!(judged.overlaps, 0, "two held one lock");
    assert_eq!(left(servers).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_under_load_costs_no_lock() {
    let servers = Servers::start(3);
    let load = load(&servers).await;
    for _ in 0..2 {
        load.goes_on(50).await;
        let leader = servers.leader();
        servers[leader].kill();
        load.goes_on(50).await;
        servers[leader].restart();
    }
    judge(load, &servers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_under_load_costs_no_lock() {
    let servers = Servers::start(3);
    let load = load(&servers).await;
    for _ in 0..2 {
        load.goes_on(50).await;
        let leader = servers.leader();
        servers[leader].pause();
        load.goes_on(50).await;
        servers[leader].resume();
    }
    judge(load, &servers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_from_its_member_moves_over_and_keeps_its_locks() {
    // A busy machine takes its time to find the next member.
    let ttl = Duration::from_secs(30);
    let servers = Servers::with(3, &crate::PATIENT);
    let proxy = proxy(&servers).await;
    let url =
        format!("etcd://{},{},{}", proxy.address(), servers[1].address(), servers[2].address());
    let (client, other) = (connect(url).await, connect(servers.url("")).await);
    let guard = client.mutex("key").ttl(ttl).acquire().await.unwrap();
    let first = other.mutex("awaited").ttl(ttl).acquire().await.unwrap();
    let waiting = tokio::spawn(client.mutex("awaited").ttl(ttl).acquire());
    eventually("it is in the queue", async || {
        let seen = other.inspect("awaited").await.unwrap().unwrap();
        seen.waiters.is_some_and(|waiters| waiters.len() == 1)
    })
    .await;
    proxy.hold(Way::ToServer);
    proxy.hold(Way::ToClient);
    // Longer than the lease that it had when it was cut off.
    let lost = timeout(ttl + Duration::from_secs(1), guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}, though two members were there");
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
async fn a_client_that_is_cut_off_from_all_members_is_signalled_in_time() {
    let ttl = Duration::from_secs(8);
    let servers = Servers::start(1);
    let proxy = proxy(&servers).await;
    let (client, other) =
        (connect(format!("etcd://{}", proxy.address())).await, connect(servers.url("")).await);
    for way in ["black hole", "no replies", "cut"] {
        let guard = client.mutex("key").ttl(ttl).acquire_within(PATIENCE).await.unwrap();
        let next = tokio::spawn(other.mutex("key").ttl(ttl).acquire());
        match way {
            "black hole" => {
                proxy.hold(Way::ToServer);
                proxy.hold(Way::ToClient);
            }
            "no replies" => proxy.swallow_replies(usize::MAX),
            _ => {
                proxy.refuse().await;
                proxy.reset();
            }
        }
        assert_eq!(guard.lost().await, Loss::Expired, "{way}");
        assert!(!next.is_finished(), "{way}: told only after the next one was let in");
        let next = next.await.unwrap().unwrap();
        assert!(next.fence() > guard.fence());
        proxy.reset();
        proxy.heal().await;
        let _ = guard.release().await;
        next.check().unwrap();
        next.release().await.unwrap();
    }
}

/// Short ones are kept for the next claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_lease_that_is_not_needed_any_more_is_revoked() {
    let servers = Servers::start(1);
    let (client, other) = (connect(servers.url("")).await, connect(servers.url("")).await);
    let leases = || servers.ctl(&["lease", "list"]).lines().count() - 1;
    let hour = Duration::from_secs(3600);
    let held = client.mutex("key").lease(hour).acquire().await.unwrap();
    assert_eq!(leases(), 1);
    assert!(other.mutex("key").lease(hour).try_acquire().await.unwrap().is_none());
    other.close().await;
    assert_eq!(leases(), 1, "that of the holder");
    held.release().await.unwrap();
    client.close().await;
    assert_eq!(leases(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_or_a_key_that_an_operator_takes_away_is_a_lock_lost_at_once() {
    let servers = Servers::start(1);
    let client = connect(servers.url("")).await;
    for what in ["lease", "key"] {
        let guard = client.mutex("key").ttl(LONG).acquire().await.unwrap();
        match what {
            "key" => servers.ctl(&["del", &servers.keys()[0]]),
            _ => {
                let lease = servers.ctl(&["lease", "list"]).lines().nth(1).unwrap().to_owned();
                servers.ctl(&["lease", "revoke", &lease])
            }
        };
        let told = timeout(LONG / 4, guard.lost()).await;
        assert_eq!(told, Ok(Loss::Gone), "{what}: before a renewal would find out");
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    }
    // No revoked lease is used again.
    client.mutex("key").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_used_again_vouches_for_what_is_left_of_it() {
    let servers = Servers::start(1);
    let client = connect(servers.url("")).await;
    let (left, age) = loop {
        client.mutex("key").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
        // The lease is at least as old as that.
        let made = Instant::now();
        sleep(Duration::from_secs(1)).await;
        let age = made.elapsed();
        let guard = client.mutex("key").ttl(LONG).acquire().await.unwrap();
        let left = guard.remaining();
        guard.release().await.unwrap();
        // On a very busy machine the lease was created again, or is kept alive first.
        if made.elapsed() < LONG / 20 {
            break (left, age);
        }
    };
    assert!(left < LONG - age, "{left:?} are left of a lease of {LONG:?} after {age:?}");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_waited_for_is_watched_over_as_well() {
    let servers = Servers::start(1);
    let (holder, waiter) = (connect(servers.url("")).await, connect(servers.url("")).await);
    let guard = holder.mutex("key").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("key").ttl(LONG).acquire());
    eventually("it waits", async || servers.keys().len() == 2).await;
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(holder.request_yield("key").await.unwrap().len(), 1);
    timeout(LONG / 4, guard.yield_requested()).await.expect("it is asked to give way");
    guard.check().unwrap();
    servers.ctl(&["del", &servers.keys()[0]]);
    assert_eq!(timeout(LONG / 4, guard.lost()).await, Ok(Loss::Gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_while_waiting_loses_no_wake_up() {
    let servers = Servers::start(1);
    let proxy = proxy(&servers).await;
    let holder = connect(servers.url("")).await;
    let waiter = connect(format!("etcd://{}", proxy.address())).await;
    let guard = holder.mutex("key").ttl(TTL * 4).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("key").ttl(TTL * 4).acquire());
    eventually("it is in the queue", async || {
        let seen = holder.inspect("key").await.unwrap().unwrap();
        seen.waiters.is_some_and(|waiters| waiters.len() == 1)
    })
    .await;
    // The watch has to start again, from a revision that no longer exists.
    proxy.refuse().await;
    proxy.reset();
    servers.ctl(&["put", "other", "1"]);
    servers.ctl(&["put", "other", "2"]);
    let revision = servers.ctl(&["get", "other", "-w", "fields"]);
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
    servers.ctl(&["compact", revision]);
    proxy.heal().await;
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiting).await.expect("it is woken, or looks by itself");
    next.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_are_swallowed_leave_one_grant_and_nothing_behind() {
    let servers = Servers::start(1);
    let proxy = proxy(&servers).await;
    let observer = connect(servers.url("")).await;
    let client = connect(format!("etcd://{}", proxy.address())).await;
    // Of the lease: it is created, but the reply is lost.
    proxy.swallow_replies(usize::MAX);
    let acquire = tokio::spawn(client.mutex("key").ttl(TTL).acquire());
    eventually("the lease is made", async || servers.leases() == 1).await;
    proxy.heal().await;
    let guard = acquire.await.unwrap().unwrap();
    assert_eq!(servers.leases(), 1, "it was not recognised");
    // Of the release: the entry is deleted, but the reply is lost.
    proxy.swallow_replies(usize::MAX);
    let release = tokio::spawn(guard.release());
    eventually("the place is given up", async || servers.keys().is_empty()).await;
    proxy.heal().await;
    assert!(matches!(release.await.unwrap(), Ok(Release::Released | Release::Unconfirmed)));
    // Of the transaction: the entry is created with a spare lease, but the reply is lost. A lease
    // that was named in a request over a broken connection is revoked, not kept.
    eventually("doubtful leases are revoked", async || servers.leases() == 0).await;
    eventually("there is a spare lease", async || {
        client.mutex("warm").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
        servers.leases() == 1
    })
    .await;
    proxy.swallow_replies(usize::MAX);
    let acquire = tokio::spawn(client.mutex("key").ttl(TTL).acquire());
    eventually("the place is taken", async || servers.keys().len() == 1).await;
    proxy.heal().await;
    let guard = acquire.await.unwrap().unwrap();
    let snapshot = observer.inspect("key").await.unwrap().unwrap();
    assert_eq!((snapshot.holders.len(), snapshot.waiters.unwrap().len()), (1, 0));
    assert!(observer.mutex("key").try_acquire().await.unwrap().is_none());
    // Of the revocation, which is how a claim in doubt is undone.
    proxy.swallow_replies(usize::MAX);
    let release = tokio::spawn(guard.release());
    eventually("it is revoked", async || servers.keys().is_empty()).await;
    proxy.heal().await;
    assert!(matches!(release.await.unwrap(), Ok(Release::Released | Release::Unconfirmed)));
    client.close().await;
    observer.close().await;
    assert_eq!(left(&servers).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_abandoned_without_a_reply_leaves_nothing() {
    let servers = Servers::start(1);
    let proxy = proxy(&servers).await;
    let client = connect(format!("etcd://{}", proxy.address())).await;
    client.mutex("warm").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    proxy.swallow_replies(usize::MAX);
    let acquire = tokio::spawn(client.mutex("key").ttl(TTL).acquire());
    eventually("the place is taken", async || servers.keys().len() == 1).await;
    acquire.abort();
    proxy.heal().await;
    eventually("the place is given up", async || servers.keys().is_empty()).await;
    client.close().await;
    assert_eq!(left(&servers).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_runs_out_of_space_keeps_no_place_that_its_client_does_not_know_of() {
    let servers = Servers::with(1, &["--quota-backend-bytes", "1048576"]);
    let client = connect(servers.url("")).await;
    // A lease that is used again.
    client.mutex("key").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    // More than the store has space for. It may report that and store it all the same.
    let long = "n".repeat(1_200_000);
    let refused = client.mutex("key").ttl(LONG).note(&long).acquire().await;
    assert!(refused.is_err(), "{refused:?}");
    eventually("the place is given up", async || servers.keys().is_empty()).await;
    client.close().await;
    assert_eq!(left(&servers).await, [""; 0]);
}
