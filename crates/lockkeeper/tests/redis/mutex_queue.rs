//! The queue of a mutex: what a hand-off costs, and who is next.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::Client;
use lockkeeper_testkit::poll::poll_once;
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Cluster, Server};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::load::{SOON, connect};
use crate::scripts::{calls, is_script};

/// How many commands a hand-off may cost, with those inside scripts.
const MOST: f64 = 20.0;

/// How many a heartbeat costs at most. How many there are depends on the speed of the machine.
const HEARTBEAT: u64 = 13;

/// Commands per hand-off while clients take a mutex again and again.
async fn commands_per_hand_off(clients: usize) -> f64 {
    const ROUNDS: usize = 4;
    let server = Server::start();
    let holder = connect(&server.url()).await;
    let guard = holder.mutex("key").acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..clients {
        let client = connect(&server.url()).await;
        waiting.spawn(async move {
            for _ in 0..=ROUNDS {
                client.mutex("key").acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    eventually("everyone is in the queue", || {
        let waiting = server.ask(&["LLEN", "lockkeeper_mutex_queue:{key}"]);
        (waiting == clients.to_string()).then_some(()).ok_or(waiting)
    });
    let count = || (calls(&server, |command| command != "info"), calls(&server, is_script));
    let (commands, scripts) = count();
    guard.release().await.unwrap();
    while let Some(done) = waiting.join_next().await {
        done.unwrap();
    }
    let (commands, scripts) = (count().0 - commands, count().1 - scripts);
    let hand_offs = (clients * (ROUNDS + 1)) as u64;
    let heartbeats = scripts.saturating_sub(2 * hand_offs);
    commands.saturating_sub(heartbeats * HEARTBEAT) as f64 / hand_offs as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_costs_the_same_however_many_clients_wait() {
    for clients in [4, 64] {
        let commands = commands_per_hand_off(clients).await;
        println!("{commands:.1} commands per hand-off with {clients} clients");
        assert!(commands <= MOST, "{commands:.1} commands per hand-off with {clients} clients");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rivals_that_drop_their_guards_and_take_again_at_once_alternate() {
    const GRANTS: usize = 200;
    let server = Server::start();
    let holder = connect(&server.url()).await;
    let guard = holder.mutex("key").acquire().await.unwrap();
    let (last, switches) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut rivals = JoinSet::new();
    for rival in 1..=2 {
        let client: Client = connect(&server.url()).await;
        let (last, switches) = (last.clone(), switches.clone());
        rivals.spawn(async move {
            for _ in 0..GRANTS {
                let guard = client.mutex("key").acquire().await.unwrap();
                if last.swap(rival, Ordering::Relaxed) != rival {
                    switches.fetch_add(1, Ordering::Relaxed);
                }
                drop(guard);
            }
        });
    }
    eventually("both are in the queue", || {
        let waiting = server.ask(&["LLEN", "lockkeeper_mutex_queue:{key}"]);
        (waiting == "2").then_some(()).ok_or(waiting)
    });
    guard.release().await.unwrap();
    rivals.join_all().await;
    let switches = switches.load(Ordering::Relaxed);
    // A rival that the machine does not run is not in the queue; its turn comes when it is.
    assert!(switches > GRANTS, "{switches} switches in {} grants", 2 * GRANTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_outside_the_queue_are_let_in() {
    let server = Server::start();
    let mut busy = JoinSet::new();
    for _ in 0..4 {
        let client = connect(&server.url()).await;
        busy.spawn(async move {
            loop {
                client.mutex("key").acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    // A fair mutex waits in Redisson's queue, and listens to the channel of all releases.
    let outside = connect(&server.url()).await;
    for _ in 0..5 {
        let guard = timeout(SOON, outside.mutex("key").fair().acquire()).await;
        guard.expect("it does not starve").unwrap().release().await.unwrap();
    }
    busy.shutdown().await;
}

/// The server of the slot of `key`, and another one.
fn two_masters(cluster: &Cluster) -> (&Server, &Server) {
    let from = cluster.master_of("key");
    let others = ["a", "b", "c", "d"].map(|key| cluster.master_of(key));
    (from, others.into_iter().find(|server| server.port() != from.port()).unwrap())
}

/// Starts to migrate the slot of `key`, and moves none of its keys.
fn begin_to_migrate(from: &Server, to: &Server) {
    let slot = from.ask(&["CLUSTER", "KEYSLOT", "key"]);
    let [source, target] = [from, to].map(|server| server.ask(&["CLUSTER", "MYID"]));
    to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
    from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
}

/// A server whose slot migrates refuses to write a key that a script has deleted. If a release got
/// that far, the waiter would have been told that it holds a lock that nobody has.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_a_slot_that_migrates_makes_no_two_holders() {
    let cluster = Cluster::start();
    let (from, to) = two_masters(&cluster);
    let holder = connect(&cluster.url()).await;
    let guard = holder.mutex("key").acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..2 {
        let lock = connect(&cluster.url()).await.mutex("key").ttl(Duration::from_secs(6));
        waiting.spawn(async move { lock.acquire().await.unwrap() });
    }
    eventually("both are in the queue", || {
        let waiting = from.ask(&["LLEN", "lockkeeper_mutex_queue:{key}"]);
        (waiting == "2").then_some(()).ok_or(waiting)
    });
    begin_to_migrate(from, to);
    guard.release().await.unwrap();
    let first = timeout(SOON, waiting.join_next()).await.unwrap().unwrap().unwrap();
    // Longer than a heartbeat, with which the second would take a lock that is free.
    assert!(timeout(Duration::from_secs(5), waiting.join_next()).await.is_err(), "two holders");
    first.check().unwrap();
    let fence = first.fence();
    first.release().await.unwrap();
    let second = timeout(SOON, waiting.join_next()).await.unwrap().unwrap().unwrap();
    assert!(second.fence() > fence);
}

/// Should a failover lose the counter, it continues from the clock: that has to be above every fence that
/// some client may still hand over.
#[tokio::test(flavor = "multi_thread")]
async fn reserved_fences_are_numbers_that_the_clock_has_passed() {
    let server = Server::start();
    let client = connect(&server.url()).await;
    let first = client.mutex("key").acquire().await.unwrap();
    let mut next = Box::pin(client.mutex("key").acquire());
    assert!(poll_once(&mut next).await.is_pending());
    // It is kept as long as the lock is used.
    server.ask(&["PEXPIRE", "lockkeeper:{key}", "5000"]);
    first.release().await.unwrap();
    let guard = next.await.unwrap();
    let kept: u64 = server.ask(&["PTTL", "lockkeeper:{key}"]).parse().unwrap();
    assert!(kept > 5000, "the counter is kept for {kept} ms");
    let counted: u64 = server.ask(&["HGET", "lockkeeper:{key}", "fence"]).parse().unwrap();
    assert!(counted > guard.fence().get(), "none is reserved after {}", guard.fence());
    let clock = "local t = redis.call('time') return string.format('%.0f', t[1] * 1000000 + t[2])";
    let clock: u64 = server.ask(&["EVAL", clock, "0"]).parse().unwrap();
    assert!(counted <= clock, "{counted} is ahead of the clock, {clock}");
    assert_eq!(server.ask(&["DEL", "lockkeeper:{key}"]), "1");
    guard.release().await.unwrap();
    let other = connect(&server.url()).await.mutex("key").acquire().await.unwrap();
    assert!(other.fence().get() > counted, "{} is not above {counted}", other.fence());
}

/// The record of a waiter is a key of its own, which no script of an attempt names.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_record_moves_first_stays_in_the_queue() {
    let cluster = Cluster::start();
    let (from, to) = two_masters(&cluster);
    let guard = connect(&cluster.url()).await.mutex("key").acquire().await.unwrap();
    let waiting = tokio::spawn(connect(&cluster.url()).await.mutex("key").acquire());
    eventually("it is in the queue", || {
        let waiting = from.ask(&["LLEN", "lockkeeper_mutex_queue:{key}"]);
        (waiting == "1").then_some(()).ok_or(waiting)
    });
    begin_to_migrate(from, to);
    let port = to.port().to_string();
    let record = "lockkeeper_waiters:{key}";
    assert_eq!(from.ask(&["MIGRATE", "127.0.0.1", &port, record, "0", "5000"]), "OK");
    eventually("its next heartbeat takes the other keys along", || {
        let queue = from.ask(&["EXISTS", "lockkeeper_mutex_queue:{key}"]);
        (queue != "1").then_some(()).ok_or(queue)
    });
    guard.release().await.unwrap();
    let guard = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    guard.check().unwrap();
}

/// What a holder was asked ends with its hold, whatever else has a similar name.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_removes_the_request_to_give_way() {
    let server = Server::start();
    let client = connect(&server.url()).await;
    let guard = client.mutex("orders/42").acquire().await.unwrap();
    let asked = "lockkeeper_asked:{orders/42}";
    server.ask(&["HSET", asked, "somebody", "1"]);
    client.break_lock("orders/42").await.unwrap();
    assert_eq!(server.ask(&["EXISTS", asked]), "0");
    drop(guard);
}
