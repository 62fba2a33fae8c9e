//! Many processes, all kinds of locks, and everything that can happen to Redis at once.

use std::time::{Duration, Instant};

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Cluster, DURABLE, Sentinels, Server};
use lockkeeper_testkit::storm::{Fault, Kind, Plan, Storm};

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_one_server() {
    let server = Server::with(&DURABLE);
    let mut proxies = Vec::new();
    for _ in 0..4 {
        let target = ([127, 0, 0, 1], server.port()).into();
        proxies.push(Proxy::start(target).await);
    }
    let urls: Vec<_> = proxies.iter().map(|proxy| format!("redis://{}", proxy.address())).collect();
    let kinds = vec![Kind::Mutex, Kind::Fair, Kind::ReadWrite, Kind::Permits];
    let plan = Plan { kinds, ..Plan::default() };
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, plan);
    let server = &server;
    let mut faults = [
        Fault::new("scripts forgotten", move || async move {
            server.ask(&["SCRIPT", "FLUSH"]);
        }),
        Fault::new("connections killed", move || async move {
            server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }),
        Fault::new("out of memory", move || async move {
            server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(10..1500))).await;
            server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        }),
        Fault::new("server killed and started again", move || async move {
            server.kill();
            server.restart();
        }),
        Fault::new("out of memory for a second", move || async move {
            server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        }),
    ];
    storm.rage(&proxies, &mut faults).await;
    let judgement = storm.judge(&server.url()).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}

/// A test of the test: a store that forgets locks allows two holders, and the storm must see it.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_sees_that_a_server_forgets_its_locks() {
    let server = Server::start();
    let urls = [server.url()];
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, Plan::default());
    let server = &server;
    let flush = Fault::new("everything forgotten", move || async move {
        server.ask(&["FLUSHALL"]);
    });
    storm.rage(&[], &mut [flush]).await;
    let judgement = storm.judge(&server.url()).await;
    assert!(!judgement.overlaps.is_empty(), "{judgement}");
}

/// The kinds that every store of this engine has.
fn every_kind() -> Plan {
    Plan { kinds: vec![Kind::Mutex, Kind::Fair, Kind::ReadWrite, Kind::Permits], ..Plan::default() }
}

fn scripts_forgotten<'a>(servers: &'a [Server]) -> Fault<'a> {
    Fault::new("scripts forgotten", move || async move {
        servers.iter().for_each(|server| drop(server.ask(&["SCRIPT", "FLUSH"])));
    })
}

fn connections_killed<'a>(servers: &'a [Server]) -> Fault<'a> {
    Fault::new("connections killed", move || async move {
        let server = &servers[fastrand::usize(..servers.len())];
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    })
}

/// Waits until all sentinels name another master than this, or none does for longer than they try.
async fn replaced(sentinels: &Sentinels, old: &Server) {
    let started = Instant::now();
    let port = old.port().to_string();
    let names_it = |sentinel: &Server| {
        let answer = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        answer.is_empty() || answer.lines().nth(1) == Some(port.as_str())
    };
    while started.elapsed() < Duration::from_secs(10) && sentinels.sentinels.iter().any(names_it) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The master. Failovers in such quick succession can leave servers that replicate from each other,
/// none of which the sentinels can promote; then an operator promotes the one that they name.
async fn master(sentinels: &Sentinels) -> &Server {
    let started = Instant::now();
    loop {
        let named = sentinels.named();
        if let Some(master) = named.filter(|named| named.ask(&["ROLE"]).starts_with("master")) {
            return master;
        }
        if started.elapsed() > Duration::from_secs(40) {
            named.inspect(|named| drop(named.ask(&["REPLICAOF", "NO", "ONE"])));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Replicas copy later than masters answer, and a failover may promote one that still follows an
/// older master. So a failover may lose locks; fences have to rise all the same, for readers too.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_with_sentinels() {
    let sentinels = Sentinels::start();
    let urls = [sentinels.url()];
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, every_kind());
    let those = &sentinels;
    let mut faults = [
        scripts_forgotten(&those.servers),
        connections_killed(&those.servers),
        Fault::forgetful("planned failover", move || async move {
            let old = master(those).await;
            let sentinel = &those.sentinels[fastrand::usize(..3)];
            if sentinel.ask(&["SENTINEL", "FAILOVER", "main"]) == "OK" {
                replaced(those, old).await;
            }
        }),
        Fault::forgetful("master killed", move || async move {
            let old = master(those).await;
            old.kill();
            replaced(those, old).await;
            old.restart();
        }),
        Fault::new("sentinel stopped", move || async move {
            let sentinel = &those.sentinels[fastrand::usize(..3)];
            sentinel.pause();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(10..900))).await;
            sentinel.resume();
        }),
    ];
    storm.rage(&[], &mut faults).await;
    let judgement = storm.judge(&sentinels.url()).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}

