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

/// A session, alive or not.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) zk: zk::Client,
}

impl Session {
    async fn open(settings: &Settings) -> Result<Self> {
        let servers = settings.servers();
        let doing = || format!("open a session at {servers}");
        let connecting = settings.connector().connect(&servers);
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
