//! Three members of etcd.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::{Deployment, Fault};
use crate::proxy::{Proxy, Way};
use crate::server::etcd::Servers;

/// A cluster of three.
#[derive(Debug)]
pub struct Etcd {
    servers: Servers,
    /// In front of each member, for the others.
    peers: Vec<Proxy>,
}

impl Etcd {
    /// Starts it.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start() -> Self {
        let mut peers = Vec::new();
        let servers = Servers::advertised(3, &[], |own| {
            let proxy = Proxy::start_now(own);
            let address = proxy.address();
            peers.push(proxy);
            address
        });
        Self { servers, peers }
    }

    /// The others do not hear from one member, which hears from them; or no member hears from
    /// another. For up to a lease and a half.
    async fn partition(&self, ttl: Duration) {
        let one = fastrand::usize(..3);
        let cut = if fastrand::bool() { &self.peers[..] } else { &self.peers[one..=one] };
        for proxy in cut {
            proxy.hold(Way::ToServer);
            proxy.hold(Way::ToClient);
        }
        sleep(ttl.mul_f64(1.5 * fastrand::f64())).await;
        for proxy in cut {
            proxy.heal().await;
        }
    }

    fn restart(&self, n: usize) {
        self.servers[n].kill();
        self.servers[n].restart();
    }

    /// Stops a member for up to a lease and a half.
    async fn stop(&self, n: usize, ttl: Duration) {
        self.servers[n].pause();
        sleep(ttl.mul_f64(1.5 * fastrand::f64())).await;
        self.servers[n].resume();
    }
}

impl Deployment for Etcd {
    fn url(&self) -> String {
        self.servers.url("")
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|member| member.address()).collect()
    }

    fn faults(&self, ttl: Duration) -> Vec<Fault<'_>> {
        vec![
            Fault::new("leader-killed", move || async move {
                self.restart(self.servers.leader());
            }),
            Fault::new("member-killed", move || async move {
                self.restart(fastrand::usize(..3));
            }),
            Fault::new("leader-stopped", move || self.stop(self.servers.leader(), ttl)),
            Fault::new("member-stopped", move || self.stop(fastrand::usize(..3), ttl)),
            Fault::new("partition", move || self.partition(ttl)),
            Fault::new("history-compacted", move || async move {
                let status = self.servers.ctl(&["get", "none", "-w", "fields"]);
                let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
                // Nothing to compact is refused.
                let revision = revision.unwrap_or("0");
                let _ = self.servers.ctl_command(&["compact", revision]).output();
            }),
        ]
    }
}
