//! What happens to locks when a real Redis is killed, frozen, emptied or replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, Guard, Lock, Loss, Owner, Release};
use lockkeeper_testkit::history::{Recorder, Resource, Violation, check};
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Cluster, DURABLE, Sentinels, Server, VOLATILE};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long something may take that takes a moment, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

async fn connect(url: &str) -> Client {
    Client::connect(url).await.expect("the server is there")
}

/// Acquires through whatever trouble there still is.
async fn acquire(client: &Client, key: &str) -> Guard {
    through_trouble(client.mutex(key).ttl(Duration::from_secs(2))).await
}

async fn through_trouble(lock: Lock) -> Guard {
    let started = Instant::now();
    loop {
        match lock.clone().acquire_within(SOON).await {
            Ok(guard) => return guard,
            Err(error) => assert!(started.elapsed() < SOON, "{error}"),
        }
    }
}

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
async fn a_restart_that_forgets_is_told_and_one_that_remembers_is_not_noticed() {
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
        eventually("the waiter listens", || {
            let listening = server.ask(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{key}"]);
            listening.ends_with('1').then_some(()).ok_or(listening)
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
        // The commands of the server's own operator are not ours.
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

/// Clients at work on a few locks and what they protect, until they are told to stop.
struct Load {
    recorder: Arc<Recorder>,
    resource: Arc<Resource>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    workers: JoinSet<()>,
}

impl Load {
    async fn start(url: &str, clients: usize, keys: usize) -> Self {
        let mut load = Self {
            recorder: Recorder::start(),
            resource: Arc::new(Resource::fenced()),
            stop: Arc::default(),
            done: Arc::default(),
            workers: JoinSet::new(),
        };
        load.join(url, clients, keys).await;
        load
    }

    /// More clients.
    async fn join(&mut self, url: &str, clients: usize, keys: usize) {
        for _ in 0..clients {
            let (client, n) = (connect(url).await, self.workers.len());
            for task in n..n + 4 {
                let work = Self::work(
                    client.clone(),
                    format!("task {task}"),
                    keys,
                    self.recorder.clone(),
                    self.resource.clone(),
                    self.stop.clone(),
                    self.done.clone(),
                );
                self.workers.spawn(work);
            }
        }
    }

    async fn work(
        client: Client,
        name: String,
        keys: usize,
        recorder: Arc<Recorder>,
        resource: Arc<Resource>,
        stop: Arc<AtomicBool>,
        done: Arc<AtomicUsize>,
    ) {
        let ttl = Duration::from_secs(2);
        while !stop.load(Ordering::Relaxed) {
            let key = format!("load {}", fastrand::usize(..keys));
            let called = recorder.now();
            let lock = client.mutex(&key).ttl(ttl);
            // Trouble is what these tests are about; only what was granted is judged.
            let Ok(guard) = lock.acquire_within(Duration::from_secs(2)).await else { continue };
            // A fence has one holder: without an owner, every grant is somebody else's.
            let owner = format!("{name} {}", guard.fence());
            let mark = recorder.granted(&guard, &owner, ttl, called, None);
            let (object, fence) = ((key, 0), guard.fence().get());
            let saw = resource.read(&object, fence, &owner, false);
            let lost = timeout(Duration::from_millis(fastrand::u64(0..4)), guard.lost()).await;
            if let Some(saw) = saw {
                resource.write(&object, fence, &owner, saw);
                mark.used();
            }
            if lost.is_ok() {
                mark.lost();
            }
            mark.releasing();
            let _ = guard.release().await;
            mark.released();
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for so many more cycles.
    async fn cycles(&self, more: usize, within: Duration) {
        let (from, started) = (self.done.load(Ordering::Relaxed), Instant::now());
        while self.done.load(Ordering::Relaxed) < from + more {
            assert!(started.elapsed() < within, "no work gets done within {within:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the work and judges it. Gives the number of holds that overlapped.
    async fn judge(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.unwrap();
        }
        let history = self.recorder.history(&self.resource, Vec::new());
        let violations = check(&history);
        let overlaps = |v: &&Violation| matches!(v, Violation::Overlap(_));
        let others: Vec<_> =
            violations.iter().filter(|v| !overlaps(v)).map(|v| v.to_string()).collect();
        assert!(
            others.is_empty(),
            "{} of {}: {others:#?}",
            others.len(),
            history.acquisitions.len()
        );
        let overlapping = violations.iter().filter(overlaps).count();
        println!("{} grants, {overlapping} overlaps", history.acquisitions.len());
        overlapping
    }
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
async fn a_sentinel_failover_under_load_does_not_hurt_what_is_fenced() {
    let sentinels = Sentinels::start();
    let load = Load::start(&sentinels.url(), 3, 3).await;
    let client = connect(&sentinels.url()).await;
    for round in 0..3 {
        load.cycles(100, SOON).await;
        let held = client.mutex("held").ttl(Duration::from_secs(4)).acquire().await.unwrap();
        let master = sentinels.master();
        let before = master.port();
        match round {
            0 => master.kill(),
            1 => master.pause(),
            _ => drop(sentinels.sentinels[0].ask(&["SENTINEL", "FAILOVER", "main"])),
        }
        eventually("another server is the master", || {
            let now = sentinels.master().port();
            (now != before).then_some(()).ok_or(format!("still {now}"))
        });
        // Either it was carried over, or its holder is told; it is never made again in silence.
        if let Err(error) = held.check() {
            assert!(matches!(error, Error::Lost { .. }), "{error}");
        }
        drop(held);
        load.cycles(100, SOON).await;
        let old = sentinels.servers.iter().find(|s| s.port() == before).unwrap();
        match round {
            0 => old.restart(),
            1 => old.resume(),
            _ => {}
        }
        both_follow(&sentinels);
    }
    load.judge().await;
}

/// Returns when the master has both of its replicas.
fn both_follow(sentinels: &Sentinels) {
    eventually("both replicas follow", || {
        let info = sentinels.master().ask(&["INFO", "replication"]);
        (info.matches("state=online").count() == 2).then_some(()).ok_or(info)
    });
}

/// Has another server promoted, although nothing is wrong; returns when the sentinel that does it
/// names the new one.
fn fail_over(sentinels: &Sentinels) {
    both_follow(sentinels);
    let before = sentinels.master().port();
    eventually("the failover begins", || {
        let answer = sentinels.sentinels[0].ask(&["SENTINEL", "FAILOVER", "main"]);
        (answer == "OK").then_some(()).ok_or(answer)
    });
    eventually("another server is the master", || {
        let now = sentinels.master().port();
        (now != before).then_some(()).ok_or(format!("still {now}"))
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_leaves_no_client_at_the_old_master() {
    let sentinels = Sentinels::start();
    let old = connect(&sentinels.url()).await;
    let ttl = Duration::from_secs(6);
    let held = old.mutex("held").ttl(ttl).acquire().await.unwrap();
    let master = sentinels.master();
    fail_over(&sentinels);
    let new = connect(&sentinels.url()).await;
    for n in 0..20 {
        let (first, second) = if n % 2 == 0 { (&old, &new) } else { (&new, &old) };
        let guard = first.mutex("key").acquire().await.unwrap();
        let other = second.mutex("key").try_acquire().await.unwrap();
        assert!(other.is_none(), "two holders in round {n}");
        let fence = guard.fence();
        guard.release().await.unwrap();
        let next = second.mutex("key").acquire().await.unwrap();
        assert!(next.fence() > fence, "{} after {fence} in round {n}", next.fence());
        next.release().await.unwrap();
    }
    assert!(new.mutex("held").try_acquire().await.unwrap().is_none(), "it was carried over");
    assert!(timeout(ttl, held.lost()).await.is_err(), "it is renewed where it is now");
    // All this was while the old master still thought that it was one.
    eventually("the old master is a replica", || {
        let role = master.ask(&["ROLE"]);
        role.starts_with("slave").then_some(()).ok_or(role)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn planned_failovers_under_load_make_no_two_holders() {
    let sentinels = Sentinels::start();
    let mut load = Load::start(&sentinels.url(), 2, 3).await;
    for _ in 0..3 {
        load.cycles(100, SOON).await;
        fail_over(&sentinels);
        load.join(&sentinels.url(), 1, 3).await;
        load.cycles(100, SOON).await;
    }
    assert_eq!(load.judge().await, 0);
}

/// From now on the replicas hear nothing more of their master, and what it accepts is lost with it.
fn cut_off(sentinels: &Sentinels) -> &Server {
    let master = sentinels.master();
    let replicas = sentinels.servers.iter().filter(|server| server.port() != master.port());
    replicas.for_each(|server| server.pause());
    master.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    master
}

/// Kills a master whose replicas were cut off; returns when one of them is the master.
fn crash(sentinels: &Sentinels, master: &Server) {
    master.kill();
    sentinels.servers.iter().for_each(|server| server.resume());
    eventually("another server is the master", || {
        let now = sentinels.master().port();
        (now != master.port()).then_some(()).ok_or(format!("still {now}"))
    });
}

/// Readers carry the fence of the last writer. Where a failover lost that writer they get a later one.
#[tokio::test(flavor = "multi_thread")]
async fn readers_are_not_behind_a_writer_that_a_failover_lost() {
    let sentinels = Sentinels::start();
    let (client, other) = (connect(&sentinels.url()).await, connect(&sentinels.url()).await);
    for key in ["free", "read"] {
        client.write(key).acquire().await.unwrap().release().await.unwrap();
    }
    // The replicas do not hear that it leaves.
    let reader = client.read("read").acquire().await.unwrap();
    eventually("the replicas have it", || {
        let behind = sentinels.master().ask(&["WAIT", "2", "100"]);
        (behind == "2").then_some(()).ok_or(behind)
    });
    let master = cut_off(&sentinels);
    reader.release().await.unwrap();
    let mut lost = Vec::new();
    for key in ["free", "read"] {
        let writer = client.write(key).acquire().await.unwrap();
        lost.push((key, writer.fence()));
        writer.release().await.unwrap();
    }
    crash(&sentinels, master);
    for (key, fence) in lost {
        let first = through_trouble(client.read(key)).await;
        let second = through_trouble(other.read(key)).await;
        assert!(first.fence() > fence, "{key}: {} after {fence}", first.fence());
        assert_eq!(first.fence(), second.fence(), "{key}: they read together");
    }
}

/// A release that dies with the master leaves the lock to its lease, and to nothing longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_crash_swallowed_costs_no_more_than_the_lease() {
    let sentinels = Sentinels::start();
    let (client, other) = (connect(&sentinels.url()).await, connect(&sentinels.url()).await);
    let ttl = Duration::from_secs(12);
    let mut guards = vec![
        ("mutex", client.mutex("mutex").ttl(ttl).acquire().await.unwrap()),
        ("fair", client.mutex("fair").fair().ttl(ttl).acquire().await.unwrap()),
        ("write", client.write("write").ttl(ttl).acquire().await.unwrap()),
        ("permits", client.semaphore("permits", 1).ttl(ttl).acquire().await.unwrap()),
    ];
    eventually("the replicas have them", || {
        let behind = sentinels.master().ask(&["WAIT", "2", "100"]);
        (behind == "2").then_some(()).ok_or(behind)
    });
    let master = cut_off(&sentinels);
    let released = Instant::now();
    for (key, guard) in guards.drain(..) {
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{key}");
    }
    crash(&sentinels, master);
    let held = other.mutex("mutex").try_acquire().await.unwrap();
    assert!(held.is_none(), "the new master does not know that it was given back");
    let limit = ttl + Duration::from_secs(5);
    for lock in [
        other.mutex("mutex"),
        other.mutex("fair").fair(),
        other.write("write"),
        other.semaphore("permits", 1),
    ] {
        let left = limit.saturating_sub(released.elapsed());
        lock.acquire_within(left).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_do_not_answer_do_not_matter_while_one_does() {
    let sentinels = Sentinels::start();
    let url = sentinels.url();
    let holder = connect(&url).await;
    let ttl = Duration::from_secs(6);
    let held = holder.mutex("held").ttl(ttl).acquire().await.unwrap();
    for stopped in 0..2 {
        sentinels.sentinels[stopped].pause();
        let started = Instant::now();
        let client = connect(&url).await;
        client.mutex("key").acquire().await.unwrap().release().await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        sentinels.servers[0].ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert!(timeout(ttl, held.lost()).await.is_err(), "with {stopped} and one more stopped");
    }
    sentinels.sentinels.iter().for_each(|sentinel| sentinel.resume());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_replicas_waited_for_a_crash_makes_no_two_holders() {
    let sentinels = Sentinels::start();
    let load = Load::start(&(sentinels.url() + "?wait_replicas=2"), 2, 2).await;
    load.cycles(50, SOON).await;
    let master = sentinels.master();
    let before = master.port();
    master.kill();
    eventually("another server is the master", || {
        let now = sentinels.master().port();
        (now != before).then_some(()).ok_or(format!("still {now}"))
    });
    // With one replica left, nothing can be acquired; a second one ends that.
    sentinels.servers.iter().find(|s| s.port() == before).unwrap().restart();
    both_follow(&sentinels);
    load.cycles(50, SOON).await;
    assert_eq!(load.judge().await, 0);
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
    eventually("the waiter listens", || {
        let heard = cluster.master_of("key").ask(&[
            "PUBSUB",
            "SHARDNUMSUB",
            "redisson_lock__channel:{key}",
        ]);
        heard.ends_with('1').then_some(()).ok_or(heard)
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

/// A lock of every kind, each at a name of its own.
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
    // Somebody waits in the line, and goes on waiting.
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
    // It cannot save any more, and takes no writes.
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
