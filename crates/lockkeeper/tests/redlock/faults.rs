//! What happens to locks of a quorum when servers die, stop, slow down, forget, or lose their clocks.

use std::time::{Duration, Instant};

use lockkeeper::engine::Severity;
use lockkeeper::{Client, Error, Guard, Release};
use lockkeeper_testkit::WallClock;
use lockkeeper_testkit::history::Resource;
use lockkeeper_testkit::proxy::{Proxy, Way};
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::VOLATILE;

use crate::load::{Load, TTL, Unfenced};
use crate::servers::{Server, Servers, address, url};

/// How long something immediate may take on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A lease that nothing in these tests waits for.
const LONG: Duration = Duration::from_secs(60);

/// A client for a busy machine: nothing here waits for a silent server.
async fn connect(url: &str) -> Client {
    let mark = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{mark}node_timeout=3s");
    Client::connect(url).await.expect("a majority is there")
}

/// Acquires a lock for a fixed time, retrying through remaining faults.
async fn take(client: &Client, lease: Duration) -> Guard {
    let started = Instant::now();
    loop {
        match client.mutex("key").lease(lease).acquire_within(SOON).await {
            Ok(guard) => return guard,
            Err(error) => assert!(started.elapsed() < SOON, "{error}"),
        }
    }
}

