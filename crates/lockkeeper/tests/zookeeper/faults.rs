//! What happens to locks when servers die or fall silent, and networks lose what they carry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Client, Loss, Release};
use lockkeeper_testkit::history::{Recorder, Resource, check};
use lockkeeper_testkit::proxy::{Proxy, Way};
use lockkeeper_testkit::server::zookeeper::Ensemble;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
const SESSION: Duration = Duration::from_secs(8);

/// How long something finite may take.
const PATIENCE: Duration = Duration::from_secs(60);

async fn single() -> Ensemble {
    spawn_blocking(Ensemble::single).await.expect("a server can be started")
}

async fn three() -> Ensemble {
    spawn_blocking(Ensemble::three).await.expect("servers can be started")
}

/// A client whose connection to the first server can be broken.
async fn through_a_proxy(servers: &Ensemble, root: &str) -> (Client, Proxy) {
    let target = (std::net::Ipv4Addr::LOCALHOST, servers[0].port()).into();
    let proxy = Proxy::start(target).await;
    let url = format!("zookeeper://{}/{root}?session={}ms", proxy.address(), SESSION.as_millis());
    (Client::connect(url).await.unwrap(), proxy)
}

/// Working holders: they access a resource that rejects stale fences, and stop when they are
/// signalled.
async fn work(client: Client, key: String, world: Arc<World>) {
    let owner = format!("{:?}", tokio::task::id());
    while !world.over.load(Ordering::Relaxed) {
        let called = world.recorder.now();
        // Without a majority, nothing can be granted.
        let Ok(guard) = client.mutex(&key).acquire_within(PATIENCE).await else { continue };
        let mark = world.recorder.granted(&guard, &owner, SESSION / 2, called, None);
        let (object, fence) = ((key.clone(), 0), guard.fence().get());
        tokio::select! {
            biased;
            _ = guard.lost() => mark.lost(),
            () = async {
                let Some(saw) = world.resource.read(&object, fence, &owner, false) else { return };
                mark.used();
                sleep(Duration::from_millis(2)).await;
                if guard.check().is_ok() {
                    mark.used();
                    world.resource.write(&object, fence, &owner, saw);
                }
            } => {}
        }
        mark.releasing();
        if matches!(guard.release().await, Ok(Release::Released)) {
            mark.released();
            world.cycles.fetch_add(1, Ordering::Relaxed);
        }
    }
    client.close().await;
}

struct World {
    recorder: Arc<Recorder>,
    resource: Resource,
    cycles: AtomicUsize,
    over: AtomicBool,
}

