//! What is in the store, as foreign clients read and write it; who may connect, and how.
#![cfg(feature = "redis")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::backend::{Mode, Severity};
use lockkeeper::{Client, Error, Owner, Release};
use lockkeeper_testkit::ports::free_port;
use lockkeeper_testkit::server::redis::{Cluster, Sentinels, Server, VOLATILE, eventually};
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
    // Nothing that stays does so for ever.
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
    // And a lease that nobody ends by hand is waited for, no longer.
    server.ask(&["HSET", "N", "somebody:1", "1"]);
    server.ask(&["PEXPIRE", "N", "300"]);
    let ran_out = timeout(Duration::from_secs(2), client.mutex("N").acquire()).await;
    ran_out.expect("it ran out").unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_are_told_as_redisson_tells_them() {
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
    // Three lines say that it listens, four are one message.
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
    // A foreign reader beside ours keeps the lock when ours goes, for as long as its own lease.
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
async fn a_fair_mutex_stands_in_redissons_queue() {
    let server = Server::start();
    let (holder, waiter) = (connect(server.url()).await, connect(server.url()).await);
    let guard = holder.mutex("N").fair().acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("N").fair().acquire());
    eventually("it stands in line", || {
        let line = server.ask(&["LLEN", "redisson_lock_queue:{N}"]);
        (line == "1").then_some(()).ok_or(line)
    });
    let entry = server.ask(&["LINDEX", "redisson_lock_queue:{N}", "0"]);
    let score =
        server.ask(&["ZSCORE", "redisson_lock_timeout:{N}", &entry]).parse::<f64>().unwrap();
    let now = server.ask(&["TIME"]).lines().next().unwrap().parse::<f64>().unwrap() * 1000.0;
    // The holder's lease and Redisson's patience.
    assert!((320_000.0..332_000.0).contains(&(score - now)), "{}", score - now);
    // A foreign waiter behind it is next, is told on its own channel, and keeps its place.
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
    // Taken over by force: the release does not touch what is somebody else's.
    server.ask(&["SET", "N", "foreign"]);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    assert_eq!(server.ask(&["GET", "N"]), "foreign");
}

