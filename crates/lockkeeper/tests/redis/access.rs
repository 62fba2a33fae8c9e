//! Access: permissions, passwords, TLS, sockets, bad URLs; what `doctor` reports about a server.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockkeeper::engine::Severity;
use lockkeeper::{Client, Error, Owner};
use lockkeeper_testkit::ports::free_port;
use lockkeeper_testkit::server::redis::{Cluster, Sentinels, Server, VOLATILE};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(20);

async fn connect(url: impl AsRef<str>) -> Client {
    Client::connect(url).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The permissions in the documentation.
const RIGHTS: &str = "~app:* ~lockkeeper* ~redisson_lock* ~{app:*}:*:rwlock_timeout:* \
    &redisson_lock__channel:* &redisson_rwlock:* &lockkeeper_* \
    +ping +hello +eval +evalsha +time +type +exists +del +get +set +incr +pexpire +pttl \
    +hset +hget +hgetall +hdel +hexists +hincrby +hlen \
    +lindex +lpop +lpos +lrange +lrem +rpush +zadd +zrem +zscore +zincrby +zrange +zrangebyscore \
    +setbit +bitpos +publish +subscribe +unsubscribe +scan";

/// Gives a user the permissions in the documentation, and no more.
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

/// Holds a lock of every kind until it was renewed, and hands it to a waiter.
async fn every_kind_works(url: &str, replicas: Option<u32>, servers: &[Server]) -> Client {
    // A refusal names the missing permission.
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
        allow(
            sentinel,
            "asking",
            "+sentinel|get-master-addr-by-name +sentinel|master +subscribe +ping &*",
        );
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
    assert_eq!(client.broken("").await.unwrap().len(), 1);
    let findings = client.doctor().await.unwrap();
    assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{findings:#?}");
    // Not one key further.
    let apart = connect(url.replace("prefix=app:", "prefix=other:")).await;
    let error = apart.mutex("N").acquire().await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    let findings = apart.doctor().await.unwrap();
    assert!(findings.iter().any(|f| f.severity == Severity::Problem), "{findings:#?}");
    // Nor without the prefix: the doctor tries what users lock, not what lockkeeper keeps.
    let bare = connect(url.replace("prefix=app:", "prefix=")).await;
    assert!(bare.mutex("N").acquire().await.is_err());
    let findings = bare.doctor().await.unwrap();
    let problem = findings.iter().find(|f| f.severity == Severity::Problem).expect("a problem");
    assert!(problem.what.contains("no mutex, "), "{findings:#?}");
    assert!(!problem.what.contains("user_script"), "{findings:#?}");
    assert!(
        !findings.iter().any(
            |f| f.what.contains("can be acquired and released") && f.severity == Severity::Fine
        ),
        "{findings:#?}"
    );
    // And not without the password, which is in no message.
    std::fs::write(server.directory().join("password"), "wrong-canary").unwrap();
    let error = Client::connect(&url).await.unwrap_err();
    assert!(!error.is_retryable() && !format!("{error} {error:?}").contains("canary"), "{error:?}");
    assert!(error.to_string().contains("refuses user \"locks\" or its password"), "{error}");
}

#[tokio::test]
async fn a_missing_password_is_reported() {
    let server = Server::start();
    assert_eq!(server.ask(&["CONFIG", "SET", "requirepass", "canary"]), "OK");
    let error = Client::connect(server.url()).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("password_file=PATH"), "{error}");
}

/// What a server calls itself.
fn product(server: &Server) -> String {
    let info = server.ask(&["INFO", "server"]);
    let field = |name| info.lines().find_map(|line| line.trim_end().strip_prefix(name));
    match (field("valkey_version:"), field("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        _ => panic!("it does not say what it is: {info}"),
    }
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
    let named = find(&product(&server));
    assert_eq!(named.severity, Severity::Fine);
    let address = format!("127.0.0.1:{}: ", server.port());
    assert!(named.what.starts_with(&address), "{}", named.what);
    assert_eq!(find("clock").severity, Severity::Fine);
    assert_eq!(find("a mutex lock can be acquired and released").severity, Severity::Fine);
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
async fn doctor_reports_each_cause_once() {
    let master = Server::start();
    let port = master.port().to_string();
    let following = ["--replicaof", "127.0.0.1", port.as_str()];
    let replica = Server::with(&[&VOLATILE[..], &following].concat());
    let problems = async |url: String| -> Vec<_> {
        let findings = connect(url).await.doctor().await.unwrap();
        findings.into_iter().filter(|f| f.severity == Severity::Problem).collect()
    };
    let [only] = &problems(replica.url()).await[..] else { panic!("one problem has one cause") };
    assert!(only.advice.contains("name the master"), "{only:?}");
    // The same for a user who may not read the role.
    let user: Vec<_> = ["ACL", "SETUSER", "locks", "on", ">secret"]
        .into_iter()
        .chain(RIGHTS.split_whitespace())
        .collect();
    assert_eq!(replica.ask(&user), "OK");
    let url = replica.url().replace("redis://", "redis://locks:secret@") + "?prefix=app:";
    let [only] = &problems(url).await[..] else { panic!("one problem has one cause") };
    assert!(only.advice.contains("name the master"), "{only:?}");
    let [only] = &problems(master.url() + "?wait_replicas=9").await[..] else {
        panic!("one cause")
    };
    assert!(only.advice.contains("more replicas than are connected"), "{only:?}");
    assert_eq!(master.ask(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let [only] = &problems(master.url()).await[..] else { panic!("one problem has one cause") };
    assert!(only.advice.contains("maxmemory"), "{only:?}");
}

#[tokio::test]
async fn doctor_reports_what_a_crash_can_lose() {
    for (policy, severity) in
        [("always", Severity::Fine), ("everysec", Severity::Warning), ("no", Severity::Warning)]
    {
        let server = Server::with(&["--save", "", "--appendonly", "yes", "--appendfsync", policy]);
        let findings = connect(server.url()).await.doctor().await.unwrap();
        let found = findings.iter().find(|f| f.what.contains("append-only")).expect("it looks");
        assert_eq!(found.severity, severity, "{found:?}");
        assert!(found.what.contains(&format!("appendfsync {policy}")), "{found:?}");
    }
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
            Err(Error::Url(message)) => assert!(message.contains(part), "{url}: {message}"),
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

/// Creates a CA, certificates for a server and a client, and another CA.
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
    // Debian's servers have it, and so does the Redis of scripts/servers.
    if product(&Server::start()).starts_with("Valkey") {
        return println!("the Valkey of scripts/servers is built without TLS");
    }
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
    let (plain, ca) = (server.port(), path("ca.pem"));
    for (bad, advice) in [
        (format!("rediss://127.0.0.1:{plain}?ca={ca}"), "write redis: instead of rediss:"),
        (format!("redis://127.0.0.1:{tls_port}"), "write rediss: instead of redis:"),
        (
            format!("rediss+cluster://127.0.0.1:{plain}?ca={ca}"),
            "write redis+cluster: instead of rediss+cluster:",
        ),
        (
            format!("redis+sentinel://127.0.0.1:{tls_port}/main"),
            "write rediss+sentinel: instead of redis+sentinel:",
        ),
        (
            format!("redlock://127.0.0.1:{tls_port},localhost:{tls_port},127.0.0.2:1"),
            "write redlocks: instead of redlock:",
        ),
        (
            format!("redlocks://127.0.0.1:{plain},localhost:{plain},127.0.0.2:1?ca={ca}"),
            "write redlock: instead of redlocks:",
        ),
    ] {
        // On a busy machine, the second request may be unanswered as well.
        let mut error = String::new();
        for _ in 0..10 {
            error = Client::connect(&bad).await.unwrap_err().to_string();
            if error.contains(advice) {
                break;
            }
        }
        assert!(error.contains(advice), "{bad}: {error}");
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
    let named = product(cluster.master_of("00"));
    assert_eq!(findings.iter().filter(|f| f.what.contains(&named)).count(), 3, "{findings:#?}");
}

#[tokio::test]
async fn an_unknown_master_is_said_to_be_unknown() {
    let sentinels = Sentinels::start();
    let error = Client::connect(sentinels.url().replace("/main", "/minor")).await.unwrap_err();
    assert!(error.to_string().contains("know no master \"minor\""), "{error}");
}
