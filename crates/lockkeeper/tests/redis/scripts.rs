//! The scripts: their admission rule, and how often a server is called.

use std::time::Duration;

use fastrand::Rng;
use lockkeeper::admission::{self, Queued, Turn};
use lockkeeper::clock::Clock;
use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::{Claim, Engine, Fence, Grant, Lease, Mode, Released, Renewal, Request};
use lockkeeper::engines::redis::Redis;
use lockkeeper::{Client, Guard, Key, Owner, Token};
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Cluster, Server};
use tokio::task::JoinSet;

const LIMIT: u32 = 3;

fn request(key: Key, owner: Option<Owner>, mode: Mode) -> Request {
    let mut request = Request::new(key, Token::fresh(), mode, Duration::from_secs(60));
    request.owner = owner;
    request.fair = mode == Mode::Mutex;
    request
}

/// Claims in the store, next to the queue that they should be in.
struct Game {
    redis: Redis,
    key: Key,
    claims: Vec<Box<dyn Claim>>,
    queue: Vec<Queued<usize>>,
    last: Fence,
}

impl Game {
    /// A new claim asks. Owners below three have names, the others are unique.
    async fn join(&mut self, owner: usize, mode: Mode) {
        let named = (owner < 3).then(|| Owner::named(format!("owner:{owner}")).unwrap());
        self.claims.push(self.redis.claim(request(self.key.clone(), named, mode)));
        self.queue.push(Queued { owner, mode, granted: false });
        self.settle().await;
    }

    async fn leave(&mut self, at: usize) {
        let mut claim = self.claims.remove(at);
        let place = self.queue.remove(at);
        let released = claim.release().await.unwrap();
        assert_eq!(released, Released::Yes, "{place:?} left {:?}", self.queue);
        self.settle().await;
    }

