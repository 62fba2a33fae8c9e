//! Locks shared with other clients of the same recipes, and the cost of a long queue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::clock::Clock;
use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::{Claim, Engine, Mode, Released, Request};
use lockkeeper::{Client, Error, Key, Token};
use lockkeeper_testkit::server::zookeeper::Ensemble;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use zookeeper_client as zk;

/// Long enough that hardly anything expires during a test.
const SESSION: Duration = Duration::from_secs(60);

const PATIENCE: Duration = Duration::from_secs(60);

const EPHEMERAL: zk::CreateOptions<'static> =
    zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());

async fn single() -> Ensemble {
    spawn_blocking(Ensemble::single).await.expect("a server can be started")
}

/// A foreign client.
async fn stranger(servers: &Ensemble) -> zk::Client {
    zk::Client::connect(&servers.hosts()).await.unwrap()
}

async fn open(servers: &Ensemble, root: &str) -> Arc<dyn Engine> {
    let endpoint = Endpoint::parse(&servers.url(root, SESSION)).unwrap();
    lockkeeper::engines::open(endpoint).await.unwrap()
}

fn claim(engine: &Arc<dyn Engine>, key: &str) -> Box<dyn Claim> {
    let (key, ttl) = (Key::new(key).unwrap(), Duration::from_secs(30));
    engine.claim(Request::new(key, Token::fresh(), Mode::Mutex, ttl))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_is_shared_with_a_curator_client_in_queue_order() {
    let servers = single().await;
    let client = Client::connect(servers.url("locks", SESSION)).await.unwrap();
    let curator = stranger(&servers).await;
    let guard = client.mutex("orders").acquire().await.unwrap();
    // It is behind us, and finds us first in its own sort order of names.
    let path = "/locks/orders/_c_53345f98-9423-4e0c-a7b5-9f819e3ec2e1-lock-";
    let (_, sequence) = curator.create(path, b"10.0.0.7", &EPHEMERAL).await.unwrap();
    let mut children = curator.list_children("/locks/orders").await.unwrap();
    children.sort_by_key(|name| name.rsplit_once("lock-").map(|(_, tail)| tail.to_owned()));
    assert!(children[1].ends_with(&sequence.to_string()), "{children:?}");
    assert!(children[0].starts_with("_c_") && children[0].contains("-lock-"), "{children:?}");
    // And another of ours behind it.
    let waiting = tokio::spawn(client.mutex("orders").acquire());
    guard.release().await.unwrap();
    let other = Client::connect(servers.url("locks", SESSION)).await.unwrap();
    let seen = other.inspect("orders").await.unwrap().expect("it is held");
    assert_eq!(seen.holders[0].who.as_deref(), Some("10.0.0.7"));
    assert!(other.mutex("orders").try_acquire().await.unwrap().is_none());
    assert!(!waiting.is_finished());
    curator.delete(&format!("{path}{sequence}"), None).await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_shared_with_a_curator_client() {
    let servers = single().await;
    let client = Client::connect(servers.url("locks", SESSION)).await.unwrap();
    let permit = client.semaphore("gpu", 2).acquire().await.unwrap();
    let curator = stranger(&servers).await;
    let path = "/locks/gpu/leases/_c_53345f98-9423-4e0c-a7b5-9f819e3ec2e1-lease-";
    let (_, sequence) = curator.create(path, b"", &EPHEMERAL).await.unwrap();
    assert_eq!(curator.list_children("/locks/gpu/leases").await.unwrap().len(), 2);
    assert!(client.semaphore("gpu", 2).try_acquire().await.unwrap().is_none());
    curator.delete(&format!("{path}{sequence}"), None).await.unwrap();
    client.semaphore("gpu", 2).acquire().await.unwrap().release().await.unwrap();
    permit.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn curators_revocation_and_a_deleted_node_are_noticed_at_once() {
    let servers = single().await;
    let client = Client::connect(servers.url("locks", SESSION)).await.unwrap();
    let curator = stranger(&servers).await;
    let guard = client.mutex("key").acquire().await.unwrap();
    let name = curator.list_children("/locks/key").await.unwrap().remove(0);
    let path = format!("/locks/key/{name}");
    curator.set_data(&path, b"__REVOKE__", None).await.unwrap();
    timeout(PATIENCE, guard.yield_requested()).await.expect("the holder is asked");
    guard.check().unwrap();
    curator.delete(&path, None).await.unwrap();
    let told = timeout(SESSION / 8, guard.lost()).await;
    assert_eq!(told.expect("before a renewal would find out"), lockkeeper::Loss::Gone);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_was_removed_meanwhile_is_made_again_and_fences_still_rise() {
    let servers = single().await;
    let client = Client::connect(servers.url("a/b/c", SESSION)).await.unwrap();
    let observer = stranger(&servers).await;
    let mut last = 0;
    for _ in 0..3 {
        for lock in [client.write("key"), client.read("key")] {
            let guard = lock.acquire_within(PATIENCE).await.unwrap();
            assert!(guard.fence().get() >= last, "{} after {last}", guard.fence());
            last = guard.fence().get();
            guard.release().await.unwrap();
            let removed = async {
                while observer.check_stat("/a").await.unwrap().is_some() {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            timeout(PATIENCE, removed).await.expect("the server removes what is empty");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_user_are_closed_to_others_and_a_wrong_password_is_reported() {
    let servers = single().await;
    let url = |user: &str| format!("zookeeper://{user}@{}/closed?session=10s", servers.hosts());
    let client = Client::connect(url("me:canary")).await.unwrap();
    let guard = client.mutex("key").acquire().await.unwrap();
    let other = Client::connect(url("other:guess")).await.unwrap();
    let error = other.mutex("key").acquire().await.unwrap_err();
    assert!(matches!(&error, Error::Engine { retryable: false, .. }), "{error:?}");
    assert!(error.to_string().contains("not authorized"), "{error}");
    assert!(!format!("{error} {error:?} {client:?}").contains("canary"));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_what_is_right_and_what_is_missing() {
    let servers = single().await;
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("zookeeper://{},{dead}/doctor?session=10h", servers.hosts());
    let client = Client::connect(url).await.unwrap();
    let findings = client.doctor().await.unwrap();
    let told: Vec<_> = findings.iter().map(|found| found.what.as_str()).collect();
    for expected in [
        "it is a standalone",
        "cannot be reached",
        "no ensemble was seen",
        "the session lasts 1m, though 10h was asked for",
        "nodes can be made and deleted",
        "directories of locks that nobody uses are removed",
        "open to the world",
    ] {
        assert!(told.iter().any(|what| what.contains(expected)), "{expected:?} in {told:#?}");
    }
    assert!(client.list("").await.unwrap().is_empty(), "it leaves nothing behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_request_may_hold_is_renewed_all_the_same() {
    let servers = single().await;
    // The servers need a while for a thousand nodes.
    let session = Duration::from_secs(30);
    let client = Client::connect(servers.url("many", session)).await.unwrap();
    let key = |n: usize| format!("{n} {}", "x".repeat(180));
    let mut guards = vec![client.mutex("mutex").acquire().await.unwrap()];
    for n in 0..4 {
        let lock = client.semaphore(key(n), 1_000).permits(1_000);
        guards.push(lock.acquire_within(PATIENCE).await.unwrap());
    }
    // Longer than an unrenewed lock would last.
    let held = tokio::time::Instant::now();
    while held.elapsed() < session * 3 / 5 {
        for guard in &guards {
            guard.check().unwrap();
        }
        sleep(Duration::from_millis(50)).await;
    }
    // With one permit less, the whole hold is gone, and no other.
    let observer = stranger(&servers).await;
    let dir = format!("/many/{}/leases", key(3));
    let name = observer.list_children(&dir).await.unwrap().pop().unwrap();
    observer.delete(&format!("{dir}/{name}"), None).await.unwrap();
    timeout(session, guards[4].lost()).await.expect("a renewal finds out");
    for (n, guard) in guards.iter().enumerate() {
        assert_eq!(guard.check().is_ok(), n != 4, "{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_permits_than_a_request_may_hold_are_refused_with_their_number() {
    let servers = single().await;
    let client = Client::connect(servers.url("most", SESSION)).await.unwrap();
    let before = servers[0].received();
    let refused = client.semaphore("gpu", 20_000).permits(8_000).note("why").acquire().await;
    let Err(Error::Unsupported { what, .. }) = refused else { panic!("{refused:?}") };
    // Two more packets are those of these queries themselves.
    assert!(servers[0].received() <= before + 2, "it was asked for");
    let number = what.split_whitespace().filter_map(|word| word.parse::<u32>().ok()).min();
    let most = number.unwrap_or_else(|| panic!("no number in {what:?}"));
    let lock = |take| client.semaphore("gpu", 20_000).permits(take).note("why");
    assert!(lock(most + 1).acquire().await.is_err(), "{most} were said to be the most");
    let guard = lock(most).acquire_within(PATIENCE).await.unwrap();
    assert_eq!(guard.slots().len(), most as usize);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_another_kind_disturbs_no_other() {
    let servers = single().await;
    for kind in ["write", "semaphore"] {
        let url = servers.url(kind, SESSION);
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut rightful = JoinSet::new();
        // So many that one of them is always in the queue.
        for _ in 0..8 {
            let client = Client::connect(&url).await.unwrap();
            let over = over.clone();
            rightful.spawn(async move {
                let (mut grants, mut errors) = (0, Vec::new());
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    match client.mutex("key").acquire().await {
                        Ok(guard) => {
                            grants += 1;
                            sleep(Duration::from_millis(2)).await;
                            guard.release().await.unwrap();
                        }
                        Err(error) => errors.push(error.to_string()),
                    }
                }
                (grants, errors)
            });
        }
        // The lock is a mutex now.
        let wrong = Client::connect(&url).await.unwrap();
        let mutex = wrong.mutex("key").acquire().await.unwrap();
        let lock = || match kind {
            "write" => wrong.write("key"),
            _ => wrong.semaphore("key", 3),
        };
        let other = Client::connect(&url).await.unwrap();
        let refused = match kind {
            "write" => other.write("key").acquire().await,
            _ => other.semaphore("key", 3).acquire().await,
        };
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
        mutex.release().await.unwrap();
        let (mut refused, mut entered) = (0, 0);
        for _ in 0..300 {
            match lock().try_acquire().await {
                Err(Error::Conflict { .. }) => refused += 1,
                // It may arrive at an empty queue, or at the same moment as another.
                Ok(Some(guard)) => {
                    entered += 1;
                    drop(guard.release().await);
                }
                Ok(None) => {}
                other => panic!("{other:?}"),
            }
            match lock().acquire_within(PATIENCE).await {
                Err(Error::Conflict { .. }) => refused += 1,
                Ok(guard) => {
                    entered += 1;
                    drop(guard.release().await);
                }
                other => panic!("{other:?}"),
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let (mut grants, mut errors) = (0, Vec::new());
        while let Some(task) = rightful.join_next().await {
            let (more, wrong) = task.unwrap();
            grants += more;
            errors.extend(wrong);
        }
        println!(
            "{kind}: {grants} grants, {} errors, {refused} refused, {entered} entered",
            errors.len()
        );
        assert!(refused > 100, "{refused}");
        // A claim is refused only because of a holder, and that is over in a moment.
        let told = errors.first().cloned().unwrap_or_default();
        assert!(entered > 0 || errors.is_empty(), "{} errors: {told}", errors.len());
        assert!(errors.len() * 20 <= grants, "{} errors beside {grants}: {told}", errors.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kazoo_holds_as_another_kind_is_refused() {
    let servers = single().await;
    let client = Client::connect(servers.url("kazoo", SESSION)).await.unwrap();
    let kazoo = stranger(&servers).await;
    let hex = "1f0e5b5e0a1c4e0f8d2b3c4d5e6f7a8b";
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let plain = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
    for (key, reader) in [("reader", true), ("semaphore", false)] {
        let dir = format!("/kazoo/{key}");
        kazoo.mkdir(&dir, &persistent).await.unwrap();
        if reader {
            kazoo.create(&format!("{dir}/{hex}__rlock__"), b"", &EPHEMERAL).await.unwrap();
        } else {
            kazoo.create(&format!("{dir}/{hex}"), b"", &plain).await.unwrap();
        }
        for lock in
            [client.mutex(key), client.write(key), client.read(key), client.semaphore(key, 3)]
        {
            let again = lock.clone().try_acquire().await;
            assert!(matches!(again, Err(Error::Conflict { .. })), "{key}: {again:?}");
            let refused = timeout(PATIENCE, lock.acquire()).await.expect("it does not wait");
            let Err(Error::Conflict { found, .. }) = refused else { panic!("{key}: {refused:?}") };
            assert!(found.contains("kazoo"), "{found}");
        }
        let mut left = kazoo.list_children(&dir).await.unwrap();
        // An empty container is removed by the servers.
        left.retain(|name| name != "locks");
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

/// Queues claims behind each other, all of one session.
async fn fill_queue(engine: &Arc<dyn Engine>, key: &str, many: usize) -> Vec<Box<dyn Claim>> {
    let mut claims = Vec::new();
    for _ in 0..many {
        let mut claim = claim(engine, key);
        assert!(claim.attempt(Clock::System.now()).await.unwrap().is_none());
        claims.push(claim);
    }
    claims
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waiters_some_of_which_give_up_are_served_in_order_and_leave_nothing() {
    let servers = single().await;
    let engine = open(&servers, "line").await;
    let mut holder = claim(&engine, "key");
    let first = holder.attempt(Clock::System.now()).await.unwrap().expect("it is free").fence.get();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let served = Arc::new(Mutex::new(vec![(0, first)]));
    let mut tasks = JoinSet::new();
    for (n, mut claim) in fill_queue(&engine, "key", 1_000).await.into_iter().enumerate() {
        let patience = (random.f64() < 0.3).then(|| Duration::from_millis(random.u64(0..1_500)));
        let served = served.clone();
        tasks.spawn(async move {
            let turn = async {
                loop {
                    claim.wait().await.unwrap();
                    if let Some(grant) = claim.attempt(Clock::System.now()).await.unwrap() {
                        return grant;
                    }
                }
            };
            let granted = match patience {
                Some(patience) => timeout(patience, turn).await.ok(),
                None => Some(turn.await),
            };
            if let Some(grant) = granted {
                served.lock().unwrap().push((n + 1, grant.fence.get()));
            }
            assert_eq!(claim.release().await.unwrap(), Released::Yes);
        });
    }
    assert_eq!(holder.release().await.unwrap(), Released::Yes);
    while let Some(task) = timeout(PATIENCE, tasks.join_next()).await.expect("nobody is stuck") {
        task.unwrap();
    }
    let served = served.lock().unwrap().clone();
    assert!(served.len() > 600, "{} were served", served.len());
    assert!(served.is_sorted(), "in order of arrival, and of fences: {served:?}");
    let observer = stranger(&servers).await;
    let left = observer.list_children("/line/key").await.unwrap_or_default();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_costs_as_many_requests_with_500_waiters_as_with_5() {
    const ROUNDS: u64 = 5;
    let servers = single().await;
    let engine = open(&servers, "cost").await;
    let mut costs = Vec::new();
    for many in [5, 500] {
        let key = format!("key {many}");
        let mut holder = claim(&engine, &key);
        holder.attempt(Clock::System.now()).await.unwrap().expect("it is free");
        // All of them listen; so many tasks wait that the next one is notified first.
        let mut waiters = std::collections::VecDeque::new();
        for mut claim in fill_queue(&engine, &key, many).await {
            waiters.push_back(tokio::spawn(async move {
                claim.wait().await.unwrap();
                claim
            }));
        }
        let settled = async {
            let mut before = servers[0].received();
            loop {
                sleep(Duration::from_millis(300)).await;
                let now = servers[0].received();
                if now - before <= 2 {
                    return now;
                }
                before = now;
            }
        };
        let before = timeout(PATIENCE, settled).await.expect("everyone listens");
        for _ in 0..ROUNDS.min(many as u64 - 1) {
            holder.release().await.unwrap();
            let mut next = waiters.pop_front().expect("there are enough").await.unwrap();
            next.attempt(Clock::System.now()).await.unwrap().expect("it is the next one's turn");
            holder = next;
        }
        costs.push((servers[0].received() - before) / ROUNDS.min(many as u64 - 1));
    }
    println!("requests per hand-off: {costs:?}");
    assert!(costs[1] <= costs[0] + 1, "{costs:?}");
    assert!(costs[1] <= 6, "{costs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_end_with_a_session_is_no_lock() {
    let servers = single().await;
    let client = Client::connect(servers.url("locks", SESSION)).await.unwrap();
    let application = stranger(&servers).await;
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    application.mkdir("/locks/orders", &persistent).await.unwrap();
    application.create("/locks/orders/lock-0000000007", b"value", &persistent).await.unwrap();
    assert!(client.inspect("orders").await.unwrap().is_none());
    assert!(client.list("").await.unwrap().is_empty());
    assert!(client.break_lock("orders").await.unwrap().is_empty());
    let refused =
        timeout(PATIENCE, client.mutex("orders").acquire()).await.expect("it is not waited for");
    let Err(Error::Conflict { found, .. }) = refused else { panic!("{refused:?}") };
    assert!(found.contains("/locks/orders/lock-0000000007"), "{found}");
    // Nor is one that was put between a holder and later arrivals.
    let holder = Client::connect(servers.url("locks", SESSION)).await.unwrap();
    let guard = holder.mutex("key").acquire().await.unwrap();
    application.create("/locks/key/lock-0000000050", b"", &persistent).await.unwrap();
    let refused =
        timeout(PATIENCE, client.mutex("key").acquire()).await.expect("it is not waited for");
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    guard.check().unwrap();
    guard.release().await.unwrap();
    let (data, _) = application.get_data("/locks/orders/lock-0000000007").await.unwrap();
    assert_eq!(data, b"value");
}
