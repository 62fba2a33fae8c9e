//! Queues that are shared with etcd's own clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use lockkeeper::engine::{Mode, Severity};
use lockkeeper::{Backoff, Client, Error};
use tokio::time::Instant;

use lockkeeper_testkit::server::etcd::Servers;

/// `etcdctl lock NAME`, which prints the key that it holds as soon as it does.
struct EtcdctlLock {
    child: Child,
}

impl EtcdctlLock {
    fn start(servers: &Servers, name: &str) -> Self {
        let mut command = servers.ctl_command(&["lock", name]);
        let child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
        Self { child: child.expect("etcdctl is in Debian's package etcd-client") }
    }

    /// Waits until it holds.
    async fn held(&mut self) -> String {
        let output = self.child.stdout.take().expect("it was asked for, and only once");
        let read = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map(|_| line)
        });
        read.await.unwrap().unwrap().trim().to_owned()
    }

    /// Asks it to unlock.
    fn end(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for EtcdctlLock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn waiters(client: &Client, key: &str) -> usize {
    let snapshot = client.inspect(key).await.unwrap();
    snapshot.and_then(|snapshot| snapshot.waiters).map_or(0, |waiters| waiters.len())
}

async fn until_waiting(client: &Client, key: &str, number: usize) {
    let waiting = async {
        while waiters(client, key).await < number {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("they line up");
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_and_we_share_a_queue_and_are_served_in_order() {
    let servers = Servers::start(1);
    let (a, b) = (
        Client::connect(servers.url("")).await.unwrap(),
        Client::connect(servers.url("")).await.unwrap(),
    );
    let guard = a.mutex("shared/name").acquire().await.unwrap();
    let mut theirs = EtcdctlLock::start(&servers, "shared/name");
    until_waiting(&a, "shared/name", 1).await;
    let ours = tokio::spawn(b.mutex("shared/name").note("behind").acquire());
    until_waiting(&a, "shared/name", 2).await;
    assert!(a.mutex("shared/name").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(theirs.held().await.starts_with("shared/name/"));
    assert!(!ours.is_finished(), "let in beside etcdctl");
    let snapshot = a.inspect("shared/name").await.unwrap().unwrap();
    assert_eq!(snapshot.holders[0].mode, Mode::Mutex);
    assert_eq!(snapshot.waiters.unwrap()[0].note.as_deref(), Some("behind"));
    let refused = a.request_yield("shared/name").await.unwrap_err();
    assert!(refused.to_string().contains("does not listen"), "{refused}");
    theirs.end();
    let guard = ours.await.unwrap().unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// A lease of this many seconds.
fn lease(servers: &Servers, seconds: u32) -> i64 {
    let said = servers.ctl(&["lease", "grant", &seconds.to_string()]);
    let id = said.split(' ').nth(1).unwrap_or_else(|| panic!("no lease: {said}"));
    i64::from_str_radix(id, 16).unwrap()
}

/// The lock service of the server, through its JSON gateway.
struct LockService {
    address: String,
    lease: i64,
}

impl LockService {
    /// Acquires the lock `key`, and returns the name under which it is held.
    fn lock(&self) -> String {
        // The name in base 64.
        let answer = self.post("lock", &format!(r#"{{"name":"a2V5","lease":{}}}"#, self.lease));
        let held = answer.split(r#""key":""#).nth(1).and_then(|rest| rest.split('"').next());
        held.unwrap_or_else(|| panic!("no lock: {answer}")).to_owned()
    }

    fn unlock(&self, held: &str) {
        self.post("unlock", &format!(r#"{{"key":"{held}"}}"#));
    }

    fn post(&self, call: &str, body: &str) -> String {
        let mut stream = std::net::TcpStream::connect(&self.address).unwrap();
        let (address, length) = (&self.address, body.len());
        write!(
            stream,
            "POST /v3/lock/{call} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
        answer
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_service_of_the_server_and_we_exclude_each_other() {
    let servers = Servers::start(1);
    let client = Client::connect(servers.url("")).await.unwrap();
    let service =
        LockService { address: servers[0].address().to_string(), lease: lease(&servers, 20) };
    let held = service.lock();
    assert!(client.mutex("key").try_acquire().await.unwrap().is_none());
    // A lock of another kind is refused, not granted.
    for refused in
        [client.semaphore("key", 2).try_acquire().await, client.read("key").try_acquire().await]
    {
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    }
    let ours = tokio::spawn(client.mutex("key").acquire());
    until_waiting(&client, "key", 1).await;
    service.unlock(&held);
    let guard = ours.await.unwrap().unwrap();
    let theirs = tokio::task::spawn_blocking(move || service.lock());
    until_waiting(&client, "key", 1).await;
    assert!(!theirs.is_finished());
    guard.release().await.unwrap();
    theirs.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_does_not_wait_for_nested_keys_nor_for_data_next_to_it() {
    let servers = Servers::start(1);
    let (a, b) = (
        Client::connect(servers.url("")).await.unwrap(),
        Client::connect(servers.url("")).await.unwrap(),
    );
    servers.ctl(&["put", "a/data", "not a lock"]);
    let leased = format!("--lease={:x}", lease(&servers, 60));
    servers.ctl(&["put", &leased, "a/leased-data", "not a lock either"]);
    let nested = b.mutex("a/b").acquire().await.unwrap();
    // All ways to acquire: at once, as a try, and after a wait.
    let guard = a.mutex("a").acquire().await.unwrap();
    assert!(b.mutex("a").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(b.mutex("a").acquire());
    until_waiting(&a, "a", 1).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    a.mutex("a").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    nested.check().unwrap();
    nested.release().await.unwrap();
    assert_eq!(servers.keys(), ["a/data", "a/leased-data"]);
}

/// Services are often registered under a name and their lease, like elections.
#[tokio::test(flavor = "multi_thread")]
async fn data_that_is_named_like_a_place_is_no_lock_and_is_left_alone() {
    let servers = Servers::start(1);
    let (a, b) = (
        Client::connect(servers.url("")).await.unwrap(),
        Client::connect(servers.url("")).await.unwrap(),
    );
    let lease = lease(&servers, 600);
    let register = |name: &str| {
        let (leased, key) = (format!("--lease={lease:x}"), format!("{name}/{lease:x}"));
        servers.ctl(&["put", &leased, &key, "10.0.0.1:80"]);
    };
    register("web");
    for lock in [a.mutex("web"), a.read("web"), a.write("web"), a.semaphore("web", 2)] {
        let tried = lock.clone().try_acquire().await;
        assert!(matches!(tried, Err(Error::Conflict { .. })), "{tried:?}");
        let waited = lock.acquire_within(Duration::from_secs(20)).await;
        assert!(matches!(waited, Err(Error::Conflict { .. })), "{waited:?}");
    }
    assert!(a.inspect("web").await.unwrap().is_none());
    assert!(a.list("").await.unwrap().is_empty());
    let broken = a.break_lock("web").await;
    assert!(matches!(broken, Err(Error::Conflict { .. })), "{broken:?}");
    // Behind a lock it does not affect the holder, but later claims are refused.
    let guard = a.mutex("shop").acquire().await.unwrap();
    register("shop");
    let waited = b.mutex("shop").acquire_within(Duration::from_secs(20)).await;
    assert!(matches!(waited, Err(Error::Conflict { .. })), "{waited:?}");
    guard.check().unwrap();
    // A refused claim leaves in the background.
    b.close().await;
    let seen = a.inspect("shop").await.unwrap().unwrap();
    assert_eq!((seen.holders.len(), seen.waiters.unwrap().len()), (1, 0));
    guard.release().await.unwrap();
    a.close().await;
    assert_eq!(servers.keys(), [format!("shop/{lease:x}"), format!("web/{lease:x}")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_permits_are_taken_than_a_transaction_has_operations() {
    let servers = Servers::start(1);
    let (a, b) = (
        Client::connect(servers.url("")).await.unwrap(),
        Client::connect(servers.url("")).await.unwrap(),
    );
    // The longest possible name, and one whose every byte is escaped.
    let key = "/".repeat(512);
    let lock = |client: &Client| client.semaphore(&key, 1600).permits(800);
    let first = lock(&a).acquire().await.unwrap();
    let second = lock(&b).acquire().await.unwrap();
    let slots: std::collections::BTreeSet<_> = first.slots().iter().chain(second.slots()).collect();
    assert_eq!(slots.len(), 1600, "two have one permit");
    let before = servers.requests();
    match a.semaphore("another", 2000).permits(801).acquire().await {
        Err(Error::Unsupported { what, .. }) => assert!(what.contains("800"), "{what}"),
        other => panic!("it is too many: {other:?}"),
    }
    assert_eq!(servers.requests(), before, "refused, but only after asking");
    assert!(lock(&a).try_acquire().await.unwrap().is_none());
    let broken = a.break_lock(&key).await.unwrap();
    assert_eq!(broken.iter().map(|entry| entry.slots.len()).sum::<usize>(), 1600);
    let third = lock(&a).acquire().await.unwrap();
    third.release().await.unwrap();
    drop((first, second));
    a.close().await;
    b.close().await;
    // The list of breaks stays.
    assert_eq!(servers.keys(), ["lockkeeper.broken"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_as_old_as_its_grant_however_it_waited() {
    let servers = Servers::start(1);
    let (a, b) = (
        Client::connect(servers.url("")).await.unwrap(),
        Client::connect(servers.url("")).await.unwrap(),
    );
    for spins in [false, true] {
        let guard = a.mutex("key").acquire().await.unwrap();
        let waiting = match spins {
            true => b.mutex("key").spin(Backoff::default()),
            false => b.mutex("key"),
        };
        let began = Instant::now();
        let waiting = tokio::spawn(waiting.acquire());
        // The age of a waiter does not count for the holder that it becomes.
        tokio::time::sleep(Duration::from_secs(3)).await;
        if !spins {
            let seen = a.inspect("key").await.unwrap().unwrap();
            let age = seen.waiters.unwrap()[0].since.unwrap().elapsed().unwrap();
            assert!(age > Duration::from_secs(2) && age <= began.elapsed(), "{age:?}");
        }
        let released = Instant::now();
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        let seen = a.inspect("key").await.unwrap().unwrap();
        let age = seen.holders[0].since.unwrap().elapsed().unwrap();
        // The wall clock and the monotonic clock differ a little.
        let most = released.elapsed() + Duration::from_millis(100);
        assert!(age <= most, "a holder of {most:?} is said to hold for {age:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_costs_the_same_requests_however_many_wait() {
    let servers = Servers::start(1);
    let mut costs = Vec::new();
    for waiting in [3, 30] {
        let key = format!("key-{waiting}");
        let holder = Client::connect(servers.url("")).await.unwrap();
        let guard = holder.mutex(&key).acquire().await.unwrap();
        let mut clients = Vec::new();
        for n in 0..waiting {
            let client = Client::connect(servers.url("")).await.unwrap();
            clients.push(tokio::spawn(client.mutex(&key).acquire()));
            until_waiting(&holder, &key, n + 1).await;
        }
        let before = servers.requests();
        guard.release().await.unwrap();
        let next = clients.remove(0).await.unwrap().unwrap();
        costs.push(servers.requests() - before);
        for client in &clients {
            client.abort();
        }
        next.release().await.unwrap();
    }
    // Waiters poll every few seconds, and a few of them may just have done so.
    assert!(costs[1] <= costs[0] + 10, "{costs:?} requests with 3 and with 30 waiters");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_what_ails_a_real_server() {
    let servers = Servers::start(1);
    let client = Client::connect(servers.url("")).await.unwrap();
    let findings = client.doctor().await.unwrap();
    let said = |what: &str| findings.iter().any(|finding| finding.what.contains(what));
    assert!(said("1 of the 1 members"), "{findings:#?}");
    assert!(said("the shortest lease is 2s"), "{findings:#?}");
    assert!(said("could be acquired and released"), "{findings:#?}");
    assert!(findings.iter().all(|finding| finding.severity < Severity::Problem), "{findings:#?}");
    client.close().await;
    assert_eq!((servers.keys().len(), servers.leases()), (0, 0), "it left something behind");
}
