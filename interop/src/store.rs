//! The servers of a run, and how to see that a client waits at them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::server::Postgres;
use lockkeeper_testkit::server::redis::{Cluster, Server};
use lockkeeper_testkit::server::{etcd, zookeeper};
use tokio::runtime::Runtime;

use crate::driver::Outcome;

/// How long it may take until a driver that was told to wait is seen waiting.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running store; it ends when dropped.
pub(crate) enum Store {
    /// Redis servers, and the scheme of the URL that names them.
    Redis { scheme: &'static str, servers: Vec<Server> },
    /// A store whose queues we can inspect.
    Inspected { servers: Servers, url: String, runtime: Runtime, client: Client },
}

/// Most are only kept for their drop.
pub(crate) enum Servers {
    ZooKeeper { _ensemble: zookeeper::Ensemble },
    Etcd { _servers: etcd::Servers },
    Postgres(Box<Postgres>),
}

impl Store {
    pub(crate) fn redis() -> Self {
        Store::Redis { scheme: "redis", servers: vec![Server::start()] }
    }

    pub(crate) fn cluster() -> Self {
        Store::Redis { scheme: "redis+cluster", servers: Cluster::with_replicas(0).servers }
    }

    /// Five independent servers.
    pub(crate) fn redlock() -> Self {
        let servers = std::iter::repeat_with(Server::start).take(5).collect();
        Store::Redis { scheme: "redlock", servers }
    }

    pub(crate) fn zookeeper() -> Outcome<Self> {
        let ensemble = zookeeper::Ensemble::single();
        let url = format!("zookeeper://{}/locks", ensemble.hosts());
        Self::inspected(Servers::ZooKeeper { _ensemble: ensemble }, url)
    }

    pub(crate) fn etcd() -> Outcome<Self> {
        let servers = etcd::Servers::start(1);
        let url = servers.url("");
        Self::inspected(Servers::Etcd { _servers: servers }, url)
    }

    pub(crate) fn postgres() -> Outcome<Self> {
        let server = Postgres::start();
        let url = format!("{}?strategy=advisory", server.url());
        Self::inspected(Servers::Postgres(Box::new(server)), url)
    }

    fn inspected(servers: Servers, url: String) -> Outcome<Self> {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        let client = runtime.block_on(Client::connect(&url)).map_err(|error| error.to_string())?;
        Ok(Store::Inspected { servers, url, runtime, client })
    }

    /// `host:port`, with commas between several.
    pub(crate) fn hosts(&self) -> String {
        match self {
            Store::Redis { servers, .. } => {
                let hosts = servers.iter().map(|server| format!("127.0.0.1:{}", server.port()));
                hosts.collect::<Vec<_>>().join(",")
            }
            Store::Inspected { url, .. } => {
                let rest = url.split("://").nth(1).unwrap_or_default();
                rest.split(['/', '?']).next().unwrap_or_default().to_owned()
            }
        }
    }

    /// The URL that we use.
    pub(crate) fn url(&self) -> String {
        match self {
            Store::Redis { scheme, .. } => format!("{scheme}://{}", self.hosts()),
            Store::Inspected { url, .. } => url.clone(),
        }
    }

    /// Waits until this many clients wait for a lock.
    pub(crate) fn until_waited_for(&self, name: &str, wanted: usize) -> Outcome {
        let started = Instant::now();
        while self.waiters(name) < wanted {
            if started.elapsed() > PATIENCE {
                return Err(format!("{wanted} were never seen waiting for {name}"));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until our waiter for a plain mutex on Redis has recorded that it waits.
    pub(crate) fn until_shown(&self, name: &str) -> Outcome {
        let Store::Redis { servers, .. } = self else { return Ok(()) };
        let waiters = format!("lockkeeper_waiters:{{{name}}}");
        let started = Instant::now();
        while !servers.iter().any(|server| server.ask(&["EXISTS", &waiters]) == "1") {
            if started.elapsed() > PATIENCE {
                return Err(format!("nobody was ever shown waiting for {name}"));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn waiters(&self, name: &str) -> usize {
        match self {
            Store::Redis { servers, .. } => {
                // Waiters for a plain mutex are in no queue: they subscribe, each process once.
                let line = format!("redisson_lock_queue:{{{name}}}");
                let channels = format!("*{{{name}}}*");
                let seen = |server: &Server| {
                    let queued = server.ask(&["LLEN", &line]).parse().unwrap_or(0);
                    let heard = ["CHANNELS", "SHARDCHANNELS"]
                        .iter()
                        .any(|which| !server.ask(&["PUBSUB", which, &channels]).is_empty());
                    queued.max(usize::from(heard))
                };
                servers.iter().map(seen).max().unwrap_or(0)
            }
            // A waiter for a name that we never held is anonymous there, and there are no others.
            Store::Inspected { servers: Servers::Postgres(server), .. } => {
                let waiting =
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
                server.sql("postgres", waiting).parse().unwrap_or(0)
            }
            Store::Inspected { runtime, client, .. } => {
                let seen = runtime.block_on(client.inspect(name)).ok().flatten();
                seen.and_then(|seen| seen.waiters).map_or(0, |waiters| waiters.len())
            }
        }
    }
}
