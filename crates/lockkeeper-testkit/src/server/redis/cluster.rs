//! Servers that share the slots of a Cluster.

use std::process::Command;

use super::server::{Server, VOLATILE};
use crate::server::{eventually, hosts, program, run};

/// A Cluster of three masters.
#[derive(Debug)]
pub struct Cluster {
    /// All servers, masters and replicas.
    pub servers: Vec<Server>,
    replicas: usize,
}

impl Cluster {
    /// Starts three masters, each with a replica.
    ///
    /// # Panics
    /// When one does not start, or they do not come together.
    pub fn start() -> Self {
        Self::with_replicas(1)
    }

    /// Starts three masters, each with this many replicas.
    ///
    /// # Panics
    /// Same as [`start`](Cluster::start).
    pub fn with_replicas(each: usize) -> Self {
        let clustered = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let more = ["--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"];
        let arguments = [&VOLATILE[..], &clustered, &more].concat();
        let servers: Vec<_> = (0..3 + 3 * each).map(|_| Server::with(&arguments)).collect();
        run(Command::new(program("redis-cli", "redis-tools"))
            .args(["--cluster", "create"])
            .args(hosts(&servers).split(','))
            .args(["--cluster-replicas", &each.to_string(), "--cluster-yes"]));
        let cluster = Self { servers, replicas: 3 * each };
        cluster.settled();
        cluster
    }

    /// Waits until every server agrees that the cluster is healthy.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn settled(&self) {
        eventually("the cluster is whole", || {
            let states: Vec<_> = self.servers.iter().map(|s| s.ask(&["CLUSTER", "INFO"])).collect();
            let replicas =
                self.servers.iter().filter(|s| s.ask(&["ROLE"]).contains("connected")).count();
            let whole = states.iter().all(|state| {
                state.contains("cluster_state:ok") && state.contains("cluster_slots_ok:16384")
            });
            (whole && replicas == self.replicas)
                .then_some(())
                .ok_or(format!("{replicas} replicas: {states:?}"))
        });
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", hosts(&self.servers))
    }

    /// The server that owns the slot of a key, once there is one.
    ///
    /// # Panics
    /// When there is none for too long.
    pub fn master_of(&self, key: &str) -> &Server {
        let mut master = None;
        eventually("the slot has a master", || {
            master = self.find_master_of(key);
            master.map(drop).ok_or("it has none".to_owned())
        });
        master.expect("it was found")
    }

    fn find_master_of(&self, key: &str) -> Option<&Server> {
        let alive = self.servers.iter().find(|s| s.ask(&["PING"]) == "PONG").expect("one is alive");
        let slot: u16 = alive.ask(&["CLUSTER", "KEYSLOT", key]).trim().parse().ok()?;
        let nodes = alive.ask(&["CLUSTER", "NODES"]);
        let owner = nodes.lines().find(|line| {
            let slots = line.split(' ').skip(8).filter_map(|range| {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                Some((from.parse::<u16>().ok()?, to.parse::<u16>().ok()?))
            });
            line.contains("master")
                && !line.contains("fail")
                && slots.into_iter().any(|(a, b)| (a..=b).contains(&slot))
        });
        let port = owner.and_then(|line| {
            line.split(' ').nth(1)?.split('@').next()?.rsplit(':').next()?.parse::<u16>().ok()
        });
        self.servers.iter().find(|s| Some(s.port()) == port)
    }
}
