//! Redis: one server, with sentinels, a Cluster, and a majority.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{Deployment, Fault};
use crate::server::eventually;
use crate::server::redis::{Cluster, DURABLE, Sentinels, Server};

/// One server that keeps every write.
#[derive(Debug)]
pub struct OneRedis([Server; 1]);

impl OneRedis {
    /// Starts it.
    pub fn start() -> Self {
        Self([Server::with(&DURABLE)])
    }

    async fn out_of_memory(&self, length: Duration) {
        self.0[0].ask(&["CONFIG", "SET", "maxmemory", "1"]);
        sleep(length).await;
        self.0[0].ask(&["CONFIG", "SET", "maxmemory", "0"]);
    }
}

impl Deployment for OneRedis {
    fn url(&self) -> String {
        self.0[0].url()
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        vec![self.0[0].address()]
    }

    fn faults(&self, ttl: Duration) -> Vec<Fault<'_>> {
        vec![
            scripts_forgotten(&self.0),
            connections_killed(&self.0),
            Fault::new("out of memory", move || {
                self.out_of_memory(Duration::from_millis(fastrand::u64(10..1500)))
            }),
            killed(&self.0),
            emptied(&self.0),
            stopped(&self.0, ttl),
        ]
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
            Fault::forgetful("planned failover", move || async move {
                let old = self.master().await;
                let sentinel = &self.0.sentinels[fastrand::usize(..3)];
                if sentinel.ask(&["SENTINEL", "FAILOVER", "main"]) == "OK" {
                    self.replaced(old).await;
                }
            }),
            Fault::forgetful("master killed", move || async move {
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
            Fault::new("slot moved", move || self.reshard()),
        ]
    }
}

/// Three servers that keep every write, of which a majority decides.
#[derive(Debug)]
pub struct Redlock(Vec<Server>);

impl Redlock {
    /// Starts them.
    pub fn start() -> Self {
        Self((0..3).map(|_| Server::with(&DURABLE)).collect())
    }
}

impl Deployment for Redlock {
    fn url(&self) -> String {
        let hosts: Vec<_> = self.0.iter().map(|server| server.address().to_string()).collect();
        format!("redlock://{}", hosts.join(","))
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|server| server.address()).collect()
    }

    fn faults(&self, ttl: Duration) -> Vec<Fault<'_>> {
        vec![
            scripts_forgotten(&self.0),
            connections_killed(&self.0),
            stopped(&self.0, ttl),
            killed(&self.0),
            emptied(&self.0),
        ]
    }
}

fn some(servers: &[Server]) -> &Server {
    &servers[fastrand::usize(..servers.len())]
}

fn scripts_forgotten(servers: &[Server]) -> Fault<'_> {
    Fault::new("scripts forgotten", move || async move {
        servers.iter().for_each(|server| drop(server.ask(&["SCRIPT", "FLUSH"])));
    })
}

fn connections_killed(servers: &[Server]) -> Fault<'_> {
    Fault::new("connections killed", move || async move {
        let server = some(servers);
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    })
}

fn killed(servers: &[Server]) -> Fault<'_> {
    Fault::new("server killed and started again", move || async move {
        let server = some(servers);
        server.kill();
        server.restart();
    })
}

/// Restarts a server without its data. Locks are forgotten; fences have to rise all the same.
fn emptied(servers: &[Server]) -> Fault<'_> {
    Fault::forgetful("server killed and started again without its data", move || async move {
        let server = some(servers);
        server.kill();
        // Fails if it has written nothing yet.
        let _ = std::fs::remove_dir_all(server.directory().join("appendonlydir"));
        server.restart();
    })
}

/// Stops a server for up to one and a half times `length`.
fn stopped(servers: &[Server], length: Duration) -> Fault<'_> {
    Fault::new("server stopped", move || async move {
        let server = some(servers);
        server.pause();
        sleep(length.mul_f64(1.5 * fastrand::f64())).await;
        server.resume();
    })
}
