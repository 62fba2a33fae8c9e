//! Three members of etcd.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::{Deployment, Fault};
use crate::server::etcd::Servers;

/// A cluster of three.
#[derive(Debug)]
pub struct Etcd(Servers);

impl Etcd {
    /// Starts it.
    pub fn start() -> Self {
        Self(Servers::start(3))
    }

    fn restart(&self, n: usize) {
        self.0[n].kill();
        self.0[n].restart();
    }

    /// Stops a member for up to a lease and a half.
    async fn stop(&self, n: usize, ttl: Duration) {
        self.0[n].pause();
        sleep(ttl.mul_f64(1.5 * fastrand::f64())).await;
        self.0[n].resume();
    }
}

impl Deployment for Etcd {
    fn url(&self) -> String {
        self.0.url("")
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|member| member.address()).collect()
    }

    fn faults(&self, ttl: Duration) -> Vec<Fault<'_>> {
        vec![
            Fault::new("leader-killed", move || async move {
                self.restart(self.0.leader());
            }),
            Fault::new("member-killed", move || async move {
                self.restart(fastrand::usize(..3));
            }),
            Fault::new("leader-stopped", move || self.stop(self.0.leader(), ttl)),
            Fault::new("member-stopped", move || self.stop(fastrand::usize(..3), ttl)),
            Fault::new("history-compacted", move || async move {
                let status = self.0.ctl(&["get", "none", "-w", "fields"]);
                let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
                // Nothing to compact is refused.
                let revision = revision.unwrap_or("0");
                let _ = self.0.ctl_command(&["compact", revision]).output();
            }),
        ]
    }
}
