//! What a bad network does to locks in Redis: answers that are lost, and black holes.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, Guard, Lock, Loss, Owner, Release};
use lockkeeper_testkit::proxy::{Proxy, Way};
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Cluster, Sentinels, Server, VOLATILE};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long something immediate may take on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Servers, each behind a proxy.
struct Net {
    proxies: Vec<Proxy>,
    /// Through the proxies.
    client: Client,
    /// Past them.
    direct: Client,
    kinds: Vec<Kind>,
    _servers: Box<dyn Any>,
}

/// A lock of some kind.
type Kind = fn(&Client) -> Lock;

const KINDS: [Kind; 6] = [
    |client| client.mutex("{k}mutex"),
    |client| client.mutex("{k}fair").fair(),
    |client| client.mutex("{k}owned").owner(&Owner::named("owner:1").expect("it is visible")),
    |client| client.read("{k}read"),
    |client| client.write("{k}write"),
    |client| client.semaphore("{k}permit", 2),
];

fn address(server: &Server) -> SocketAddr {
    ([127, 0, 0, 1], server.port()).into()
}

async fn connect(url: &str) -> Client {
    Client::connect(url).await.expect("the server is there")
}

async fn one(layout: &str) -> Net {
    let server = Server::start();
    let proxy = Proxy::start(address(&server)).await;
    let client = format!("redis://{}?layout={layout}&timeout=300ms", proxy.address());
    Net {
        client: connect(&client).await,
        direct: connect(&format!("{}?layout={layout}", server.url())).await,
        proxies: vec![proxy],
        kinds: KINDS[..if layout == "hash" { KINDS.len() } else { 1 }].to_vec(),
        _servers: Box::new(server),
    }
}

/// Servers that redirect their clients through the proxies. Replicas would connect that way too.
async fn cluster() -> Net {
    let cluster = Cluster::with_replicas(0);
    // All keys of these tests have one slot, so one of the proxies is enough.
    let slot = cluster.master_of("{k}").port();
    let at = cluster.servers.iter().position(|server| server.port() == slot).unwrap();
    let direct = connect(&cluster.url()).await;
    // It knows the servers by their own addresses, until a slot moves.
    direct.mutex("{k}").acquire().await.unwrap().release().await.unwrap();
    let mut proxies = Vec::new();
    for server in &cluster.servers {
        let proxy = Proxy::start(address(server)).await;
        let bus = (server.port() + 10_000).to_string();
        let port = proxy.address().port().to_string();
        for (setting, value) in [("bus-port", bus), ("port", port)] {
            let setting = format!("cluster-announce-{setting}");
            assert_eq!(server.ask(&["CONFIG", "SET", &setting, &value]), "OK");
        }
        proxies.push(proxy);
    }
    for server in &cluster.servers {
        eventually("everyone knows the proxies", || {
            let slots = server.ask(&["CLUSTER", "SLOTS"]);
            let named = |proxy: &Proxy| slots.contains(&proxy.address().port().to_string());
            proxies.iter().all(named).then_some(()).ok_or(slots)
        });
    }
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let client = connect(&format!("redis+cluster://{}?timeout=300ms", hosts.join(","))).await;
    proxies.swap(0, at);
    Net { client, direct, proxies, kinds: KINDS.to_vec(), _servers: Box::new(cluster) }
}

impl Net {
    fn proxy(&self) -> &Proxy {
        &self.proxies[0]
    }

    /// The holders of a lock, seen from the other side.
    async fn holders(&self, key: &str) -> usize {
        self.direct.inspect(key).await.unwrap().map_or(0, |lock| lock.holders.len())
    }