#[tokio::test]
async fn what_is_something_else_is_a_conflict_that_says_what() {
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
    // Held by another client: inside of one, mutexes and read-write locks wait for each other.
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

/// What the documentation says is enough.
const RIGHTS: &str = "~app:* ~lockkeeper* ~redisson_lock* ~{app:*}:*:rwlock_timeout:* \
    &redisson_lock__channel:* &redisson_rwlock:* &lockkeeper_* \
    +ping +hello +eval +evalsha +time +type +exists +del +get +set +incr +pexpire +pttl \
    +hset +hget +hmget +hgetall +hdel +hexists +hincrby +hlen \
    +lindex +lpos +lrange +lrem +rpush +zadd +zrem +zscore +zincrby +zrange +zrangebyscore \
    +setbit +bitpos +publish +subscribe +unsubscribe +scan";

/// Lets a user do what the documentation says, and no more.
fn allow(server: &Server, user: &str, rights: &str) {
    let line = format!("ACL SETUSER {user} on >canary resetchannels {rights}");
    assert_eq!(server.ask(&line.split_whitespace().collect::<Vec<_>>()), "OK");
}

/// A URL of this user, whose password is in a file.
fn url_of(user: &str, place: &str, directory: &Path) -> String {
    let file = directory.join("password");
    std::fs::write(&file, "canary\n").unwrap();
    let (scheme, hosts) = place.split_once("://").unwrap();
    format!("{scheme}://{user}@{hosts}?prefix=app:&password_file={}", file.display())
}

/// Holds a lock of every kind until it was renewed, and hands it to somebody who waits.
async fn every_kind_works(url: &str, replicas: Option<u32>, servers: &[Server]) -> Client {
    // What was refused says which right is missing.
    let denied = || servers.iter().map(|s| s.ask(&["ACL", "LOG", "3"])).collect::<String>();
    let (client, other) = (connect(url).await, connect(url).await);
    let owner = Owner::new();
    let locks = |client: &Client| {
        [
            client.mutex("mutex"),
            client.mutex("fair").fair(),
            client.mutex("owned").owner(&owner),
            client.write("write"),
            client.read("read"),
            client.semaphore("gpu", 1),
        ]
    };
    let ttl = Duration::from_secs(4);
    let mut held = Vec::new();
    for lock in locks(&client) {
        let guard = lock.ttl(ttl).acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("{error}: {}", denied()));
        assert_eq!(guard.replicas(), replicas);
        held.push(guard);
    }
    let waiting = locks(&other).map(|lock| tokio::spawn(lock.owner(&Owner::new()).acquire()));
    // Without renewals, all would be lost by then.
    tokio::time::sleep(ttl).await;
    for guard in held {
        guard.check().unwrap_or_else(|error| panic!("not renewed: {error}: {}", denied()));
        guard.release().await.unwrap();
    }
    for next in waiting {
        let next = timeout(TTL, next).await.expect("woken").unwrap();
        let next = next.unwrap_or_else(|error| panic!("{error}: {}", denied()));
        next.release().await.unwrap();
    }
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_rights_suffice_with_sentinels_and_replicas() {
    let sentinels = Sentinels::start();
    for server in &sentinels.servers {
        allow(server, "locks", &format!("{RIGHTS} +role +wait"));
    }
    for sentinel in &sentinels.sentinels {
        allow(sentinel, "asking", "+sentinel|get-master-addr-by-name +ping");
    }
    let directory = tempfile::tempdir().unwrap();
    let url = url_of("locks", &sentinels.url(), directory.path());
    let file = directory.path().join("password");
    let asking = format!("sentinel_user=asking&sentinel_password_file={}", file.display());
    every_kind_works(&format!("{url}&{asking}"), None, &sentinels.servers).await;
    let url = format!("{url}&{asking}&wait_replicas=2");
    every_kind_works(&url, Some(2), &sentinels.servers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_rights_suffice_in_a_cluster() {
    let cluster = Cluster::start();
    let more = "+cluster|slots +asking +pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe";
    for server in &cluster.servers {
        allow(server, "locks", &format!("{RIGHTS} {more}"));
    }
    let directory = tempfile::tempdir().unwrap();
    let url = url_of("locks", &cluster.url(), directory.path());
    let client = every_kind_works(&url, None, &cluster.servers).await;
    client.list("").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_rights_suffice_and_nothing_more_is_possible() {
    let server = Server::start();
    allow(&server, "locks", RIGHTS);
    let url = url_of("locks", &server.url(), server.directory());
    let client = every_kind_works(&url, None, std::slice::from_ref(&server)).await;
    client.list("").await.unwrap();
    let _held = client.mutex("mutex").acquire().await.unwrap();
    assert_eq!(client.break_lock("mutex").await.unwrap().len(), 1);
    let findings = client.doctor().await.unwrap();
    assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{findings:#?}");
    // Not one key further.
    let apart = connect(url.replace("prefix=app:", "prefix=other:")).await;
    let error = apart.mutex("N").acquire().await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    let findings = apart.doctor().await.unwrap();
    assert!(findings.iter().any(|f| f.severity == Severity::Problem), "{findings:#?}");
    // And not without the password, which is in no message.
    std::fs::write(server.directory().join("password"), "wrong-canary").unwrap();
    let error = Client::connect(&url).await.unwrap_err();
    assert!(!error.is_retryable() && !format!("{error} {error:?}").contains("canary"), "{error:?}");
}

#[tokio::test]
async fn doctor_names_what_would_hurt() {
    let arguments =
        [&VOLATILE[..], &["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"]];
    let server = Server::with(&arguments.concat());
    let findings = connect(server.url()).await.doctor().await.unwrap();
    let find = |what: &str| {
        findings.iter().find(|f| f.what.contains(what)).unwrap_or_else(|| panic!("{findings:#?}"))
    };
    assert_eq!(find("volatile-lru").severity, Severity::Problem);
    assert!(find("volatile-lru").advice.contains("noeviction"));
    assert_eq!(find("append-only").severity, Severity::Warning);
    assert_eq!(find("Redis 7").severity, Severity::Fine);
    assert_eq!(find("clock").severity, Severity::Fine);
    assert_eq!(find("a mutex lock can be taken").severity, Severity::Fine);
    let wants_replicas = connect(server.url() + "?wait_replicas=1").await;
    let findings = wants_replicas.doctor().await.unwrap();
    assert!(
        findings.iter().any(|f| f.advice.contains("more replicas than are connected")),
        "{findings:#?}"
    );
    let error = wants_replicas.mutex("N").acquire().await.unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(server.ask(&["EXISTS", "N"]), "0", "what the replicas do not have is undone");
}

#[tokio::test]
async fn bad_urls_are_refused_with_what_is_accepted() {
    for (url, part) in [
        ("redis://h?layuot=string", "layout, fence, prefix"),
        ("redis://h?layout=list", "hash, string"),
        ("redis://h1,h2", "redis+cluster"),
        ("redis://h/x", "number of a database"),
        ("redis+sentinel://h1,h2", "name of the master"),
        ("redis+cluster://h/1", "database 0 only"),
        ("redis://h?wait_replicas=many", "a number from 0"),
        ("redis://h?timeout=1ms", "at least 10ms"),
        ("redis://h?password_env=LOCKKEEPER_NOT_SET", "no variable"),
        ("redis+unix://", "path of a socket"),
        ("rediss://h?cert=/dev/null", "belong together"),
        ("redis://h?layout=string&fence=redisson", "needs layout=hash"),
    ] {
        match Client::connect(url).await {
            Err(Error::Config(message)) => assert!(message.contains(part), "{url}: {message}"),
            other => panic!("{url}: {other:?}"),
        }
    }
    let error = Client::connect("redis://me:canary@127.0.0.1:1").await.unwrap_err();
    assert!(error.is_retryable() && !format!("{error:?}").contains("canary"), "{error:?}");
}

#[tokio::test]
async fn a_socket_in_the_file_system_is_as_good() {
    let server = Server::with(&[&VOLATILE[..], &["--unixsocket", "redis.sock"]].concat());
    let socket = server.directory().join("redis.sock");
    let client = connect(format!("redis+unix://{}?db=3", socket.display())).await;
    let _guard = client.mutex("N").acquire().await.unwrap();
    assert_eq!(server.ask(&["-n", "3", "EXISTS", "N"]), "1");
}

/// Makes a certificate authority, a server's and a client's certificate, and another authority.
fn certificates(directory: &std::path::Path) {
    let openssl = |line: &str| {
        let made = Command::new("openssl").args(line.split(' ')).current_dir(directory).output();
        let made = made.expect("openssl is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for authority in ["ca", "other"] {
        openssl(&format!(
            "req -x509 {key} -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"
        ));
    }
    std::fs::write(
        directory.join("names"),
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth",
    )
    .unwrap();
    for name in ["server", "client"] {
        openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {name}.pem"
        ));
    }
}

#[tokio::test]
async fn tls_is_checked_both_ways() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let path = |name: &str| directory.path().join(name).display().to_string();
    let tls_port = free_port();
    let arguments = [
        "--tls-port".to_owned(),
        tls_port.to_string(),
        "--tls-cert-file".to_owned(),
        path("server.pem"),
        "--tls-key-file".to_owned(),
        path("server.key"),
        "--tls-ca-cert-file".to_owned(),
        path("ca.pem"),
    ];
    let arguments: Vec<_> =
        VOLATILE.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let server = Server::with(&arguments);
    let ours = format!("cert={}&key={}", path("client.pem"), path("client.key"));
    let url = |host: &str, ca: &str| format!("rediss://{host}:{tls_port}?ca={}&{ours}", path(ca));
    let client = connect(url("127.0.0.1", "ca.pem")).await;
    client.mutex("N").acquire().await.unwrap().release().await.unwrap();
    for (bad, why) in [
        (url("127.0.0.1", "other.pem"), "an authority that did not sign it"),
        (url("localhost", "ca.pem"), "a name that is not in the certificate"),
        (format!("rediss://127.0.0.1:{tls_port}?ca={}", path("ca.pem")), "no certificate of ours"),
        (
            format!("rediss://127.0.0.1:{}?ca={}", server.port(), path("ca.pem")),
            "a port without TLS",
        ),
        (format!("redis://127.0.0.1:{tls_port}"), "no TLS of ours"),
    ] {
        assert!(Client::connect(&bad).await.is_err(), "accepted: {why}");
    }
}

#[tokio::test]
async fn locks_are_listed_over_all_servers_of_a_cluster() {
    let cluster = Cluster::start();
    let client = connect(cluster.url() + "?prefix=app:").await;
    let mut guards = Vec::new();
    for n in 0..30 {
        guards.push(client.mutex(format!("{n:02}")).acquire().await.unwrap());
    }
    let listed = client.list("").await.unwrap();
    let keys: Vec<_> = listed.iter().map(|held| held.key.to_string()).collect();
    assert_eq!(keys, (0..30).map(|n| format!("{n:02}")).collect::<Vec<_>>());
    let findings = client.doctor().await.unwrap();
    assert_eq!(findings.iter().filter(|f| f.what.contains("Redis 7")).count(), 3);
}

#[tokio::test]
async fn an_unknown_master_is_said_to_be_unknown() {
    let sentinels = Sentinels::start();
    let error = Client::connect(sentinels.url().replace("/main", "/minor")).await.unwrap_err();
    assert!(error.to_string().contains("know no master \"minor\""), "{error}");
}