/// Two clients that both consider themselves the holder: the resource accepts the later one.
fn assert_only_the_later_one_writes(first: &Guard, second: &Guard) {
    first.check().expect("the first one believes that it holds the lock");
    second.check().expect("so does the second");
    let (resource, object) = (Resource::fenced(), ("key".to_owned(), 0));
    let (old, new) = (first.fence().get(), second.fence().get());
    let before = resource.read(&object, old, "first", false).expect("nobody came before");
    let saw = resource.read(&object, new, "second", false).expect("the later fence is higher");
    assert!(!resource.write(&object, old, "first", before), "a stale write was accepted");
    assert!(resource.write(&object, new, "second", saw), "the holder was refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_jump_on_one_server_allows_two_holders_and_the_fence_tells_them_apart() {
    let clock = WallClock::new();
    let servers =
        Servers::of(vec![Server::start(), Server::with_clock(&clock, &VOLATILE), Server::start()]);
    let (one, other) = (connect(&servers.url()).await, connect(&servers.url()).await);
    servers[2].kill();
    let first = take(&one, LONG).await;
    servers[2].restart();
    assert!(other.mutex("key").try_acquire().await.unwrap().is_none(), "one has it");
    clock.ahead(LONG * 10);
    let second = take(&other, LONG).await;
    assert_only_the_later_one_writes(&first, &second);
    // The fence continues from where it was when the clock goes back, and further.
    let (mut last, _) = (second.fence(), second.release().await.unwrap());
    for _ in 0..3 {
        clock.behind(LONG * 10);
        let next = take(&other, LONG).await;
        assert!(next.fence() > last, "{} after {last}", next.fence());
        (last, _) = (next.fence(), next.release().await.unwrap());
        clock.set(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_lets_two_in_and_the_fence_tells_them_apart() {
    let servers = Servers::start(3);
    let (one, other) = (connect(&servers.url()).await, connect(&servers.url()).await);
    servers[2].kill();
    let first = take(&one, LONG).await;
    servers[2].restart();
    assert!(other.mutex("key").try_acquire().await.unwrap().is_none(), "one has it");
    servers[1].kill();
    servers[1].restart();
    let second = take(&other, LONG).await;
    assert_only_the_later_one_writes(&first, &second);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_strict_a_server_that_forgets_grants_nothing_before_the_lease_is_over() {
    let servers = Servers::start(3);
    let lease = Duration::from_secs(4);
    let url = servers.url() + "?strict=4s";
    let (one, other) = (connect(&url).await, connect(&url).await);
    let stricter = connect(&(servers.url() + "?strict=1h")).await;
    let young = stricter.mutex("another").try_acquire().await;
    assert!(matches!(&young, Err(Error::Engine { retryable: true, .. })), "{young:?}");
    assert!(young.unwrap_err().to_string().contains("votes after 1h"));
    let first = take(&one, lease).await;
    for at in [1, 2] {
        servers[at].kill();
        servers[at].restart();
    }
    let _second = take(&other, lease).await;
    assert!(first.check().is_err(), "two held the lock at the same time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_missed_is_filled_in_by_a_renewal() {
    let servers = Servers::start(3);
    let client = connect(&servers.url()).await;
    servers[2].kill();
    let ttl = Duration::from_secs(6);
    let guard = client.mutex("key").ttl(ttl).acquire().await.unwrap();
    servers[2].restart();
    let has_it = |at: usize| servers[at].ask(&["GET", "key"]);
    eventually("the third server has the lock too", || {
        let (there, here) = (has_it(2), has_it(0));
        (!there.is_empty() && there == here).then_some(()).ok_or(format!("{there:?} {here:?}"))
    });
    // With it, another one may be missing.
    servers[0].kill();
    assert!(tokio::time::timeout(ttl, guard.lost()).await.is_err(), "two of three have it");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    eventually("nobody has it", || {
        let left = [has_it(1), has_it(2)].concat();
        left.is_empty().then_some(()).ok_or(left)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_missed_a_release_receives_it_when_it_is_back() {
    let servers = Servers::start(3);
    let proxy = Proxy::start(address(servers[2].port())).await;
    let addresses = [address(servers[0].port()), address(servers[1].port()), proxy.address()];
    let client = connect(&url(addresses.into_iter())).await;
    let guard = take(&client, LONG).await;
    let left = || servers[2].ask(&["EXISTS", "key"]);
    eventually("all have the lock", || (left() == "1").then_some(()).ok_or(left()));
    // Nothing arrives, and what was sent is lost with the connection.
    proxy.hold(Way::ToServer);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(left(), "1");
    proxy.reset();
    proxy.heal().await;
    let started = Instant::now();
    while left() != "0" {
        assert!(started.elapsed() < SOON, "it is still there");
        client.mutex("another").acquire().await.unwrap().release().await.unwrap();
    }
}

/// A server that did not answer may still have a release to run, on a connection that was replaced since.
/// It must not meet the next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_after_a_silent_server_has_a_token_of_its_own() {
    let servers = Servers::start(3);
    let client = Client::connect(format!("{}?node_timeout=100ms", servers.url())).await.unwrap();
    servers[0].ask(&["SET", "key", "another client", "PX", "60000"]);
    servers[1].pause();
    let lock = client.mutex("key");
    let waiting = tokio::spawn(async move { lock.acquire_within(Duration::from_secs(2)).await });
    let mut tokens = std::collections::BTreeSet::new();
    while !waiting.is_finished() {
        tokens.insert(servers[2].ask(&["GET", "key"]));
    }
    servers[1].resume();
    assert!(waiting.await.unwrap().is_err(), "two of three are missing");
    tokens.remove("");
    assert!(tokens.len() > 1, "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_free_and_nothing_is_busy() {
    let servers = Servers::start(3);
    let client = connect(&servers.url()).await;
    servers[0].kill();
    servers[1].kill();
    let refused = client.mutex("key").try_acquire().await.unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, Error::Engine { retryable: true, .. }), "{text}");
    assert!(text.contains("only 1 of 3 servers took part"), "{text}");
    assert!(text.contains(&address(servers[0].port()).to_string()), "{text}");
    eventually("the one that is left keeps nothing", || {
        let left = servers[2].ask(&["EXISTS", "key"]);
        (left == "0").then_some(()).ok_or(left)
    });
    let nobody = Client::connect(servers.url()).await.unwrap_err();
    assert!(nobody.to_string().contains("cannot connect"), "{nobody}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_string_is_that_of_other_redlocks() {
    let servers = Servers::start(3);
    let client = connect(&servers.url()).await;
    let guard = take(&client, LONG).await;
    for server in servers.iter() {
        eventually("it is there", || {
            let kind = server.ask(&["TYPE", "key"]);
            (kind == "string").then_some(()).ok_or(kind)
        });
        assert_eq!(server.ask(&["SET", "key", "theirs", "NX", "PX", "60000"]), "");
        assert!(server.ask(&["PTTL", "key"]).parse::<u64>().unwrap() <= 60_000);
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    // A foreign lock excludes us if a majority has it, and only then.
    for (at, is_free) in [(0, true), (1, false)] {
        eventually("it is theirs", || {
            let set = servers[at].ask(&["SET", "key", "theirs", "NX", "PX", "60000"]);
            (set == "OK").then_some(()).ok_or(set)
        });
        let ours = client.mutex("key").try_acquire().await.unwrap();
        assert_eq!(ours.is_some(), is_free, "with {} of theirs", at + 1);
        if let Some(ours) = ours {
            ours.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_lock_is_not_taken_for_a_mutex() {
    let servers = Servers::start(3);
    let (client, other) = (connect(&servers.url()).await, connect(&servers.url()).await);
    for lock in [client.read("key"), client.write("key")] {
        let guard = lock.lease(LONG).acquire_within(SOON).await.unwrap();
        for server in servers.iter() {
            eventually("it is there", || {
                let kind = server.ask(&["TYPE", "key"]);
                (kind == "hash").then_some(()).ok_or(kind)
            });
            assert_eq!(server.ask(&["SET", "key", "theirs", "NX", "PX", "60000"]), "");
        }
        let mutex = other.mutex("key").try_acquire().await;
        assert!(matches!(mutex, Err(Error::Conflict { .. })), "{mutex:?}");
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    for server in servers.iter() {
        eventually("it is theirs", || {
            let set = server.ask(&["SET", "key", "theirs", "NX", "PX", "60000"]);
            (set == "OK").then_some(()).ok_or(set)
        });
    }
    for lock in [client.read("key"), client.write("key")] {
        let refused = lock.try_acquire().await;
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_carry_one_fence_although_a_server_has_counted_further() {
    let servers = Servers::start(3);
    let clients = [connect(&servers.url()).await, connect(&servers.url()).await];
    let counter = |at: usize| servers[at].ask(&["HGET", "lockkeeper:{key}", "fence"]);
    // As left by a writer to which one server granted late.
    let (written, further) = (1000, "1005");
    for (at, fence) in ["1000", "1000", further].into_iter().enumerate() {
        servers[at].ask(&["HSET", "lockkeeper:{key}", "fence", fence]);
    }
    let mut readers = Vec::new();
    for client in &clients {
        readers.push(client.read("key").lease(LONG).acquire_within(SOON).await.unwrap());
    }
    let fences: Vec<_> = readers.iter().map(|reader| reader.fence().get()).collect();
    assert_eq!(fences, [written; 2], "two of three agree");
    // Now the remaining ones differ, and a reader holds with the lower counter.
    servers[0].kill();
    assert!(clients[1].read("key").try_acquire().await.unwrap().is_none());
    for reader in readers {
        reader.release().await.unwrap();
    }
    let reader = clients[1].read("key").lease(LONG).acquire_within(SOON).await.unwrap();
    assert_eq!(reader.fence().get(), written + 5, "alone, a reader raises the lower one");
    assert_eq!(counter(1), further);
    reader.release().await.unwrap();
    let writer = clients[0].write("key").lease(LONG).acquire_within(SOON).await.unwrap();
    assert!(writer.fence().get() > written + 5, "{} after {further}", writer.fence());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_restores_readers_and_their_fence_at_a_server_that_forgot() {
    let servers = Servers::start(3);
    let client = connect(&servers.url()).await;
    servers[2].kill();
    let guard = client.read("key").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    servers[2].restart();
    eventually("the third server has the reader and the fence", || {
        let mode = servers[2].ask(&["HGET", "key", "mode"]);
        let fence = servers[2].ask(&["HGET", "lockkeeper:{key}", "fence"]);
        let is_so = mode == "read" && fence == guard.fence().to_string();
        is_so.then_some(()).ok_or(format!("{mode:?} {fence:?} {}", guard.fence()))
    });
    guard.check().expect("it was held all the time");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_server_may_have_a_user_of_its_own() {
    let servers = Servers::start(3);
    let mut hosts = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        let (user, password) = (format!("user{at}"), format!("secret{at}"));
        server.ask(&["ACL", "SETUSER", &user, "on", &format!(">{password}"), "~*", "&*", "+@all"]);
        hosts.push(format!("{user}:{password}@{}", address(server.port())));
    }
    let client = connect(&format!("redlock://{}", hosts.join(","))).await;
    let guard = take(&client, LONG).await;
    for (at, server) in servers.iter().enumerate() {
        eventually("each is used by its own user", || {
            let list = server.ask(&["CLIENT", "LIST"]);
            list.contains(&format!("user=user{at} ")).then_some(()).ok_or(list)
        });
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_checks_every_server_and_finds_duplicates() {
    let servers = Servers::start(3);
    let client = connect(&servers.url()).await;
    let findings = client.doctor().await.unwrap();
    for server in servers.iter() {
        let name = address(server.port()).to_string();
        for what in ["run ", "its clock", "maxmemory-policy", "append-only"] {
            let is_it =
                |f: &&lockkeeper::engine::Finding| f.what.contains(&name) && f.what.contains(what);
            assert!(findings.iter().any(|f| is_it(&f)), "{name} {what}: {findings:#?}");
        }
    }
    assert!(findings.iter().all(|f| f.severity != Severity::Problem), "{findings:#?}");
    let twice =
        [address(servers[0].port()).to_string(), format!("localhost:{}", servers[0].port())];
    let url = format!("redlock://{},{}", twice.join(","), address(servers[1].port()));
    let findings = connect(&url).await.doctor().await.unwrap();
    let same = findings.iter().find(|f| f.what.contains("the same server"));
    assert_eq!(same.map(|f| f.severity), Some(Severity::Problem), "{findings:#?}");
    servers[2].kill();
    let findings = client.doctor().await.unwrap();
    assert!(findings.iter().any(|f| f.what.starts_with("2 of 3 servers answer")), "{findings:#?}");
}

/// Restarts lose everything, and yet every fence is higher than those before.
#[tokio::test(flavor = "multi_thread")]
async fn minorities_that_die_forget_stop_and_slow_down_do_not_hurt_what_is_fenced() {
    let servers = Servers::start(5);
    let proxy = Proxy::start(address(servers[0].port())).await;
    let ports = servers.iter().map(|server| address(server.port()));
    let url = url(ports.enumerate().map(|(at, own)| if at == 0 { proxy.address() } else { own }));
    let load = Load::start(&url, 4, 8, 48).await;
    for round in 0.. {
        if load.done() > 12_000 {
            break;
        }
        let (one, two) = (1 + round % 4, 1 + (round + 1) % 4);
        match round % 5 {
            0 => servers[one].kill(),
            1 => {
                servers[one].kill();
                servers[two].pause();
            }
            2 => servers[one].pause(),
            3 => proxy.latency(Duration::from_millis(200)),
            _ => {
                servers[one].kill();
                for _ in 0..5 {
                    proxy.reset();
                    load.cycles(50).await;
                }
            }
        }
        load.cycles(500).await;
        match round % 5 {
            0 | 4 => servers[one].restart(),
            1 => {
                servers[one].restart();
                servers[two].resume();
            }
            2 => servers[one].resume(),
            _ => proxy.heal().await,
        }
        load.cycles(200).await;
    }
    load.judge("dead, empty, stopped, slow").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_of_a_minority_that_jump_do_not_hurt_what_is_fenced() {
    let clocks = [WallClock::new(), WallClock::new()];
    let mut all = vec![Server::start(), Server::start(), Server::start()];
    all.extend(clocks.iter().map(|clock| Server::with_clock(clock, &VOLATILE)));
    let servers = Servers::of(all);
    let load = Load::start(&servers.url(), 4, 8, 48).await;
    for round in 0.. {
        if load.done() > 10_000 {
            break;
        }
        let clock = &clocks[round % 2];
        match round % 4 {
            0 | 1 => clock.ahead(TTL * 10),
            _ => clock.behind(TTL * 10),
        }
        load.cycles(150).await;
        if round % 3 == 0 {
            servers[3 + (round + 1) % 2].pause();
            load.cycles(300).await;
            servers[3 + (round + 1) % 2].resume();
        }
        clock.set(0);
        load.cycles(150).await;
    }
    load.judge("clocks that jump").await;
}

/// Servers that lose nothing and have good clocks: there must be no violation even without fences.
#[tokio::test(flavor = "multi_thread")]
async fn writers_exclude_and_readers_share_a_fence_while_minorities_stop_and_slow_down() {
    let servers = Servers::start(5);
    let proxy = Proxy::start(address(servers[0].port())).await;
    let ports = servers.iter().map(|server| address(server.port()));
    let url = url(ports.enumerate().map(|(at, own)| if at == 0 { proxy.address() } else { own }));
    let load = Load::start(&url, 4, 8, 12).await;
    for round in 0.. {
        if load.done() > 3_000 {
            break;
        }
        let one = 1 + round % 4;
        servers[one].pause();
        match round % 2 {
            0 => proxy.latency(Duration::from_millis(200)),
            _ => proxy.reset(),
        }
        load.cycles(150).await;
        servers[one].resume();
        proxy.heal().await;
        load.cycles(50).await;
    }
    let unfenced = load.judge("stopped, slow").await;
    assert_eq!(unfenced, Unfenced { overlaps: 0, apart: 0 });
}
