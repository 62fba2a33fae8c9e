//! What is in the store, as foreign clients read and write it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::engine::Mode;
use lockkeeper::{Client, Error, Owner, Release};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Cluster, Server};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(20);

async fn connect(url: impl AsRef<str>) -> Client {
    Client::connect(url).await.unwrap_or_else(|error| panic!("{error}"))
}

fn milliseconds(text: &str) -> u64 {
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is not a number of milliseconds"))
}

#[tokio::test]
async fn a_mutex_is_redissons_hash() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let guard = client.mutex("N").ttl(TTL).acquire().await.unwrap();
    let hash = server.ask(&["HGETALL", "N"]);
    let [field, count] = hash.lines().collect::<Vec<_>>()[..] else { panic!("one field: {hash}") };
    let (uuid, n) = field.rsplit_once(':').unwrap();
    assert_eq!((uuid.len(), uuid.matches('-').count(), count), (36, 4, "1"), "{field}");
    assert!(n.parse::<u64>().is_ok(), "{field}");
    let left = milliseconds(&server.ask(&["PTTL", "N"]));
    assert!((19_000..=20_000).contains(&left), "{left}");
    guard.release().await.unwrap();
    assert_eq!(server.ask(&["EXISTS", "N"]), "0");
    // Nothing stays forever.
    for key in server.ask(&["KEYS", "*"]).lines() {
        assert!(server.ask(&["PTTL", key]).parse::<i64>().unwrap() > 0, "{key} has no end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_holder_is_respected_and_its_release_wakes() {
    let server = Server::start();
    let client = connect(server.url()).await;
    // As Redisson writes it.
    server.ask(&["HSET", "N", "0d1c0000-0000-4000-8000-000000000000:57", "1"]);
    server.ask(&["PEXPIRE", "N", "30000"]);
    assert!(client.mutex("N").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(client.mutex("N").acquire());
    eventually("we listen to its channel", || {
        let listening = server.ask(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{N}"]);
        listening.ends_with('1').then_some(()).ok_or(listening)
    });
    server.ask(&["DEL", "N"]);
    server.ask(&["PUBLISH", "redisson_lock__channel:{N}", "0"]);
    let guard = timeout(Duration::from_secs(2), waiting).await.expect("woken").unwrap().unwrap();
    guard.release().await.unwrap();
    // And a lease that is not ended by hand is waited for, no longer.
    server.ask(&["HSET", "N", "1d1c0000-0000-4000-8000-000000000000:1", "1"]);
    server.ask(&["PEXPIRE", "N", "300"]);
    let ran_out = timeout(Duration::from_secs(2), client.mutex("N").acquire()).await;
    ran_out.expect("it ran out").unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_are_published_as_by_redisson() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let mut listener = Command::new("redis-cli")
        .args(["-p", &server.port().to_string(), "PSUBSCRIBE", "redisson*"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("somebody listens", || {
        let patterns = server.ask(&["PUBSUB", "NUMPAT"]);
        (patterns == "1").then_some(()).ok_or(patterns)
    });
    client.mutex("N").acquire().await.unwrap().release().await.unwrap();
    client.read("RW").acquire().await.unwrap().release().await.unwrap();
    client.write("RW").acquire().await.unwrap().release().await.unwrap();
    // Three lines confirm the subscription, four are one message.
    let output = BufReader::new(listener.stdout.take().unwrap());
    let heard: Vec<_> = output.lines().map_while(Result::ok).take(3 + 3 * 4).skip(3).collect();
    listener.kill().unwrap();
    listener.wait().unwrap();
    let messages: Vec<_> = heard.chunks(4).map(|m| (m[2].as_str(), m[3].as_str())).collect();
    assert_eq!(
        messages,
        [
            ("redisson_lock__channel:{N}", "0"),
            ("redisson_rwlock:{RW}", "0"),
            ("redisson_rwlock:{RW}", "1")
        ]
    );
}

#[tokio::test]
async fn a_read_write_lock_is_redissons_hash_with_a_key_per_read() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let read = client.read("N").ttl(TTL).acquire().await.unwrap();
    assert_eq!(server.ask(&["HGET", "N", "mode"]), "read");
    assert_eq!(server.ask(&["HLEN", "N"]), "2");
    let timeouts = server.ask(&["KEYS", "{N}:*:rwlock_timeout:1"]);
    assert_eq!(timeouts.lines().count(), 1, "{timeouts}");
    assert!(milliseconds(&server.ask(&["PTTL", &timeouts])) > 19_000);
    // A foreign reader next to ours keeps the lock when ours leaves, as long as its own lease.
    server.ask(&["HSET", "N", "foreign:1", "1"]);
    server.ask(&["SET", "{N}:foreign:1:rwlock_timeout:1", "1", "PX", "5000"]);
    read.release().await.unwrap();
    assert_eq!(server.ask(&["HGET", "N", "foreign:1"]), "1");
    assert!(milliseconds(&server.ask(&["PTTL", "N"])) <= 5000);
    assert!(client.write("N").try_acquire().await.unwrap().is_none());
    server.ask(&["DEL", "N", "{N}:foreign:1:rwlock_timeout:1"]);
    let write = client.write("N").ttl(TTL).acquire().await.unwrap();
    assert_eq!(server.ask(&["HGET", "N", "mode"]), "write");
    assert!(server.ask(&["HKEYS", "N"]).contains(":write"));
    write.release().await.unwrap();
    assert_eq!(server.ask(&["EXISTS", "N"]), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fair_mutex_waits_in_redissons_queue() {
    let server = Server::start();
    let (holder, waiter) = (connect(server.url()).await, connect(server.url()).await);
    let guard = holder.mutex("N").fair().acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("N").fair().acquire());
    eventually("it is in the queue", || {
        let queue = server.ask(&["LLEN", "redisson_lock_queue:{N}"]);
        (queue == "1").then_some(()).ok_or(queue)
    });
    let entry = server.ask(&["LINDEX", "redisson_lock_queue:{N}", "0"]);
    let score =
        server.ask(&["ZSCORE", "redisson_lock_timeout:{N}", &entry]).parse::<f64>().unwrap();
    let now = server.ask(&["TIME"]).lines().next().unwrap().parse::<f64>().unwrap() * 1000.0;
    // The holder's lease and Redisson's patience.
    assert!((320_000.0..332_000.0).contains(&(score - now)), "{}", score - now);
    // A foreign waiter behind it is next, is notified on its own channel, and keeps its place.
    server.ask(&["RPUSH", "redisson_lock_queue:{N}", "foreign:1"]);
    let late = (score + 300_000.0).to_string();
    server.ask(&["ZADD", "redisson_lock_timeout:{N}", &late, "foreign:1"]);
    guard.release().await.unwrap();
    let guard = timeout(Duration::from_secs(3), waiting).await.expect("woken").unwrap().unwrap();
    assert_eq!(server.ask(&["LRANGE", "redisson_lock_queue:{N}", "0", "-1"]), "foreign:1");
    let moved =
        server.ask(&["ZSCORE", "redisson_lock_timeout:{N}", "foreign:1"]).parse::<f64>().unwrap();
    assert_eq!(moved, score, "whoever leaves takes its patience off the timeouts behind it");
    guard.release().await.unwrap();
    assert!(
        holder.mutex("N").fair().try_acquire().await.unwrap().is_none(),
        "it is the foreigner's turn"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_ours_counts_as_one_in_redissons_queue() {
    const QUEUE: &str = "redisson_lock_queue:{N}";
    const TIMEOUTS: &str = "redisson_lock_timeout:{N}";
    let server = Server::start();
    let mut guard = connect(server.url()).await.mutex("N").fair().acquire().await.unwrap();
    let mut waiting = Vec::new();
    for length in ["1", "2", "3"] {
        let client = connect(server.url()).await;
        waiting.push(tokio::spawn(client.mutex("N").fair().acquire()));
        eventually("it is in the queue", || {
            let queue = server.ask(&["LLEN", QUEUE]);
            (queue == length).then_some(()).ok_or(queue)
        });
    }
    let late = |entry: &str| server.ask(&["ZSCORE", TIMEOUTS, entry]).parse::<f64>().unwrap();
    let queue = server.ask(&["LRANGE", QUEUE, "0", "-1"]);
    let scores: Vec<_> = queue.lines().map(late).collect();
    assert!(scores.iter().all(|score| score - scores[0] < 100_000.0), "{scores:?}");
    let before = scores[2] + 300_000.0;
    server.ask(&["RPUSH", QUEUE, "foreign:1"]);
    server.ask(&["ZADD", TIMEOUTS, &before.to_string(), "foreign:1"]);
    for (next, left) in waiting.into_iter().zip([2, 1, 0]) {
        guard.release().await.unwrap();
        guard = timeout(TTL, next).await.expect("woken").unwrap().unwrap();
        // The last of the run takes away what its first added.
        let after = if left > 0 { before } else { before - 300_000.0 };
        assert_eq!(late("foreign:1"), after, "with {left} of ours before it");
    }
}

#[tokio::test]
async fn redissons_fence_counter_is_shared_when_asked_for() {
    let server = Server::start();
    let client = connect(server.url() + "?fence=redisson").await;
    let token = "redisson_lock_token:{N}";
    server.ask(&["SET", token, "41"]);
    let guard = client.mutex("N").acquire().await.unwrap();
    assert_eq!(guard.fence().get(), 42);
    assert_eq!(server.ask(&["GET", token]), "42");
    assert_eq!(server.ask(&["PTTL", token]), "-1", "it must not expire");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_string_is_shared_with_set_nx_and_compare_and_delete() {
    let server = Server::start();
    let client = connect(server.url() + "?layout=string").await;
    let guard = client.mutex("N").ttl(TTL).acquire().await.unwrap();
    assert_eq!(server.ask(&["TYPE", "N"]), "string");
    assert_eq!(server.ask(&["SET", "N", "foreign", "NX", "PX", "1000"]), "");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(server.ask(&["SET", "N", "foreign", "NX", "PX", "60000"]), "OK");
    assert!(client.mutex("N").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(client.mutex("N").acquire());
    assert_eq!(server.ask(&["DEL", "N"]), "1");
    let guard =
        timeout(Duration::from_secs(2), waiting).await.expect("it asks again").unwrap().unwrap();
    // Taken over by force: the release does not touch the lock of another client.
    server.ask(&["SET", "N", "foreign"]);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    assert_eq!(server.ask(&["GET", "N"]), "foreign");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_slow_to_reach_is_dialed_once_for_many_waits() {
    let server = Server::start();
    let holder = connect(server.url() + "?layout=string").await;
    let guard = holder.mutex("N").acquire().await.unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let waiter = connect(format!("redis://{}?layout=string", proxy.address())).await;
    // Longer than one wait of a client that polls.
    proxy.latency(Duration::from_millis(150));
    let connections = || -> u64 {
        let stats = server.ask(&["INFO", "stats"]);
        let count = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        count.expect("it is counted").trim().parse().unwrap()
    };
    let before = connections();
    let mut waiting = Box::pin(waiter.mutex("N").acquire());
    assert!(timeout(Duration::from_secs(4), &mut waiting).await.is_err());
    // One is that of the query itself.
    let opened = connections() - before - 1;
    assert!(opened <= 1, "{opened} connections for one that listens");
    guard.release().await.unwrap();
    timeout(TTL, waiting).await.expect("it asks again").unwrap().release().await.unwrap();
}

#[tokio::test]
async fn something_else_at_the_key_is_a_conflict_that_names_it() {
    let server = Server::start();
    let (hash, string) =
        (connect(server.url()).await, connect(server.url() + "?layout=string").await);
    let conflict = |result: lockkeeper::Result<Option<lockkeeper::Guard>>| match result {
        Err(Error::Conflict { found, .. }) => found,
        other => panic!("neither free nor busy: {other:?}"),
    };
    server.ask(&["SET", "text", "x"]);
    server.ask(&["RPUSH", "list", "x"]);
    for lock in
        [hash.mutex("text"), hash.mutex("text").fair(), hash.read("text"), hash.write("text")]
    {
        assert!(conflict(lock.try_acquire().await).contains("a string is there"));
    }
    assert!(conflict(hash.semaphore("text", 2).try_acquire().await).contains("a string is there"));
    assert!(conflict(hash.mutex("list").try_acquire().await).contains("a list is there"));
    assert!(conflict(string.mutex("list").try_acquire().await).contains("a list is there"));
    // Held by another client: within one client, mutexes and read-write locks wait for each other.
    let other = connect(server.url()).await;
    let _mutex = other.mutex("mutex").acquire().await.unwrap();
    assert!(conflict(string.mutex("mutex").try_acquire().await).contains("a hash is there"));
    for lock in [hash.read("mutex"), hash.write("mutex"), hash.semaphore("mutex", 2)] {
        assert!(conflict(lock.try_acquire().await).contains("used as a mutex"));
    }
    let _read = other.read("rw").acquire().await.unwrap();
    for lock in [hash.mutex("rw"), hash.mutex("rw").fair(), hash.semaphore("rw", 2)] {
        assert!(conflict(lock.try_acquire().await).contains("used as a read-write lock"));
    }
    let _permit = other.semaphore("gpu", 2).acquire().await.unwrap();
    assert!(conflict(hash.mutex("gpu").try_acquire().await).contains("used as a semaphore"));
    let found = conflict(hash.semaphore("gpu", 3).try_acquire().await);
    assert!(found.contains("semaphore of 2") && found.contains("1 of 3"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_of_one_owner_is_counted_and_leaves_alone() {
    let server = Server::start();
    let (one, two) = (connect(server.url()).await, connect(server.url()).await);
    let owner = Owner::named("0d1c0000-0000-4000-8000-000000000000:57").unwrap();
    for kind in [Mode::Mutex, Mode::Write, Mode::Read] {
        let lock = |client: &Client| match kind {
            Mode::Mutex => client.mutex("N"),
            Mode::Write => client.write("N"),
            _ => client.read("N"),
        };
        let first = lock(&one).owner(&owner).acquire().await.unwrap();
        let second = lock(&two).owner(&owner).acquire().await.unwrap();
        assert_eq!(first.fence(), second.fence());
        let field = if kind == Mode::Write {
            format!("{}:write", owner.id())
        } else {
            owner.id().to_owned()
        };
        assert_eq!(server.ask(&["HGET", "N", &field]), "2");
        first.release().await.unwrap();
        assert_eq!(server.ask(&["HGET", "N", &field]), "1");
        second.check().unwrap();
        second.release().await.unwrap();
        assert_eq!(server.ask(&["EXISTS", "N"]), "0");
    }
    let reserved = Owner::named("mode").unwrap();
    let error = one.mutex("N").owner(&reserved).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

#[tokio::test]
async fn locks_that_only_others_used_are_listed() {
    const JAVA: &str = "0d1c0000-0000-4000-8000-000000000000:57";
    let (server, cluster) = (Server::start(), Cluster::with_replicas(0));
    for (url, ask) in [
        (
            server.url(),
            Box::new(|command: &[&str]| server.ask(command)) as Box<dyn Fn(&[&str]) -> _>,
        ),
        (cluster.url(), Box::new(|command: &[&str]| cluster.master_of(command[1]).ask(command))),
    ] {
        let client = connect(url).await;
        ask(&["HSET", "java/mutex", JAVA, "2"]);
        ask(&["PEXPIRE", "java/mutex", "60000"]);
        ask(&["HSET", "java/read", "mode", "read", JAVA, "1"]);
        ask(&["SET", &format!("{{java/read}}:{JAVA}:rwlock_timeout:1"), "1", "PX", "60000"]);
        ask(&["PEXPIRE", "java/read", "60000"]);
        ask(&["HSET", "java/write", "mode", "write", &format!("{JAVA}:write"), "1"]);
        ask(&["PEXPIRE", "java/write", "60000"]);
        ask(&["HSET", "java/user", "name", "bob"]);
        ask(&["HSET", "other", JAVA, "1"]);
        ask(&["PEXPIRE", "other", "60000"]);
        let _ours = client.mutex("java/ours").acquire().await.unwrap();
        let listed = client.list("java/").await.unwrap();
        let seen: Vec<_> = listed
            .iter()
            .map(|lock| (lock.key.as_str(), lock.holders[0].mode, &*lock.holders[0].identity))
            .collect();
        assert_eq!(seen.len(), 4, "{seen:?}");
        assert_eq!(seen[0], ("java/mutex", Mode::Mutex, JAVA));
        assert_eq!((seen[1].0, seen[1].1), ("java/ours", Mode::Mutex));
        assert_eq!(seen[2], ("java/read", Mode::Read, JAVA));
        assert_eq!(seen[3], ("java/write", Mode::Write, JAVA));
        for lock in listed {
            let broken = client.break_lock(lock.key.as_str()).await.unwrap();
            assert_eq!(broken.len(), 1, "{broken:?}");
        }
        assert!(client.list("java/").await.unwrap().is_empty());
        assert_eq!(ask(&["HGET", "java/user", "name"]), "bob");
    }
}

#[tokio::test]
async fn a_string_is_broken_only_where_locks_are_strings_and_only_if_it_expires() {
    let server = Server::start();
    let (hash, string) =
        (connect(server.url()).await, connect(server.url() + "?layout=string").await);
    let refused = |result: lockkeeper::Result<Vec<lockkeeper::engine::Entry>>| match result {
        Err(Error::Conflict { found, .. }) => found,
        other => panic!("it should be refused: {other:?}"),
    };
    // A client that sets no expiry excludes us, and its key may as well be data.
    server.ask(&["SET", "N", "foreign"]);
    assert!(string.mutex("N").try_acquire().await.unwrap().is_none());
    assert!(refused(string.break_lock("N").await).contains("never expires"));
    assert!(refused(hash.break_lock("N").await).contains("layout=string"));
    assert!(matches!(string.inspect("N").await, Err(Error::Conflict { .. })));
    server.ask(&["PEXPIRE", "N", "60000"]);
    refused(hash.break_lock("N").await);
    assert_eq!(server.ask(&["GET", "N"]), "foreign");
    let seen = string.inspect("N").await.unwrap().expect("it is held");
    assert_eq!(seen.holders[0].identity, "foreign");
    assert_eq!(string.break_lock("N").await.unwrap().len(), 1);
    assert_eq!(server.ask(&["EXISTS", "N"]), "0");
    // Ours is recognised, whoever looks.
    let _guard = string.mutex("N").acquire().await.unwrap();
    assert!(hash.inspect("N").await.unwrap().is_some());
    assert_eq!(hash.break_lock("N").await.unwrap().len(), 1);
}

#[tokio::test]
async fn owners_with_names_of_their_own_are_known_for_what_they_are() {
    let server = Server::start();
    let (one, two) = (connect(server.url()).await, connect(server.url()).await);
    let owner = Owner::named("deploy").unwrap();
    for kind in [Mode::Mutex, Mode::Read, Mode::Write] {
        let lock = |client: &Client| match kind {
            Mode::Mutex => client.mutex("N"),
            Mode::Read => client.read("N"),
            _ => client.write("N"),
        };
        let guard = lock(&one).owner(&owner).acquire().await.unwrap();
        if kind != Mode::Read {
            assert!(lock(&two).try_acquire().await.unwrap().is_none(), "{kind}");
        }
        assert!(two.list("").await.unwrap().iter().any(|lock| lock.key.as_str() == "N"));
        assert_eq!(two.break_lock("N").await.unwrap().len(), 1, "{kind}");
        drop(guard);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_a_holder_counts_from_its_grant() {
    const WAIT: Duration = Duration::from_secs(3);
    let server = Server::start();
    let (first, second) = (connect(server.url()).await, connect(server.url()).await);
    for kind in ["mutex", "write", "semaphore"] {
        let lock = |client: &Client| match kind {
            "mutex" => client.mutex(kind).fair(),
            "write" => client.write(kind),
            _ => client.semaphore(kind, 1),
        };
        let guard = lock(&first).acquire().await.unwrap();
        let mut waiting = Box::pin(lock(&second).acquire());
        assert!(timeout(WAIT, &mut waiting).await.is_err());
        guard.release().await.unwrap();
        let _guard = waiting.await.unwrap();
        let seen = first.inspect(kind).await.unwrap().expect("it is held");
        let age = seen.holders[0].since.unwrap().elapsed().unwrap_or_default();
        assert!(age < WAIT / 2, "{kind}: held for a moment, and said to be held for {age:?}");
    }
}