/// Moves a slot to another master, with pauses in which it is half moved.
async fn reshard(cluster: &Cluster, key: &str) {
    let pause = || tokio::time::sleep(Duration::from_millis(fastrand::u64(0..700)));
    let from = cluster.master_of(key);
    let others: Vec<_> = cluster.servers.iter().filter(|s| s.port() != from.port()).collect();
    let to = others[fastrand::usize(..others.len())];
    let slot = from.ask(&["CLUSTER", "KEYSLOT", key]);
    let (from_id, to_id) = (from.ask(&["CLUSTER", "MYID"]), to.ask(&["CLUSTER", "MYID"]));
    let port = to.port().to_string();
    let told = |server: &Server, order: &[&str]| {
        let order = [&["CLUSTER", "SETSLOT", &slot], order].concat();
        eventually("the order is obeyed", || {
            let answer = server.ask(&order);
            (answer == "OK").then_some(()).ok_or(answer)
        });
    };
    told(to, &["IMPORTING", &from_id]);
    told(from, &["MIGRATING", &to_id]);
    pause().await;
    let there = || from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "999"]);
    let migrate =
        |key: &str| from.ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000", "REPLACE"]);
    there().lines().step_by(2).for_each(|key| drop(migrate(key)));
    pause().await;
    eventually("the slot is empty", || {
        let answers: Vec<_> = there().lines().map(|key| (key.to_owned(), migrate(key))).collect();
        let counted = from.ask(&["CLUSTER", "COUNTKEYSINSLOT", &slot]);
        (counted == "0").then_some(()).ok_or(format!("{counted}: {answers:?}"))
    });
    for server in [to, from].into_iter().chain(others.iter().copied()) {
        told(server, &["NODE", &to_id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_in_a_cluster() {
    let cluster = Cluster::with_replicas(0);
    let urls = [cluster.url()];
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, every_kind());
    let those = &cluster;
    let mut faults = [
        scripts_forgotten(&those.servers),
        connections_killed(&those.servers),
        Fault::new("slot moved", move || async move {
            let keys = ["mutex", "fair", "readwrite", "permits"];
            reshard(those, keys[fastrand::usize(..keys.len())]).await;
        }),
    ];
    storm.rage(&[], &mut faults).await;
    let judgement = storm.judge(&cluster.url()).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_a_majority() {
    let servers: Vec<_> = (0..3).map(|_| Server::with(&DURABLE)).collect();
    let hosts: Vec<_> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
    let url = format!("redlock://{}", hosts.join(","));
    let plan = Plan { kinds: vec![Kind::Mutex, Kind::ReadWrite], ..Plan::default() };
    let mut storm = Storm::start(&Program::test(module_path!()), std::slice::from_ref(&url), plan);
    let those = &servers;
    let mut faults = [
        scripts_forgotten(those),
        connections_killed(those),
        Fault::new("server stopped", move || async move {
            let server = &those[fastrand::usize(..3)];
            server.pause();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(10..1500))).await;
            server.resume();
        }),
        Fault::new("server killed and started again", move || async move {
            let server = &those[fastrand::usize(..3)];
            server.kill();
            server.restart();
        }),
    ];
    storm.rage(&[], &mut faults).await;
    let judgement = storm.judge(&url).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}
