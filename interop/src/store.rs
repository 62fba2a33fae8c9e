//! The servers of a run, and how to see that somebody waits at them.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::database::postgres::Postgres;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use lockkeeper_testkit::server::{Persistence, Recipe, Server, redis};
use tokio::runtime::Runtime;

use crate::driver::Outcome;

/// How long it may take until a driver that was told to wait is seen waiting.
const PATIENCE: Duration = Duration::from_secs(30);

/// A store that runs; it ends when dropped.
pub(crate) enum Store {
    /// One Redis server, or the masters of a Cluster.
    Redis(Vec<Server>),
    /// One that shows its lines to us.
    Inspected { servers: Servers, url: String, runtime: Runtime, client: Client },
}

/// Most are only kept for their drop.
pub(crate) enum Servers {
    ZooKeeper { _ensemble: Ensemble },
    Etcd { _server: Server },
    Postgres(Postgres),
}

impl Store {
    pub(crate) fn redis() -> Self {
        Store::Redis(vec![Server::start(redis(Persistence::None))])
    }

    /// A Cluster of three masters.
    pub(crate) fn cluster() -> Outcome<Self> {
        let servers: Vec<_> = (0..3).map(|_| Server::start(CLUSTERED)).collect();
        let store = Store::Redis(servers);
        let made = Command::new("redis-cli")
            .args(["--cluster", "create", "--cluster-yes"])
            .args(store.addresses())
            .output()
            .map_err(|error| format!("redis-cli: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stdout).into_owned());
        }
        let whole = || {
            let states = store.ports().map(|port| cli(port, &["CLUSTER", "INFO"]));
            states.into_iter().all(|state| state.contains("cluster_state:ok"))
        };
        until("the cluster is whole", whole)?;
        Ok(store)
    }

    pub(crate) fn zookeeper() -> Outcome<Self> {
        let ensemble = Ensemble::single();
        let url = format!("zookeeper://{}/locks", ensemble.hosts());
        Self::inspected(Servers::ZooKeeper { _ensemble: ensemble }, url)
    }

    pub(crate) fn etcd() -> Outcome<Self> {
        let server = Server::start(ETCD);
        let url = format!("etcd://{}", server.address());
        Self::inspected(Servers::Etcd { _server: server }, url)
    }

    pub(crate) fn postgres() -> Outcome<Self> {
        let server = Postgres::start();
        let url = format!("{}?strategy=advisory", server.url());
        Self::inspected(Servers::Postgres(server), url)
    }

    fn inspected(servers: Servers, url: String) -> Outcome<Self> {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        let client = runtime.block_on(Client::connect(&url)).map_err(|error| error.to_string())?;
        Ok(Store::Inspected { servers, url, runtime, client })
    }

    /// `host:port` of every server.
    pub(crate) fn addresses(&self) -> Vec<String> {
        match self {
            Store::Redis(servers) => servers.iter().map(|s| s.address().to_string()).collect(),
            Store::Inspected { url, .. } => {
                let rest = url.split("://").nth(1).unwrap_or_default();
                vec![rest.split(['/', '?']).next().unwrap_or_default().to_owned()]
            }
        }
    }

    /// The URL that we use.
    pub(crate) fn url(&self) -> String {
        let hosts = self.addresses().join(",");
        match self {
            Store::Redis(servers) if servers.len() == 1 => format!("redis://{hosts}"),
            Store::Redis(_) => format!("redis+cluster://{hosts}"),
            Store::Inspected { url, .. } => url.clone(),
        }
    }

    /// Waits until so many wait for a lock.
    pub(crate) fn until_waited_for(&self, name: &str, wanted: usize) -> Outcome {
        until(&format!("{wanted} wait for {name}"), || self.waiters(name) >= wanted)
    }

    fn waiters(&self, name: &str) -> usize {
        match self {
            Store::Redis(_) => {
                // Those of a plain mutex are in no line: they listen, each process once.
                let line = format!("redisson_lock_queue:{{{name}}}");
                let channels = format!("*{{{name}}}*");
                let seen = |port| {
                    let queued = cli(port, &["LLEN", &line]).parse().unwrap_or(0);
                    let heard = ["CHANNELS", "SHARDCHANNELS"]
                        .iter()
                        .any(|which| !cli(port, &["PUBSUB", which, &channels]).is_empty());
                    queued.max(usize::from(heard))
                };
                self.ports().map(seen).max().unwrap_or(0)
            }
            // Who waits for a name that we never held is nameless there, and nobody else waits.
            Store::Inspected { servers: Servers::Postgres(server), .. } => {
                let waiting =
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
                server.psql("postgres", waiting).parse().unwrap_or(0)
            }
            Store::Inspected { runtime, client, .. } => {
                let seen = runtime.block_on(client.inspect(name)).ok().flatten();
                seen.and_then(|seen| seen.waiters).map_or(0, |waiters| waiters.len())
            }
        }
    }

    fn ports(&self) -> impl Iterator<Item = u16> {
        let servers = match self {
            Store::Redis(servers) => servers.as_slice(),
            Store::Inspected { .. } => &[],
        };
        servers.iter().map(|server| server.address().port())
    }
}

const CLUSTERED: Recipe = Recipe {
    program: "redis-server",
    package: "redis-server",
    arguments: |port, dir| {
        let mut arguments = (redis(Persistence::None).arguments)(port, dir);
        arguments.extend(["--cluster-enabled", "yes"].map(str::to_owned));
        arguments
    },
    ready: |stream| (redis(Persistence::None).ready)(stream),
};

const ETCD: Recipe = Recipe {
    program: "etcd",
    package: "etcd-server",
    arguments: |port, dir| {
        let client = format!("http://127.0.0.1:{port}");
        // The test kit keeps this one free as well.
        let peer = format!("http://127.0.0.1:{}", port + 10_000);
        let dir = dir.join("data").display().to_string();
        let arguments = [
            ["--data-dir", &dir],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &format!("default={peer}")],
            ["--log-level", "error"],
            ["--logger", "zap"],
        ];
        arguments.concat().into_iter().map(str::to_owned).collect()
    },
    ready: |mut stream| {
        use std::io::{Read, Write};
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.contains("true"))
    },
};

/// Asks a Redis server something, as an operator would.
pub(crate) fn cli(port: u16, command: &[&str]) -> String {
    let answer = Command::new("redis-cli").args(["-p", &port.to_string()]).args(command).output();
    let answer = answer.map(|answer| answer.stdout).unwrap_or_default();
    String::from_utf8_lossy(&answer).trim().to_owned()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Outcome {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > PATIENCE {
            return Err(format!("never: {what}"));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}
