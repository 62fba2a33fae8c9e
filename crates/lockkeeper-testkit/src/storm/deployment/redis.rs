//! Redis: one server, with sentinels, a Cluster, and a majority.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{Deployment, Fault};
use crate::WallClock;
use crate::server::eventually;
use crate::server::redis::{Cluster, DURABLE, Sentinels, Server};

/// One server that keeps every write.
#[derive(Debug)]
pub struct OneRedis(Clocked);

impl OneRedis {
    /// Starts it.
    pub fn start() -> Self {
        Self(Clocked::start(1))
    }

    async fn out_of_memory(&self, length: Duration) {
        self.0.servers[0].ask(&["CONFIG", "SET", "maxmemory", "1"]);
        sleep(length).await;
        self.0.servers[0].ask(&["CONFIG", "SET", "maxmemory", "0"]);
    }
}

impl Deployment for OneRedis {
    fn url(&self) -> String {
        self.0.servers[0].url()
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        vec![self.0.servers[0].address()]
    }

    fn faults(&self, ttl: Duration) -> Vec<Fault<'_>> {
        let mut faults = self.0.faults(ttl);
        faults.push(Fault::new("out-of-memory", move || {
            self.out_of_memory(Duration::from_millis(fastrand::u64(10..1500)))
        }));
        faults
    }
}

/// One master, two replicas and three sentinels. Replicas copy later than masters answer, so a
/// failover may lose locks; fences have to rise all the same.
#[derive(Debug)]
pub struct RedisSentinels(Sentinels);

impl RedisSentinels {
    /// Starts all of them.
    pub fn start() -> Self {
        Self(Sentinels::start())
    }

    /// Waits until all sentinels name another master than this, or none does for longer than they
    /// try.
    async fn replaced(&self, old: &Server) {
        let started = Instant::now();
        let port = old.port().to_string();
        let names_it = |sentinel: &Server| {
            let answer = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
            answer.is_empty() || answer.lines().nth(1) == Some(port.as_str())
        };
        let limit = Duration::from_secs(10);
        while started.elapsed() < limit && self.0.sentinels.iter().any(names_it) {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The master. Failovers in such quick succession can leave servers that replicate from each
    /// other, none of which the sentinels can promote; then an operator promotes the one that they
    /// name.
    async fn master(&self) -> &Server {
        let started = Instant::now();
        loop {
            let named = self.0.named();
            if let Some(master) = named.filter(|named| named.ask(&["ROLE"]).starts_with("master")) {
                return master;
            }
            if started.elapsed() > Duration::from_secs(40) {
                named.inspect(|named| drop(named.ask(&["REPLICAOF", "NO", "ONE"])));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Deployment for RedisSentinels {
    fn url(&self) -> String {
        self.0.url()
    }

    fn faults(&self, _ttl: Duration) -> Vec<Fault<'_>> {
        vec![
            scripts_forgotten(&self.0.servers),
            connections_killed(&self.0.servers),
            Fault::forgetful("failover", move || async move {
                let old = self.master().await;
                let sentinel = &self.0.sentinels[fastrand::usize(..3)];
                if sentinel.ask(&["SENTINEL", "FAILOVER", "main"]) == "OK" {
                    self.replaced(old).await;
                }
            }),
            Fault::forgetful("master-killed", move || async move {
                let old = self.master().await;
                old.kill();
                self.replaced(old).await;
                old.restart();
            }),
            stopped(&self.0.sentinels, Duration::from_millis(600)),
        ]
    }
}

/// Three masters.
#[derive(Debug)]
pub struct RedisCluster(Cluster);

impl RedisCluster {
    /// Starts it.
    pub fn start() -> Self {
        Self(Cluster::with_replicas(0))
    }

    /// Moves a slot that has keys to another master, with pauses in which it is half moved.
    async fn reshard(&self) {
        let pause = || sleep(Duration::from_millis(fastrand::u64(0..700)));
        let Some((from, slot)) = self.used_slot() else { return };
        let servers = &self.0.servers;
        let others: Vec<_> = servers.iter().filter(|s| s.port() != from.port()).collect();
        let to = others[fastrand::usize(..others.len())];
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
            let answers: Vec<_> =
                there().lines().map(|key| (key.to_owned(), migrate(key))).collect();
            let counted = from.ask(&["CLUSTER", "COUNTKEYSINSLOT", &slot]);
            (counted == "0").then_some(()).ok_or(format!("{counted}: {answers:?}"))
        });
        for server in [to, from].into_iter().chain(others.iter().copied()) {
            told(server, &["NODE", &to_id]);
        }
    }

    /// A slot in use, and its master.
    fn used_slot(&self) -> Option<(&Server, String)> {
        let mut servers: Vec<_> = self.0.servers.iter().collect();
        fastrand::shuffle(&mut servers);
        servers.into_iter().find_map(|server| {
            let key = server.ask(&["RANDOMKEY"]);
            (!key.is_empty()).then(|| (server, server.ask(&["CLUSTER", "KEYSLOT", &key])))
        })
    }
}

impl Deployment for RedisCluster {
    fn url(&self) -> String {
        self.0.url()
    }

    fn faults(&self, _ttl: Duration) -> Vec<Fault<'_>> {
        vec![
            scripts_forgotten(&self.0.servers),
            connections_killed(&self.0.servers),
            Fault::new("slot-moved", move || self.reshard()),
        ]
    }
}

/// Three servers that keep every write, of which a majority decides.
#[derive(Debug)]
pub struct Redlock(Clocked);

impl Redlock {
    /// Starts them.
    pub fn start() -> Self {
        Self(Clocked::start(3))
    }
}

impl Deployment for Redlock {
    fn url(&self) -> String {
        let servers = self.0.servers.iter();
        let hosts: Vec<_> = servers.map(|server| server.address().to_string()).collect();
        format!("redlock://{}", hosts.join(","))
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        self.0.servers.iter().map(|server| server.address()).collect()
    }

    fn faults(&self, ttl: Duration) -> Vec<Fault<'_>> {
        self.0.faults(ttl)
    }
}

/// Servers that keep every write, each with a clock of its own, if there is a C compiler.
#[derive(Debug)]
struct Clocked {
    servers: Vec<Server>,
    clocks: Vec<WallClock>,
    /// Until when fences may be ahead of the clocks, because a clock was.
    ahead: Mutex<Option<Instant>>,
}

impl Clocked {
    fn start(count: usize) -> Self {
        let clocks: Vec<_> = (0..count).map_while(|_| WallClock::if_possible()).collect();
        let server = |n: usize| match clocks.get(n) {
            Some(clock) => Server::with_clock(clock, &DURABLE),
            None => Server::with(&DURABLE),
        };
        Self { servers: (0..count).map(server).collect(), clocks, ahead: Mutex::default() }
    }