impl World {
    /// Waits until this many more locks were acquired and released.
    async fn goes_on(&self, more: usize) {
        let wanted = self.cycles.load(Ordering::Relaxed) + more;
        let going = async {
            while self.cycles.load(Ordering::Relaxed) < wanted {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, going).await.expect("work goes on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_the_leader_and_a_follower_under_load_lets_no_two_in() {
    let mut servers = three().await;
    let url = servers.url("load", SESSION);
    let world = Arc::new(World {
        recorder: Recorder::start(),
        resource: Resource::fenced(),
        cycles: AtomicUsize::new(0),
        over: AtomicBool::new(false),
    });
    let mut workers = Vec::new();
    for n in 0..6 {
        let client = Client::connect(&url).await.unwrap();
        workers.push(tokio::spawn(work(client, format!("key {}", n % 2), world.clone())));
    }
    for round in 0..2 {
        world.goes_on(50).await;
        let leader = servers.leader();
        let victim = if round == 0 { leader } else { (leader + 1) % 3 };
        servers[victim].kill();
        // The rest is a majority, and elects a leader if need be.
        world.goes_on(50).await;
        servers = spawn_blocking(move || {
            servers[victim].restart();
            servers.serving(3);
            servers
        })
        .await
        .unwrap();
    }
    world.goes_on(50).await;
    world.over.store(true, Ordering::Relaxed);
    for worker in workers {
        timeout(PATIENCE, worker).await.expect("a worker ends").unwrap();
    }
    let observer = Client::connect(&url).await.unwrap();
    let left = observer.list("").await.unwrap();
    let left = left.iter().map(|held| held.key.to_string()).collect();
    let violations = check(&world.recorder.history(&world.resource, left));
    assert!(violations.is_empty(), "{violations:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_leaves_a_silent_server_in_time_and_keeps_its_locks() {
    let servers = three().await;
    let leader = servers.leader();
    let followers: Vec<_> = (0..3).filter(|n| *n != leader).collect();
    let hosts: Vec<_> =
        followers.iter().map(|n| format!("127.0.0.1:{}", servers[*n].port())).collect();
    let url = format!("zookeeper://{}/silent?session=16s", hosts.join(","));
    let client = Client::connect(url).await.unwrap();
    let guard = client.mutex("key").acquire().await.unwrap();
    let connected = servers.connected().expect("our session is somewhere");
    servers[connected].pause();
    let paused = Instant::now();
    // Longer than the servers would keep a silent session.
    while paused.elapsed() < Duration::from_secs(18) {
        guard.check().expect("it moved to the other server");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    servers[connected].resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_without_another_loses_the_lock_and_the_next_session_gets_it() {
    let servers = single().await;
    let client = Client::connect(servers.url("alone", SESSION)).await.unwrap();
    let guard = client.mutex("key").acquire().await.unwrap();
    let fence = guard.fence();
    servers[0].pause();
    let paused = Instant::now();
    let loss = timeout(PATIENCE, guard.lost()).await.expect("silence is told by the clock");
    assert_eq!(loss, Loss::Expired);
    sleep(SESSION.saturating_sub(paused.elapsed()) + SESSION).await;
    servers[0].resume();
    let again = timeout(PATIENCE, async {
        loop {
            if let Ok(again) = client.mutex("key").acquire_within(PATIENCE).await {
                return again;
            }
        }
    });
    let again = again.await.expect("a new session is made");
    assert!(again.fence() > fence);
    assert_ne!(guard.release().await.unwrap(), Release::Released);
    again.check().unwrap();
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_behind_a_black_hole_is_signalled_before_the_next_grant() {
    let servers = single().await;
    for way in [Way::ToServer, Way::ToClient] {
        let root = format!("hole-{way:?}");
        let (client, proxy) = through_a_proxy(&servers, &root).await;
        let other = Client::connect(servers.url(&root, SESSION)).await.unwrap();
        let guard = client.mutex("key").acquire().await.unwrap();
        let next = tokio::spawn(async move {
            let next = other.mutex("key").acquire_within(PATIENCE).await.unwrap();
            (Instant::now(), next)
        });
        proxy.refuse().await;
        proxy.hold(way);
        timeout(PATIENCE, guard.lost()).await.expect("silence is told by the clock");
        let told = Instant::now();
        let (admitted, next) = next.await.unwrap();
        assert!(admitted > told, "the next one was let in first");
        assert!(next.fence() > guard.fence());
        proxy.heal().await;
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
        next.check().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_are_lost_cost_time_and_nothing_else() {
    let servers = single().await;
    let (client, proxy) = through_a_proxy(&servers, "lost").await;
    let other = Client::connect(servers.url("lost", SESSION)).await.unwrap();
    let mut last = 0;
    for _ in 0..4 {
        // To a creation, and to what is requested with it.
        proxy.swallow_replies(1);
        let guard = client.mutex("key").acquire_within(PATIENCE).await.unwrap();
        proxy.heal().await;
        let snapshot = other.inspect("key").await.unwrap().expect("it is held");
        assert_eq!(snapshot.holders.len(), 1, "{snapshot:?}");
        assert_eq!(snapshot.waiters.map(|waiters| waiters.len()), Some(0));
        assert!(guard.fence().get() > last);
        last = guard.fence().get();
        // To a heartbeat.
        proxy.swallow_replies(1);
        sleep(SESSION / 4).await;
        guard.check().unwrap();
        proxy.heal().await;
        // To a deletion.
        proxy.swallow_replies(1);
        let released = guard.release().await.unwrap();
        assert!(matches!(released, Release::Released | Release::Unconfirmed), "{released:?}");
        proxy.heal().await;
        let next = other.mutex("key").acquire_within(PATIENCE).await.unwrap();
        next.release().await.unwrap();
    }
    client.close().await;
    assert!(other.inspect("key").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn creations_and_deletions_that_fall_into_a_black_hole_leave_nothing_behind() {
    let servers = single().await;
    let other = Client::connect(servers.url("swallowed", SESSION)).await.unwrap();
    for way in [Way::ToServer, Way::ToClient] {
        let (client, proxy) = through_a_proxy(&servers, "swallowed").await;
        // A creation, and its caller gives up.
        proxy.hold(way);
        let given_up = client.mutex("key").acquire_within(Duration::from_millis(300)).await;
        assert!(given_up.is_err(), "{given_up:?}");
        proxy.heal().await;
        let guard = client.mutex("key").acquire_within(PATIENCE).await.unwrap();
        let seen = other.inspect("key").await.unwrap().expect("it is held");
        assert_eq!((seen.holders.len(), seen.waiters.map(|waiters| waiters.len())), (1, Some(0)));
        // A deletion: the reply is lost, and the lock is free in the end.
        proxy.hold(way);
        let mut released = tokio::spawn(guard.release());
        let early = timeout(Duration::from_millis(300), &mut released).await;
        assert!(early.is_err(), "{early:?}, though no answer came through");
        let next = tokio::spawn(other.mutex("key").acquire_within(PATIENCE));
        proxy.heal().await;
        let released = released.await.unwrap().unwrap();
        assert!(matches!(released, Release::Released | Release::Unconfirmed), "{released:?}");
        next.await.unwrap().unwrap().release().await.unwrap();
        client.close().await;
        assert!(other.inspect("key").await.unwrap().is_none());
    }
}

/// A runtime drops its tasks one after the other. The one that watches a held lock must not ask a session
/// whose task is gone again and again: its runtime waits for it.
#[test]
fn a_runtime_ends_although_locks_are_held() {
    let servers = Ensemble::single();
    let url = servers.url("ends", Duration::from_secs(20));
    for round in 0..20 {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = runtime.block_on(Client::connect(&url)).unwrap();
        let guards = runtime.block_on(async {
            let mut guards = Vec::new();
            for n in 0..10 {
                guards.push(client.mutex(format!("{round} {n}")).acquire().await.unwrap());
            }
            // A holder that learns of a request watches its lock.
            for guard in &guards {
                client.request_yield(guard.key()).await.unwrap();
                guard.yield_requested().await;
            }
            guards
        });
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(runtime);
            let _ = done.send(());
        });
        ended.recv_timeout(PATIENCE).expect("the runtime ends");
        drop(guards);
    }
}
