//! One database server, by any of its strategies.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Deployment, Fault};
use crate::server::{DatabaseServer, Dialect};

/// Rows in the wrong order: we lock the lock's row first.
const DEADLOCK: &str = "BEGIN; SELECT token FROM lockkeeper_claim FOR UPDATE;
                        SELECT fence FROM lockkeeper_lock FOR UPDATE; COMMIT";

/// A server, and the strategy of its clients.
#[derive(Debug)]
pub struct Database<D: Dialect> {
    server: DatabaseServer<D>,
    strategy: &'static str,
    /// With the name of the database.
    url: String,
}

impl<D: Dialect> Database<D> {
    /// A server with a database of its own.
    pub fn new(server: DatabaseServer<D>, strategy: &'static str) -> Self {
        Self { url: server.url(), server, strategy }
    }

    fn name(&self) -> &str {
        self.url.rsplit('/').next().expect("it names one")
    }

    /// The result does not matter here, nor whether it is the deadlock victim.
    fn say(&self, statement: &str) {
        drop(D::client(self.server.port(), self.name(), statement).output());
    }
}

impl<D: Dialect> Deployment for Database<D> {
    fn url(&self) -> String {
        format!("{}?strategy={}", self.url, self.strategy)
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        vec![self.server.address()]
    }

    fn faults(&self, _ttl: Duration) -> Vec<Fault<'_>> {
        vec![
            Fault::new("connections-ended", move || async move {
                D::end_sessions(&self.server, self.name(), false);
            }),
            Fault::new("statements-ended", move || async move {
                D::end_sessions(&self.server, self.name(), true);
            }),
            Fault::new("server-killed", move || async move {
                self.server.kill();
                self.server.restart();
            }),
            Fault::new("server-stopped", move || async move {
                self.server.pause();
                tokio::time::sleep(Duration::from_millis(fastrand::u64(50..2500))).await;
                self.server.resume();
            }),
            Fault::new("deadlock", move || async move { self.say(DEADLOCK) }),
        ]
    }
}
