//! Servers with failover by sentinels.

use std::time::Duration;

use super::server::{Server, VOLATILE};
use crate::server::{eventually, eventually_within, hosts};

/// One master, two replicas and three sentinels.
#[derive(Debug)]
pub struct Sentinels {
    /// The initial master, and the replicas.
    pub servers: Vec<Server>,
    /// The sentinels that monitor them.
    pub sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts all of them, and waits until they know each other.
    ///
    /// # Panics
    /// When one does not start.
    pub fn start() -> Self {
        let master = Server::start();
        let port = master.port();
        Self::watching(master, port)
    }

    /// The same, with a master that sentinels and clients reach at another port.
    ///
    /// # Panics
    /// When one does not start.
    pub fn watching(master: Server, watched: u16) -> Self {
        let port = master.port().to_string();
        let replica = || {
            let following =
                ["--replicaof", "127.0.0.1", port.as_str(), "--repl-diskless-sync-delay", "0"];
            Server::with(&[&VOLATILE[..], &following].concat())
        };
        let servers = vec![master, replica(), replica()];
        eventually("both replicas follow", || {
            let info = servers[0].ask(&["INFO", "replication"]);
            (info.matches("state=online").count() == 2).then_some(()).ok_or(info)
        });
        let sentinels: Vec<_> = (0..3).map(|_| Self::sentinel(watched)).collect();
        eventually("the sentinels know each other and the replicas", || {
            let known: Vec<_> = sentinels
                .iter()
                .map(|sentinel| sentinel.ask(&["SENTINEL", "CKQUORUM", "main"]))
                .chain(sentinels.iter().map(|s| {
                    let replicas =
                        s.ask(&["SENTINEL", "REPLICAS", "main"]).matches("runid").count();
                    format!("OK 3 usable, {replicas} replicas")
                }))
                .collect();
            let ready = known.iter().all(|answer| answer.starts_with("OK 3"))
                && known[3..].iter().all(|answer| answer.contains("2 replicas"));
            ready.then_some(()).ok_or(format!("{known:?}"))
        });
        Self { servers, sentinels }
    }

    fn sentinel(master: u16) -> Server {
        Server::sentinel(&format!(
            "sentinel monitor main 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 4000\n"
        ))
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/main", hosts(&self.sentinels))
    }

    /// The server that is the master now.
    ///
    /// After failovers in quick succession, sentinels may name a replica; they take half a minute
    /// to notice.
    ///
    /// # Panics
    /// When there is none for a minute.
    pub fn master(&self) -> &Server {
        let mut master = None;
        eventually_within(Duration::from_secs(60), "there is a master", || {
            let named = self.named();
            master = named.filter(|server| server.ask(&["ROLE"]).starts_with("master"));
            let port = || named.map_or_else(String::new, |server| server.port().to_string());
            master.map(drop).ok_or_else(|| format!("{} is named", port()))
        });
        master.expect("it was found")
    }

    /// The server that the first sentinel names, which may be a replica.
    pub fn named(&self) -> Option<&Server> {
        let answer = self.sentinels[0].ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        let port = answer.lines().nth(1)?.trim().parse::<u16>().ok()?;
        self.servers.iter().find(|server| server.port() == port)
    }
}