    /// All waiters ask, in order, until nothing changes; then the store and the rule agree.
    async fn settle(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for at in 0..self.queue.len() {
                if self.queue[at].granted {
                    continue;
                }
                let expected = admission::turn(&self.queue, at) == Turn::In;
                let grant = self.claims[at].attempt(Clock::System.now()).await.unwrap();
                assert_eq!(grant.is_some(), expected, "place {at} of {:?}", self.queue);
                if let Some(grant) = grant {
                    self.judge(at, &grant);
                    self.queue[at].granted = true;
                    moved = true;
                }
            }
        }
    }

    /// Fences rise, except for readers and for owners that re-enter, which share one.
    fn judge(&mut self, at: usize, grant: &Grant) {
        let Queued { owner, mode, .. } = self.queue[at];
        let again = self.queue.iter().any(|other| other.granted && other.owner == owner);
        let shares = match mode {
            Mode::Read => true,
            Mode::Permits { .. } => false,
            _ => again,
        };
        match shares && self.last > Fence::default() {
            true => assert_eq!(grant.fence, self.last, "place {at} of {:?}", self.queue),
            false => assert!(grant.fence > self.last, "place {at} of {:?}", self.queue),
        }
        self.last = grant.fence;
        let take = if let Mode::Permits { take, .. } = mode { take as usize } else { 0 };
        assert_eq!(grant.slots.len(), take);
        assert!(grant.slots.iter().all(|slot| *slot < LIMIT));
    }

    /// What may come next: no name waits twice, and no claim upgrades a read lock to a write lock,
    /// which the core refuses.
    fn newcomer(&self, random: &mut Rng, family: u8, next: usize) -> (usize, Mode) {
        let mode = match (family, random.bool()) {
            (0, _) => Mode::Mutex,
            (1, true) => Mode::Read,
            (1, false) => Mode::Write,
            _ => return (next, Mode::Permits { take: random.u32(1..=LIMIT), limit: LIMIT }),
        };
        let owner = random.usize(..5);
        let waits = |place: &Queued<usize>| place.owner == owner && !place.granted;
        let upgrades = |place: &Queued<usize>| {
            place.owner == owner && place.mode == Mode::Read && mode == Mode::Write
        };
        match owner < 3 && !self.queue.iter().any(|place| waits(place) || upgrades(place)) {
            true => (owner, mode),
            false => (next, mode),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rule_in_the_scripts_is_the_rule_of_the_library() {
    let server = Server::start();
    let redis = Redis::connect(&Endpoint::parse(&server.url()).unwrap()).await.unwrap();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    for n in 0..60 {
        let key = Key::new(format!("game {n}")).unwrap();
        let (claims, queue) = (Vec::new(), Vec::new());
        let mut game = Game { redis: redis.clone(), key, claims, queue, last: Fence::default() };
        let mut next = 10;
        for _ in 0..40 {
            if random.usize(..8) >= game.queue.len() {
                let (owner, mode) = game.newcomer(&mut random, n % 3, next);
                next += 1;
                game.join(owner, mode).await;
            } else {
                game.leave(random.usize(..game.queue.len())).await;
            }
        }
        while !game.queue.is_empty() {
            game.leave(random.usize(..game.queue.len())).await;
        }
        assert_eq!(server.ask(&["EXISTS", &format!("game {n}")]), "0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_that_die_leave_no_records() {
    const DEAD: usize = 100;
    let server = Server::start();
    let redis = Redis::connect(&Endpoint::parse(&server.url()).unwrap()).await.unwrap();
    let records = |key: &str| -> usize {
        server.ask(&["HLEN", &format!("lockkeeper_who:{{{key}}}")]).parse().unwrap()
    };
    let short = |key: &str, mode, ttl| {
        let mut request = request(Key::new(key).unwrap(), None, mode);
        request.ttl = Duration::from_millis(ttl);
        redis.claim(request)
    };
    let (one, all) = (Mode::Permits { take: 1, limit: LIMIT }, LIMIT);
    for (key, mode, other) in [
        ("read", Mode::Read, Mode::Write),
        ("permits", one, Mode::Permits { take: all, limit: all }),
    ] {
        // Records stay for long once there was a waiter.
        assert!(short(key, mode, 500).attempt(Clock::System.now()).await.unwrap().is_some());
        let mut waiter = short(key, other, 500);
        assert!(waiter.attempt(Clock::System.now()).await.unwrap().is_none());
        waiter.release().await.unwrap();
        for _ in 0..DEAD {
            eventually("the last lease is over", || {
                let there = server.ask(&["EXISTS", key]);
                (there == "0").then_some(()).ok_or(there)
            });
            assert!(short(key, mode, 1).attempt(Clock::System.now()).await.unwrap().is_some());
        }
        assert!(records(key) < 20, "{DEAD} died, and {} records are left", records(key));
    }
    // The same next to a holder that stays.
    let mut long = redis.claim(request(Key::new("together").unwrap(), None, Mode::Read));
    long.attempt(Clock::System.now()).await.unwrap().expect("it is free");
    for _ in 0..DEAD {
        assert!(
            short("together", Mode::Read, 1).attempt(Clock::System.now()).await.unwrap().is_some()
        );
    }
    assert!(records("together") < 70, "{} records are left", records("together"));
    let fields: usize = server.ask(&["HLEN", "together"]).parse().unwrap();
    assert!(fields < 70, "{fields} fields are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_permits_are_taken_and_more_are_refused_before_asking() {
    const MOST: u32 = 10_000;
    let server = Server::start();
    let client = Client::connect(server.url()).await.unwrap();
    let guard = client.semaphore("N", 2 * MOST).permits(MOST).acquire().await.unwrap();
    let expected: Vec<_> = (0..MOST).collect();
    assert_eq!(guard.slots(), expected);
    let second = client.semaphore("N", 2 * MOST).permits(MOST).acquire().await.unwrap();
    assert_eq!(second.slots().first(), Some(&MOST));
    let seen = client.inspect("N").await.unwrap().expect("it is held");
    assert_eq!(seen.holders.iter().map(|holder| holder.slots.len()).sum::<usize>(), 20_000);
    guard.release().await.unwrap();
    second.release().await.unwrap();
    let before = calls(&server, is_script);
    let error = client.semaphore("N", 2 * MOST).permits(MOST + 1).acquire().await.unwrap_err();
    assert!(error.to_string().contains("10000"), "{error}");
    assert_eq!(calls(&server, is_script), before, "refused, but only after asking the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_renewal_reaches_every_kind_and_every_slot() {
    let (server, cluster) = (Server::start(), Cluster::with_replicas(0));
    for url in [server.url(), cluster.url()] {
        let redis = Redis::connect(&Endpoint::parse(&url).unwrap()).await.unwrap();
        let (mut claims, mut leases) = (Vec::new(), Vec::new());
        for n in 0..30 {
            let mode = match n % 4 {
                0 => Mode::Mutex,
                1 => Mode::Write,
                2 => Mode::Read,
                _ => Mode::Permits { take: 1, limit: LIMIT },
            };
            let owner = (n % 3 == 0).then(Owner::new);
            let key = Key::new(n.to_string()).unwrap();
            let request = request(key, owner, mode);
            leases.push(Lease::of(&request));
            let mut claim = redis.claim(request);
            claim.attempt(Clock::System.now()).await.unwrap().expect("it is free");
            claims.push(claim);
        }
        let renewals = redis.renew(&leases, Clock::System.now()).await.unwrap();
        assert!(renewals.iter().all(|one| *one == Renewal::Renewed), "{url}: {renewals:?}");
        claims[7].release().await.unwrap();
        let renewals = redis.renew(&leases, Clock::System.now()).await.unwrap();
        let gone: Vec<_> = (0..30).filter(|n| renewals[*n] == Renewal::Gone).collect();
        assert_eq!(gone, [7], "{url}: {renewals:?}");
    }
}

pub(crate) fn is_script(command: &str) -> bool {
    matches!(command, "eval" | "evalsha")
}

/// How often the server has run these commands so far.
pub(crate) fn calls(server: &Server, of: impl Fn(&str) -> bool) -> u64 {
    let stats = server.ask(&["INFO", "commandstats"]);
    let count = |line: &str| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        of(command).then(|| rest.split(',').next()?.parse::<u64>().ok())?
    };
    stats.lines().filter_map(count).sum()
}

/// `LOCKKEEPER_TEST_LOCKS=50000` takes as many locks as that, and half a minute longer.
#[tokio::test(flavor = "multi_thread")]
async fn one_call_renews_five_hundred_locks() {
    let locks: usize = std::env::var("LOCKKEEPER_TEST_LOCKS").map_or(5_000, |n| n.parse().unwrap());
    let ttl = Duration::from_secs(if locks > 5_000 { 30 } else { 12 });
    let server = Server::start();
    // A slow machine is not the subject of this test.
    let client = Client::connect(server.url() + "?timeout=10s").await.unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..50 {
        let client = client.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for n in (task..locks).step_by(50) {
                guards.push(client.mutex(n.to_string()).ttl(ttl).acquire().await.unwrap());
            }
            guards
        });
    }
    let guards: Vec<Guard> = tasks.join_all().await.into_iter().flatten().collect();
    // Leases that were acquired at different times share calls within the first periods.
    tokio::time::sleep(ttl * 2 / 3).await;
    let before = calls(&server, is_script);
    // Not the whole of three periods, or some that are due at both ends would be counted four
    // times.
    tokio::time::sleep(ttl * 9 / 10).await;
    let renewals = calls(&server, is_script) - before;
    println!("{renewals} calls renewed {locks} locks over three periods");
    assert!(guards.iter().all(|guard| guard.check().is_ok()), "all of them were renewed");
    assert!(renewals <= 3 * locks.div_ceil(500) as u64, "{renewals} calls in three periods");
    // Releasing them one by one would take longer than the whole test.
    server.kill();
}

/// A number from the server's statistics.
fn statistic(server: &Server, name: &str) -> u64 {
    let told = server.ask(&["INFO", "stats"]);
    let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {told}")).trim().parse().unwrap()
}

#[tokio::test]
async fn many_tasks_share_a_write() {
    let server = Server::start();
    let client = Client::connect(server.url()).await.unwrap();
    let count = || {
        let commands = calls(&server, is_script);
        (commands, statistic(&server, "total_reads_processed"))
    };
    let (commands, reads) = count();
    let mut tasks = JoinSet::new();
    for n in 0..64 {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..50 {
                let guard = client.mutex(n.to_string()).acquire().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let (commands, reads) = (count().0 - commands, count().1 - reads);
    println!("{commands} commands came in {reads} reads");
    assert!(commands >= 64 * 50 * 2, "every lock was taken and released: {commands}");
    assert!(reads * 3 < commands, "{commands} commands came in {reads} reads");
}

/// Commands that the server runs per hand-off in a queue of this many clients.
async fn commands_per_hand_off(server: &Server, waiters: usize, mode: Mode) -> f64 {
    let key = format!("{mode} {waiters}");
    let lock = |client: &Client| match mode {
        Mode::Mutex => client.mutex(&key).fair(),
        Mode::Write => client.write(&key),
        _ => client.semaphore(&key, 1),
    };
    let scripts = calls(server, is_script);
    let holder = Client::connect(server.url()).await.unwrap();
    let mut guard = lock(&holder).acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..waiters {
        let client = Client::connect(server.url()).await.unwrap();
        waiting.spawn(lock(&client).acquire());
    }
    // Each client enters the queue, and checks again once it is subscribed to releases.
    eventually("everyone is in the queue and listens", || {
        let asked = calls(server, is_script) - scripts;
        (asked > 2 * waiters as u64).then_some(()).ok_or(asked.to_string())
    });
    let before = calls(server, |command| command != "info");
    for _ in 0..waiters {
        guard.release().await.unwrap();
        guard = waiting.join_next().await.unwrap().unwrap().unwrap();
    }
    let after = calls(server, |command| command != "info");
    guard.release().await.unwrap();
    (after - before) as f64 / waiters as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_costs_as_many_commands_with_a_hundred_waiters_as_with_four() {
    let server = Server::start();
    for mode in [Mode::Mutex, Mode::Write, Mode::Permits { take: 1, limit: 1 }] {
        let few = commands_per_hand_off(&server, 4, mode).await;
        let many = commands_per_hand_off(&server, 100, mode).await;
        // A waiter that sends a heartbeat meanwhile asks once more.
        assert!(many < few * 1.5, "{mode}: {few} for four, {many} for a hundred");
    }
}
