//! What happens to locks when a real Redis is killed, frozen, emptied or replaced.

use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, Guard, Lock, Loss, Owner, Release};
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Cluster, DURABLE, Server, VOLATILE};
use tokio::time::timeout;

use crate::load::{Load, SOON, acquire, connect};

async fn lost(guard: &Guard, within: Duration) -> Loss {
    timeout(within, guard.lost()).await.unwrap_or_else(|_| panic!("not told within {within:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_across_a_kill_with_and_without_persistence() {
    for arguments in [&DURABLE[..], &VOLATILE] {
        let server = Server::with(arguments);
        let client = connect(&server.url()).await;
        let mut last = 0;
        for _ in 0..3 {
            for _ in 0..50 {
                let guard = acquire(&client, "key").await;
                assert!(guard.fence().get() > last, "{} after {last}", guard.fence());
                last = guard.fence().get();
                guard.release().await.unwrap();
            }
            server.kill();
            server.restart();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_loses_data_is_a_loss_and_one_that_keeps_it_is_not_noticed() {
    for (arguments, remembers) in [(&DURABLE[..], true), (&VOLATILE, false)] {
        let server = Server::with(arguments);
        let client = connect(&server.url()).await;
        let guard = client.mutex("key").ttl(Duration::from_secs(6)).acquire().await.unwrap();
        server.kill();
        server.restart();
        if remembers {
            let renewed = timeout(Duration::from_secs(7), guard.lost()).await;
            assert!(renewed.is_err(), "a lock that is still there was called lost: {renewed:?}");
            guard.check().unwrap();
        } else {
            assert_eq!(lost(&guard, Duration::from_secs(5)).await, Loss::Gone);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_scripts_are_not_noticed() {
    let server = Server::start();
    let client = connect(&server.url()).await;
    for round in 0..20 {
        let mutex = client.mutex("key").ttl(Duration::from_secs(2)).acquire().await.unwrap();
        let permit = client.semaphore("gpu", 2).acquire().await.unwrap();
        let read = client.read("report").acquire().await.unwrap();
        server.ask(&["SCRIPT", "FLUSH"]);
        if round == 0 {
            // Long enough for some renewals.
            assert!(timeout(Duration::from_secs(3), mutex.lost()).await.is_err());
        }
        for guard in [mutex, permit, read] {
            assert_eq!(guard.release().await.unwrap(), lockkeeper::Release::Released);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_connections_are_made_again_and_no_wake_up_is_lost() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server.url()).await, connect(&server.url()).await);
    for _ in 0..10 {
        let guard = holder.mutex("key").acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.mutex("key").acquire());
        eventually("the waiter is in the queue", || {
            let waiting = server.ask(&["LLEN", "lockkeeper_mutex_queue:{key}"]);
            (waiting == "1").then_some(()).ok_or(waiting)
        });
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        guard.check().unwrap();
        let _ = guard.release().await.unwrap();
        let woken = timeout(Duration::from_secs(4), waiting).await.expect("woken, not timed out");
        woken.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_demoted_is_left_whatever_its_version() {
    for server in [Server::start(), Server::oldest(&VOLATILE)] {
        let client = connect(&server.url()).await;
        client.mutex("key").acquire().await.unwrap().release().await.unwrap();
        // The commands of the server's operator are not ours.
        let connections = || server.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
        let ours =
            connections().lines().next().map(|line| line.split(' ').next().unwrap().to_owned());
        let ours = ours.expect("we are connected");
        assert_eq!(server.ask(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
        let error = client.mutex("key").try_acquire().await.unwrap_err();
        assert!(error.is_retryable(), "it may be the master again: {error}");
        eventually("the connection is closed", || {
            let open = connections();
            let is_open = open.lines().any(|line| line.starts_with(&format!("{ours} ")));
            (!is_open).then_some(()).ok_or(open)
        });
        server.ask(&["REPLICAOF", "NO", "ONE"]);
        acquire(&client, "key").await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_is_a_loss_within_one_renewal() {
    let server = Server::start();
    let client = connect(&server.url()).await;
    // A renewal is due after a third; by the clock alone it would be lost after two.
    let ttl = Duration::from_secs(12);
    let mut guards = vec![
        client.mutex("mutex").ttl(ttl).acquire().await.unwrap(),
        client.mutex("fair").fair().ttl(ttl).acquire().await.unwrap(),
        client.read("read").ttl(ttl).acquire().await.unwrap(),
        client.write("write").ttl(ttl).acquire().await.unwrap(),
        client.semaphore("permit", 3).ttl(ttl).acquire().await.unwrap(),
    ];
    server.ask(&["FLUSHALL"]);
    for guard in &guards {
        assert_eq!(lost(guard, ttl / 3 + Duration::from_secs(3)).await, Loss::Gone);
    }
    let release = guards.remove(0).release().await.unwrap();
    assert_eq!(release, lockkeeper::Release::AlreadyLost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_a_loss_before_the_lease_ends() {
    let server = Server::start();
    let client = connect(&server.url()).await;
    let ttl = Duration::from_secs(6);
    let guard = client.mutex("key").ttl(ttl).acquire().await.unwrap();
    let frozen = Instant::now();
    server.pause();
    assert_eq!(lost(&guard, ttl).await, Loss::Expired);
    assert!(frozen.elapsed() < ttl, "{:?}", frozen.elapsed());
    let error = client.mutex("other").acquire_within(Duration::from_secs(30)).await.unwrap_err();
    assert!(
        matches!(error, Error::Engine { .. }),
        "an unreachable store is not a busy lock: {error}"
    );
    server.resume();
    acquire(&client, "key").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_freezes_under_load_do_not_hurt_what_is_fenced() {
    for arguments in [&DURABLE[..], &VOLATILE] {
        let server = Server::with(arguments);
        let load = Load::start(&server.url(), 3, 3).await;
        for _ in 0..3 {
            load.cycles(50, SOON).await;
            server.kill();
            server.restart();
            load.cycles(50, SOON).await;
            server.pause();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(100..3000))).await;
            server.resume();
        }
        load.cycles(50, SOON).await;
        load.judge().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_failover_under_load_does_not_hurt_what_is_fenced() {
    let cluster = Cluster::start();
    let load = Load::start(&cluster.url(), 3, 6).await;
    for round in 0..2 {
        load.cycles(100, SOON).await;
        let master = cluster.master_of("load 0");
        let before = master.port();
        match round {
            0 => master.kill(),
            _ => master.pause(),
        }
        eventually("another server has the slot", || {
            let now = cluster.servers.iter().filter(|s| s.port() != before);
            let nodes: Vec<_> = now.map(|s| s.ask(&["CLUSTER", "INFO"])).collect();
            let ok = nodes.iter().all(|info| info.contains("cluster_state:ok"));
            (ok && cluster.master_of("load 0").port() != before).then_some(()).ok_or(nodes.concat())
        });
        load.cycles(100, SOON).await;
        match round {
            0 => master.restart(),
            _ => master.resume(),
        }
        cluster.settled();
    }
    load.judge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_follow_their_slot_while_it_moves() {
    let cluster = Cluster::start();
    let (holder, waiter) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = holder.mutex("key").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("key").acquire());
    eventually("the waiter is in the queue", || {
        let waiting = cluster.master_of("key").ask(&["LLEN", "lockkeeper_mutex_queue:{key}"]);
        (waiting == "1").then_some(()).ok_or(waiting)
    });
    let from = cluster.master_of("key");
    let to = cluster.master_of(
        ["a", "b", "c", "d"]
            .into_iter()
            .find(|k| cluster.master_of(k).port() != from.port())
            .unwrap(),
    );
    let slot = from.ask(&["CLUSTER", "KEYSLOT", "key"]);
    let (from_id, to_id) = (from.ask(&["CLUSTER", "MYID"]), to.ask(&["CLUSTER", "MYID"]));
    to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    let port = to.port().to_string();
    for key in from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).lines() {
        from.ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    for server in [to, from] {
        server.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
    // Renewed at its new place.
    assert!(timeout(Duration::from_secs(4), guard.lost()).await.is_err(), "it only moved");
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = timeout(Duration::from_secs(7), waiting).await.expect("woken").unwrap().unwrap();
    assert!(next.fence() > fence);
}

/// The queue of waiters cannot be created on the old server.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_while_its_slot_moves() {
    let cluster = Cluster::start();
    let (holder, waiter) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let (from, to) = (cluster.master_of("key"), other_master(&cluster, "key"));
    let slot = from.ask(&["CLUSTER", "KEYSLOT", "key"]);
    let (from_id, to_id) = (from.ask(&["CLUSTER", "MYID"]), to.ask(&["CLUSTER", "MYID"]));
    let guard = holder.mutex("key").acquire().await.unwrap();
    to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    let waited = waiter.mutex("key").acquire_within(Duration::from_millis(700)).await;
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    assert_eq!(holder.list("").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    let next = waiter.mutex("key").acquire_within(SOON).await.unwrap();
    next.release().await.unwrap();
}

/// A master that does not have this key's slot.
fn other_master<'a>(cluster: &'a Cluster, key: &str) -> &'a Server {
    let own = cluster.master_of(key).port();
    let mut others = ["a", "b", "c", "d"].into_iter().map(|key| cluster.master_of(key));
    others.find(|master| master.port() != own).expect("keys are on several masters")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_where_waiters_are_shown_harms_nobody() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server.url()).await, connect(&server.url()).await);
    server.ask(&["SET", "lockkeeper_waiters:{key}", "not a hash"]);
    let guard = holder.mutex("key").acquire().await.unwrap();
    let waited = waiter.mutex("key").acquire_within(Duration::from_millis(700)).await;
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    assert_eq!(holder.list("").await.unwrap().len(), 1);
    guard.release().await.unwrap();
}

/// A lock of every kind, each with its own name.
fn one_of_each(client: &Client) -> Vec<(&'static str, Lock)> {
    let owner = Owner::named("somebody").unwrap();
    vec![
        ("plain", client.mutex("plain")),
        ("fair", client.mutex("fair").fair()),
        ("owned", client.mutex("owned").owner(&owner)),
        ("read", client.read("read")),
        ("owned read", client.read("owned read").owner(&owner)),
        ("write", client.write("write")),
        ("owned write", client.write("owned write").owner(&owner)),
        ("permits", client.semaphore("permits", 3).permits(2)),
    ]
}

async fn hold_one_of_each(client: &Client, ttl: Duration) -> Vec<(&'static str, Guard)> {
    let mut guards = Vec::new();
    for (name, lock) in one_of_each(client) {
        guards.push((name, lock.ttl(ttl).acquire().await.unwrap()));
    }
    guards
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_keeps_what_is_held_and_takes_it_back() {
    let server = Server::start();
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let string = connect(&format!("{}?layout=string", server.url())).await;
    let ttl = Duration::from_secs(3);
    let mut guards = hold_one_of_each(&client, ttl).await;
    guards.push(("string", string.mutex("string").ttl(ttl).acquire().await.unwrap()));
    // A client waits in the queue, and keeps waiting.
    let mut waiting = Box::pin(other.mutex("fair").fair().acquire());
    assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let refused = client.mutex("new").try_acquire().await.unwrap_err();
    assert!(refused.is_retryable() && refused.to_string().contains("OOM"), "{refused}");
    let renewed = timeout(ttl * 3, &mut waiting).await;
    assert!(renewed.is_err(), "a waiter does not wait any more: {renewed:?}");
    for (name, guard) in guards {
        guard.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        let released = guard.release().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(released, Release::Released, "{name}");
        assert_eq!(server.ask(&["EXISTS", name]), "0", "{name}");
    }
    assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    let guard = timeout(SOON, waiting).await.expect("there is room again").unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_that_a_server_refuses_for_a_while_are_repeated() {
    let server = Server::with(&["--save", "3600 1000000", "--appendonly", "no"]);
    let client = connect(&server.url()).await;
    let guards = hold_one_of_each(&client, Duration::from_secs(60)).await;
    // It can no longer save, and takes no writes.
    std::fs::remove_dir_all(server.directory()).unwrap();
    server.ask(&["BGSAVE"]);
    eventually("it takes no writes", || {
        let answer = server.ask(&["SET", "probe", "x"]);
        answer.contains("MISCONF").then_some(()).ok_or(answer)
    });
    for (name, guard) in guards {
        let released = guard.release().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(released, Release::Unconfirmed, "{name}");
        assert_eq!(server.ask(&["EXISTS", name]), "1", "{name}");
    }
    assert_eq!(server.ask(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]), "OK");
    for (name, _) in one_of_each(&client) {
        eventually(name, || {
            let there = server.ask(&["EXISTS", name]);
            (there == "0").then_some(()).ok_or(there)
        });
    }
}
