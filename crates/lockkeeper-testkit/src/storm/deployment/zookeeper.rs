//! Three servers of ZooKeeper.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::{Deployment, Fault};
use crate::server::zookeeper::Ensemble;

/// Twice the usual lease of a storm: a session vouches for half of its length.
const SESSION: Duration = Duration::from_secs(4);

/// An ensemble of three.
#[derive(Debug)]
pub struct Zookeeper(Ensemble);

impl Zookeeper {
    /// Starts it.
    pub fn start() -> Self {
        Self(Ensemble::three())
    }

    fn restart(&self, n: usize) {
        self.0[n].kill();
        self.0.serving(2);
        self.0[n].restart();
        self.0.serving(3);
    }
}

impl Deployment for Zookeeper {
    fn url(&self) -> String {
        self.0.url("storm", SESSION)
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|server| server.address()).collect()
    }

    fn faults(&self, _ttl: Duration) -> Vec<Fault<'_>> {
        // The servers free its locks before its client can learn of it.
        let closed = || {
            Fault::forgetful("session-closed", move || async move {
                self.0.close_a_session();
            })
        };
        vec![
            Fault::new("leader-killed", move || async move {
                self.restart(self.0.leader());
            }),
            Fault::new("follower-killed", move || async move {
                self.restart((self.0.leader() + 1) % 3);
            }),
            Fault::new("server-stopped", move || async move {
                let victim = &self.0[fastrand::usize(..3)];
                victim.pause();
                sleep(SESSION.mul_f64(fastrand::f64())).await;
                victim.resume();
                self.0.serving(3);
            }),
            // Twice as often as the others.
            closed(),
            closed(),
        ]
    }
}