    async fn is_free(&self, key: &str) {
        let started = Instant::now();
        while self.holders(key).await > 0 {
            assert!(started.elapsed() < SOON, "{key} is not released");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn answers_are_lost(net: Net) {
    for kind in &net.kinds {
        net.proxy().swallow_replies(1);
        let guard = kind(&net.client).acquire().await.unwrap();
        let key = guard.key().to_string();
        assert_eq!(net.holders(&key).await, 1, "one grant of {key}");
        net.proxy().swallow_replies(1);
        assert_eq!(guard.release().await.unwrap(), Release::Unconfirmed, "{key}");
        net.is_free(&key).await;
        // The next client is not disturbed by the release that is sent twice.
        let next = kind(&net.direct).acquire().await.unwrap();
        let ours = kind(&net.client).owner(&Owner::new()).try_acquire().await.unwrap();
        assert_eq!(net.holders(&key).await, if ours.is_some() { 2 } else { 1 });
        assert_eq!(next.release().await.unwrap(), Release::Released);
    }
    let ttl = Duration::from_secs(6);
    let mut guards = Vec::new();
    for kind in &net.kinds {
        guards.push(kind(&net.client).ttl(ttl).acquire().await.unwrap());
    }
    net.proxy().swallow_replies(1);
    // Renewals are repeated in time; without them, all would be lost by then.
    tokio::time::sleep(ttl).await;
    for guard in guards {
        guard.check().unwrap_or_else(|error| panic!("{:?}: {error}", guard.key()));
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

async fn black_holes(net: Net) {
    for way in [Way::ToServer, Way::ToClient] {
        let ttl = Duration::from_secs(4);
        let mut held = Vec::new();
        for kind in &net.kinds {
            held.push(kind(&net.client).ttl(ttl).acquire().await.unwrap());
        }
        let released = net.client.mutex("{k}released").acquire().await.unwrap();
        let cut = Instant::now();
        net.proxy().hold(way);
        let wanted = tokio::spawn(net.client.mutex("{k}wanted").acquire());
        assert_eq!(released.release().await.unwrap(), Release::Unconfirmed);
        for guard in &held {
            let told = timeout(ttl, guard.lost()).await.expect("told before the lease ends");
            assert_eq!(told, Loss::Expired, "{:?}", guard.key());
        }
        assert!(cut.elapsed() < ttl, "told after {:?}", cut.elapsed());
        let error = wanted.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Engine { .. }), "neither free nor busy: {error}");
        drop(held);
        net.proxy().heal().await;
        // Far sooner than their leases would end.
        for key in ["{k}released", "{k}wanted"] {
            net.is_free(key).await;
            let again = timeout(SOON, net.client.mutex(key).acquire()).await.expect("it works");
            again.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_cost_time_and_nothing_else() {
    answers_are_lost(one("hash").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_cost_time_and_nothing_else_in_a_string() {
    answers_are_lost(one("string").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_cost_time_and_nothing_else_in_a_cluster() {
    answers_are_lost(cluster().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_a_loss_in_time_and_heals() {
    black_holes(one("hash").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_a_loss_in_time_and_heals_in_a_string() {
    black_holes(one("string").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_a_loss_in_time_and_heals_in_a_cluster() {
    black_holes(cluster().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_in_a_black_hole_is_reported_and_replaced() {
    let master = Server::start();
    let proxy = Proxy::start(address(&master)).await;
    let port = proxy.address().port();
    let sentinels = tokio::task::spawn_blocking(move || Sentinels::watching(master, port));
    let sentinels = sentinels.await.unwrap();
    let client = connect(&format!("{}?timeout=300ms", sentinels.url())).await;
    let ttl = Duration::from_secs(4);
    let guard = client.mutex("key").ttl(ttl).acquire().await.unwrap();
    let fence = guard.fence();
    proxy.hold(Way::ToClient);
    // Taken over by a replica in time, or signalled.
    let _ = timeout(ttl, guard.lost()).await;
    drop(guard);
    let started = Instant::now();
    let next: Guard = loop {
        match client.mutex("key").acquire_within(SOON).await {
            Ok(guard) => break guard,
            Err(error) => assert!(started.elapsed() < SOON * 2, "{error}"),
        }
    };
    assert!(next.fence() > fence, "{} after {fence}", next.fence());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_sent_twice_counts_once() {
    let server = Server::start();
    let proxy = Proxy::start(address(&server)).await;
    let other = connect(&server.url()).await;
    let owner = Owner::named("owner:1").unwrap();
    let kinds: [(Kind, &str); 3] = [
        (|client| client.mutex("N"), "owner:1"),
        (|client| client.read("N"), "owner:1"),
        (|client| client.write("N"), "owner:1:write"),
    ];
    for (lock, field) in kinds {
        let client = connect(&format!("redis://{}?timeout=300ms", proxy.address())).await;
        let theirs = lock(&other).owner(&owner).acquire().await.unwrap();
        let ours = lock(&client).owner(&owner).acquire().await.unwrap();
        assert_eq!(ours.fence(), theirs.fence(), "entering again keeps the fence");
        assert_eq!(server.ask(&["HGET", "N", field]), "2");
        proxy.swallow_replies(1);
        assert_eq!(ours.release().await.unwrap(), Release::Unconfirmed);
        // Until it was sent again and confirmed.
        client.close().await;
        assert_eq!(server.ask(&["HGET", "N", field]), "1", "the other hold of the owner stays");
        assert_eq!(theirs.release().await.unwrap(), Release::Released);
        assert_eq!(server.ask(&["EXISTS", "N"]), "0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_into_a_black_hole_is_made_again() {
    let server = Server::start();
    let proxy = Proxy::start(address(&server)).await;
    let waiter = connect(&format!("redis://{}", proxy.address())).await;
    let holder = connect(&server.url()).await;
    let listening = |many: &str| {
        eventually("the waiter listens", || {
            let channel = server.ask(&["PUBSUB", "CHANNELS", "lockkeeper_wake:{key}:*"]);
            let heard = server.ask(&["PUBSUB", "NUMSUB", channel.trim()]);
            heard.ends_with(many).then_some(()).ok_or(heard)
        });
    };
    for holes in 1..3 {
        let guard = holder.mutex("key").acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.mutex("key").acquire());
        listening(&holes.to_string());
        proxy.hold_subscriptions();
        // The server does not know that the first one is in a black hole.
        listening(&(holes + 1).to_string());
        let released = Instant::now();
        guard.release().await.unwrap();
        let next = timeout(SOON, waiting).await.expect("woken").unwrap().unwrap();
        assert!(released.elapsed() < Duration::from_secs(2), "{:?}", released.elapsed());
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_waiters_for_a_distant_replica_are_all_served() {
    let master = Server::start();
    let proxy = Proxy::start(address(&master)).await;
    proxy.latency(Duration::from_millis(10));
    let port = proxy.address().port().to_string();
    let replica = tokio::task::spawn_blocking(move || {
        let following = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
        Server::with(&[&VOLATILE[..], &following].concat())
    });
    let _replica = replica.await.unwrap();
    while !master.ask(&["INFO", "replication"]).contains("state=online") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let client = connect(&(master.url() + "?wait_replicas=1")).await;
    let held = client.mutex("held").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    let mut busy = tokio::task::JoinSet::new();
    for n in 0..200 {
        let client = client.clone();
        busy.spawn(async move {
            loop {
                let guard = client.mutex(format!("busy {n}")).acquire().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    let lost = timeout(Duration::from_secs(10), held.lost()).await;
    assert!(lost.is_err(), "the replica has everything: {lost:?}");
    assert!(busy.try_join_next().is_none(), "nobody failed");
    busy.shutdown().await;
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..300 {
        crowd.spawn(client.mutex(format!("crowd {n}")).acquire());
    }
    for guard in crowd.join_all().await {
        assert_eq!(guard.unwrap().replicas(), Some(1));
    }
}

/// The release of a grant that too few replicas have may still be on its way when the next attempt is
/// made, over another connection. It must not end what that one is granted.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_after_an_unanswered_release_has_a_token_of_its_own() {
    let server = Server::start();
    let proxy = Proxy::start(address(&server)).await;
    let client = connect(&format!("redis://{}?wait_replicas=1", proxy.address())).await;
    let lock = client.mutex("key");
    // The attempt and its WAIT, which leave together, are answered; the release is not.
    proxy.swallow_reply_after(1);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let mut tokens = std::collections::BTreeSet::new();
    while !waiting.is_finished() {
        tokens.insert(server.ask(&["HKEYS", "key"]));
    }
    proxy.swallowed().await;
    let refused = waiting.await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("0 of 1 replicas have it"), "{refused}");
    tokens.remove("");
    assert!(tokens.len() > 1, "{tokens:?}");
}

/// Migrates a slot while locks of every kind are held in it, and acquires some more.
async fn a_slot_moves(cluster: &Cluster, options: &str, half: bool) {
    let url = cluster.url() + options;
    let (holder, other) = (connect(&url).await, connect(&url).await);
    // Lost after four seconds without a renewal.
    let ttl = Duration::from_secs(6);
    let mut held = Vec::new();
    for kind in KINDS {
        held.push(kind(&holder).ttl(ttl).acquire().await.unwrap());
    }
    let from = cluster.master_of("{k}");
    let to = ["a", "b", "c", "d"].map(|key| cluster.master_of(key));
    let to = to.into_iter().find(|server| server.port() != from.port()).unwrap();
    let slot = from.ask(&["CLUSTER", "KEYSLOT", "{k}"]);
    let (from_id, to_id) = (from.ask(&["CLUSTER", "MYID"]), to.ask(&["CLUSTER", "MYID"]));
    let (port, all) =
        (to.port().to_string(), from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "999"]));
    to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    for key in all.lines().step_by(2).filter(|_| half) {
        from.ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    for (n, kind) in KINDS.into_iter().enumerate() {
        // Held locks are held: only the same owner, another reader and another permit are granted.
        let shared = kind(&other).try_acquire().await.unwrap();
        assert_eq!(shared.is_some(), [2, 3, 5].contains(&n), "kind {n}");
        if let Some(guard) = shared {
            assert_eq!(guard.release().await.unwrap(), Release::Released, "kind {n}");
        }
    }
    for (n, fresh) in [
        other.mutex("{k}fresh mutex"),
        other.mutex("{k}fresh fair").fair(),
        other.read("{k}fresh lock"),
        other.write("{k}fresh write"),
        other.semaphore("{k}fresh permit", 3),
    ]
    .into_iter()
    .enumerate()
    {
        let guard = fresh.acquire().await.unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    tokio::time::sleep(ttl).await;
    for guard in &held {
        guard.check().unwrap_or_else(|error| panic!("{:?} while moving: {error}", guard.key()));
    }
    for key in from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "999"]).lines() {
        from.ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    for server in [to, from] {
        assert_eq!(server.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]), "OK");
    }
    tokio::time::sleep(ttl / 2).await;
    for guard in held {
        guard.check().unwrap_or_else(|error| panic!("{:?} after it moved: {error}", guard.key()));
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    cluster.settled();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_every_kind_survive_a_slot_that_moves() {
    let cluster = Cluster::start();
    for options in ["", "?wait_replicas=1"] {
        for half in [false, true] {
            a_slot_moves(&cluster, options, half).await;
        }
    }
}

/// Tasks of one client that want a mutex again and again queue behind a client that is far away.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_never_idle_does_not_starve_a_distant_one() {
    let server = Server::start();
    let proxy = Proxy::start(address(&server)).await;
    let (busy, far) = (connect(&server.url()).await, format!("redis://{}", proxy.address()));
    let far = connect(&far).await;
    proxy.latency(Duration::from_millis(8));
    let entered = Arc::new(AtomicUsize::new(0));
    let mut crowd = JoinSet::new();
    for _ in 0..8 {
        let (lock, entered) = (busy.mutex("key"), entered.clone());
        crowd.spawn(async move {
            loop {
                let guard = lock.clone().acquire().await.unwrap();
                entered.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
                guard.release().await.unwrap();
            }
        });
    }
    let mut passed = Vec::new();
    for _ in 0..10 {
        let before = entered.load(Ordering::Relaxed);
        let guard = far.mutex("key").acquire_within(SOON).await;
        passed.push(entered.load(Ordering::Relaxed) - before);
        guard.unwrap_or_else(|error| panic!("{error}: {passed:?}")).release().await.unwrap();
    }
    crowd.shutdown().await;
    assert!(passed.iter().all(|passed| *passed < 200), "so many went first: {passed:?}");
}

/// Every round trip before the first answer counts against the time in which a sentinel has to answer.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_are_far_away_answer_in_time() {
    let sentinels = Sentinels::start();
    let mut proxies = Vec::new();
    for sentinel in &sentinels.sentinels {
        let proxy = Proxy::start(address(sentinel)).await;
        proxy.latency(Duration::from_millis(200));
        proxies.push(proxy);
    }
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let client = connect(&format!("redis+sentinel://{}/main", hosts.join(","))).await;
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
}
