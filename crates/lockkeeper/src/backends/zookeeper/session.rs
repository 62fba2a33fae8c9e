//! The one session of a client: what all its nodes live and die with.
//!
//! A session that expired is dead for ever, and so is everything that was held by it; the next
//! acquire makes a new one. A session that moves to another server in time keeps its locks.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client as zk;

use super::error::{NAME, failed};
use super::settings::Settings;
use crate::engine::CALL_LIMIT;
use crate::error::{Error, Result};

/// How often all servers are tried before there is said to be none.
const PASSES: usize = 4;

/// A session, alive or not.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) zk: zk::Client,
}

impl Session {
    async fn open(settings: &Settings) -> Result<Self> {
        let servers = settings.servers();
        let doing = || format!("open a session at {servers}");
        let connecting = async {
            // All servers are tried once each; a busy one may need more than the time it is given.
            for _ in 1..PASSES {
                match settings.connector().connect(&servers).await {
                    Err(zk::Error::NoHosts) => {}
                    connected => return connected,
                }
            }
            settings.connector().connect(&servers).await
        };
        match timeout(CALL_LIMIT, connecting).await {
            Ok(connected) => Ok(Self { zk: connected.map_err(failed(doing()))? }),
            Err(_) => Err(Error::unreachable(NAME, doing(), "no answer")),
        }
    }

    /// How long a confirmed write of ours vouches for the session, from before it left.
    ///
    /// Half of the timeout that the servers granted. A follower hands heartbeats on to the leader,
    /// which alone expires sessions, at most half a tick later: a quarter of the shortest timeout.
    /// If it is cut off meanwhile, the leader counts from the heartbeat before, and the client sends
    /// those at most an eighth apart. What is left is for a process that was stopped in between.
    pub(super) fn vouched(&self) -> Duration {
        self.zk.session_timeout() / 2
    }

    /// Whether it expired or was closed.
    pub(super) fn is_over(&self) -> bool {
        self.zk.state().is_terminated()
    }

    /// Until it expired or was closed.
    pub(super) async fn over(&self) {
        let mut states = self.zk.state_watcher();
        while !states.state().is_terminated() {
            states.changed().await;
        }
    }
}

/// The way to the session of the moment.
#[derive(Debug)]
pub(super) struct Sessions {
    settings: Settings,
    current: Mutex<Option<Arc<Session>>>,
    /// Held by whoever makes a new one, so that a crowd makes only one.
    making: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(super) async fn connect(settings: Settings) -> Result<Self> {
        let session = Arc::new(Session::open(&settings).await?);
        Ok(Self { settings, current: Mutex::new(Some(session)), making: Default::default() })
    }

    /// The session, or a new one if that is over.
    pub(super) async fn get(&self) -> Result<Arc<Session>> {
        if let Some(session) = self.alive() {
            return Ok(session);
        }
        let _making = self.making.lock().await;
        if let Some(session) = self.alive() {
            return Ok(session);
        }
        let session = Arc::new(Session::open(&self.settings).await?);
        tracing::info!(session = %session.zk.session_id(), "a new session");
        *self.current() = Some(session.clone());
        Ok(session)
    }

    /// Ends the session, and waits until the servers know.
    pub(super) async fn close(&self) {
        let Some(session) = self.current().take() else { return };
        let mut states = session.zk.state_watcher();
        // It is closed when the last one who uses it lets go.
        drop(session);
        let closed = async {
            while !states.state().is_terminated() {
                states.changed().await;
            }
        };
        let _ = timeout(Duration::from_secs(1), closed).await;
    }

    fn alive(&self) -> Option<Arc<Session>> {
        self.current().clone().filter(|session| !session.is_over())
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.current.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_testkit::server::zookeeper::Ensemble;
    use tokio::task::spawn_blocking;

    use super::*;
    use crate::{Client, Loss};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_that_somebody_closed_takes_its_locks_along_and_another_one_is_made() {
        let servers = spawn_blocking(Ensemble::single).await.expect("a server can be started");
        let url = servers.url("closed", Duration::from_secs(10));
        let engine = super::super::open(url.parse().unwrap()).await.unwrap();
        let shared = engine.shared.clone();
        let client = Client::new(engine);
        let guard = client.mutex("key").acquire().await.unwrap();
        let session = shared.sessions.get().await.unwrap();
        let mut lost = Box::pin(guard.lost());
        let loss = loop {
            // Both are the same session to the server: one moves it here, the other one back, until
            // the end of the one here is the end of both.
            let connector = zk::Client::connector().with_session(session.zk.session().clone());
            drop(connector.connect(&servers.hosts()).await);
            if let Ok(loss) = timeout(Duration::from_millis(300), &mut lost).await {
                break loss;
            }
        };
        assert!(matches!(loss, Loss::Disconnected(_)), "{loss:?}");
        assert!(guard.check().is_err());
        let again = client.mutex("key").acquire().await.unwrap();
        assert!(again.fence() > guard.fence());
        let next = shared.sessions.get().await.unwrap();
        assert_ne!(next.zk.session_id(), session.zk.session_id());
    }
}