    fn faults(&self, ttl: Duration) -> Vec<Fault<'_>> {
        let mut faults = vec![
            scripts_forgotten(&self.servers),
            connections_killed(&self.servers),
            stopped(&self.servers, ttl),
            killed(&self.servers),
            // Locks are forgotten; fences have to rise all the same.
            Fault::forgetful("server-emptied", move || self.empty()),
        ];
        if !self.clocks.is_empty() {
            // Leases end by the wall clock: when it jumps, they end too early or too late.
            faults.push(Fault::forgetful("clock-jump", move || self.jump(ttl)));
            faults.push(Fault::new("clock-drift", move || self.drift()));
        }
        faults
    }

    /// Restarts a server without its data. It goes on counting fences from its clock, so not before
    /// that has caught up with them: what forgets and is set back as well cannot be fenced.
    async fn empty(&self) {
        let ahead = self.ahead.lock().expect("nothing panics under this lock").take();
        sleep(ahead.unwrap_or_else(Instant::now).saturating_duration_since(Instant::now())).await;
        let server = some(&self.servers);
        server.kill();
        // Fails if it has written nothing yet.
        let _ = std::fs::remove_dir_all(server.directory().join("appendonlydir"));
        server.restart();
    }

    /// The clock of one server is wrong by 0.1 to 3 leases, for up to a lease.
    async fn jump(&self, ttl: Duration) {
        let clock = &self.clocks[fastrand::usize(..self.clocks.len())];
        let by = ttl.mul_f64(0.1 + 2.9 * fastrand::f64());
        match fastrand::bool() {
            true => clock.ahead(by),
            false => clock.behind(by),
        }
        sleep(ttl.mul_f64(fastrand::f64())).await;
        clock.set(0);
        let mut ahead = self.ahead.lock().expect("nothing panics under this lock");
        *ahead = (*ahead).max(Some(Instant::now() + by));
    }

    /// The clock of one server is 2 % too fast or too slow, for up to three seconds, and then finds
    /// back at the same rate.
    async fn drift(&self) {
        const STEP: Duration = Duration::from_millis(100);
        let clock = &self.clocks[fastrand::usize(..self.clocks.len())];
        let (rate, steps) = (if fastrand::bool() { 2 } else { -2 }, fastrand::i64(1..30));
        for n in (0..=steps).chain((0..steps).rev()) {
            clock.set(n * rate);
            sleep(STEP).await;
        }
    }
}

fn some(servers: &[Server]) -> &Server {
    &servers[fastrand::usize(..servers.len())]
}

fn scripts_forgotten(servers: &[Server]) -> Fault<'_> {
    Fault::new("scripts-forgotten", move || async move {
        servers.iter().for_each(|server| drop(server.ask(&["SCRIPT", "FLUSH"])));
    })
}

fn connections_killed(servers: &[Server]) -> Fault<'_> {
    Fault::new("connections-killed", move || async move {
        let server = some(servers);
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    })
}

fn killed(servers: &[Server]) -> Fault<'_> {
    Fault::new("server-killed", move || async move {
        let server = some(servers);
        server.kill();
        server.restart();
    })
}

/// Stops a server for up to one and a half times `length`.
fn stopped(servers: &[Server], length: Duration) -> Fault<'_> {
    Fault::new("server-stopped", move || async move {
        let server = some(servers);
        server.pause();
        sleep(length.mul_f64(1.5 * fastrand::f64())).await;
        server.resume();
    })
}
