//! The session of a client, to which all its nodes are bound.
//!
//! A session that has expired is dead for good, and so is everything it held; the next acquire
//! creates a new one. A session that moves to another server in time keeps its locks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use zookeeper_client as zk;

use super::error::{NAME, failed};
use super::settings::Settings;
use crate::core::acquire::CALL_LIMIT;
use crate::core::clock::{Clock, Moment};
use crate::engines::disconnections::Disconnections;
use crate::error::{Error, Result};

/// How often all servers are tried before connecting fails.
const PASSES: usize = 4;

/// How much of a request a renewal uses: servers disconnect a client that sends more than `jute.maxbuffer`,
/// 1 MB by default.
pub(super) const PACKET: usize = 256 * 1024;

/// A session, alive or not.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) zk: zk::Client,
    /// The latest contacts with its servers, the newest last.
    contacts: Mutex<VecDeque<Contact>>,
}

/// A request that a server of the session answered: it was received between these two moments.
#[derive(Debug, Clone, Copy)]
struct Contact {
    asked: Moment,
    answered: Moment,
    /// Whether the leader itself received it.
    by_leader: bool,
}

/// How many of them are kept: more than fit into the length of a session.
const MEMORY: usize = 24;

impl Session {
    async fn open(settings: &Settings, disconnections: &Disconnections) -> Result<Arc<Self>> {
        let mut asked = Clock::System.now();
        let mut zk = connect(settings, settings.session).await?;
        let granted = zk.session_timeout();
        if granted != settings.session {
            // The client derives its heartbeat interval, and when to leave a silent server, from
            // the requested length.
            asked = Clock::System.now();
            zk = connect(settings, granted).await?;
        }
        let opened = Contact { asked, answered: Clock::System.now(), by_leader: true };
        let session = Arc::new(Self { zk, contacts: Mutex::new(VecDeque::from([opened])) });
        tokio::spawn(listen(Arc::downgrade(&session), session.length() / 16));
        tokio::spawn(report(session.zk.state_watcher(), disconnections.clone()));
        Ok(session)
    }

    /// How long the servers keep it without a request or a heartbeat.
    pub(super) fn length(&self) -> Duration {
        self.zk.session_timeout()
    }

    /// For how long, from `asked` on, a confirmed write that was sent after `asked` vouches for the
    /// session.
    ///
    /// Only the leader expires sessions, when it has had no sign of life for the length of the
    /// session. A write alone is not one: a server reports its contacts to the leader every half
    /// tick, which is a quarter of the shortest session, and may be cut off before it does. So the
    /// write vouches for half of the length, and for no more than what is left since the last
    /// contact that was certainly reported. That matters only to a process that was stopped for a
    /// while; any other has had a contact in time.
    ///
    /// # Errors
    /// If that is too short to be useful. The error passes with the next report to the leader.
    pub(super) fn vouched(&self, asked: &Moment) -> Result<Duration> {
        let vouched = vouched(self.length(), self.contacts().iter(), asked);
        if vouched < self.length() / 4 {
            let why = "this process was stopped, and its session may be about to expire";
            return Err(Error::unreachable(NAME, "vouch for a lock".to_owned(), why));
        }
        Ok(vouched)
    }

    fn contacts(&self) -> MutexGuard<'_, VecDeque<Contact>> {
        self.contacts.lock().expect("nothing panics under this lock")
    }

    /// Whether it expired or was closed.
    pub(super) fn is_over(&self) -> bool {
        self.zk.state().is_terminated()
    }

    /// Resolves when it has expired or was closed.
    pub(super) async fn over(&self) {
        let mut states = self.zk.state_watcher();
        while !states.state().is_terminated() {
            states.changed().await;
        }
    }
}

async fn connect(settings: &Settings, session: Duration) -> Result<zk::Client> {
    let servers = settings.servers();
    let doing = || format!("open a session at {servers}");
    let connecting = async {
        // All servers are tried once each; a busy one may need more than its timeout.
        for _ in 1..PASSES {
            match settings.connector(session).connect(&servers).await {
                Err(zk::Error::NoHosts) => {}
                connected => return connected,
            }
        }
        settings.connector(session).connect(&servers).await
    };
    match timeout(CALL_LIMIT, connecting).await {
        Ok(connected) => connected.map_err(failed(doing())),
        Err(_) => Err(Error::unreachable(NAME, doing(), "no answer")),
    }
}

/// Sends a request now and then, and records the answers, as long as the session is used.
///
/// It neither waits for an answer before the next request, nor keeps the session open meanwhile.
async fn listen(session: Weak<Session>, pace: Duration) {
    loop {
        sleep(pace).await;
        let asked = Clock::System.now();
        let answer = match session.upgrade() {
            Some(session) if !session.is_over() => session.zk.check_stat("/"),
            _ => return,
        };
        let session = session.clone();
        tokio::spawn(async move {
            if answer.await.is_ok()
                && let Some(session) = session.upgrade()
            {
                let mut contacts = session.contacts();
                if contacts.len() == MEMORY {
                    contacts.pop_front();
                }
                contacts.push_back(Contact {
                    asked,
                    answered: Clock::System.now(),
                    by_leader: false,
                });
            }
        });
    }
}

/// Reports when the session has no server, until it ends.
async fn report(mut states: zk::StateWatcher, disconnections: Disconnections) {
    let mut state = states.state();
    while !state.is_terminated() {
        state = states.changed().await;
        if state == zk::SessionState::Disconnected {
            disconnections.report();
        }
    }
}

/// What is left of a session at a moment, and at most half of it; see [`Session::vouched`].
fn vouched<'a>(
    length: Duration,
    contacts: impl Iterator<Item = &'a Contact>,
    now: &Moment,
) -> Duration {
    let is_reported = |contact: &&Contact| now.since(&contact.answered) >= length / 4;
    let reported = contacts.filter(|contact| contact.by_leader || is_reported(contact));
    let last = reported.map(|contact| now.since(&contact.asked)).min();
    last.map_or(Duration::ZERO, |age| length.saturating_sub(age).min(length / 2))
}

/// Access to the current session.
#[derive(Debug)]
pub(super) struct Sessions {
    settings: Settings,
    pub(super) disconnections: Disconnections,
    current: Mutex<Option<Arc<Session>>>,
    /// Locked while a new one is created, so that many callers create only one.
    making: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(super) async fn connect(settings: Settings) -> Result<Self> {
        let disconnections = Disconnections::default();
        let session = Session::open(&settings, &disconnections).await?;
        let current = Mutex::new(Some(session));
        Ok(Self { settings, disconnections, current, making: Default::default() })
    }

    /// The session, or a new one if it has ended.
    pub(super) async fn get(&self) -> Result<Arc<Session>> {
        if let Some(session) = self.alive() {
            return Ok(session);
        }
        let _making = self.making.lock().await;
        if let Some(session) = self.alive() {
            return Ok(session);
        }
        let session = Session::open(&self.settings, &self.disconnections).await?;
        tracing::info!(session = %session.zk.session_id(), "a new session");
        *self.current() = Some(session.clone());
        Ok(session)
    }

    /// How long the servers keep the session, or the length that will be requested.
    pub(super) fn length(&self) -> Duration {
        self.current().as_ref().map_or(self.settings.session, |session| session.length())
    }

    /// Ends the session, and waits until the servers have confirmed that.
    pub(super) async fn close(&self) {
        let Some(session) = self.current().take() else { return };
        let mut states = session.zk.state_watcher();
        // It is closed when its last user drops it.
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

    #[tokio::test]
    async fn a_write_vouches_for_less_after_the_process_was_stopped() {
        let servers = spawn_blocking(Ensemble::single).await.expect("a server can be started");
        let length = Duration::from_secs(4);
        let url = servers.url("stopped", length);
        let engine = super::super::open(url.parse().unwrap()).await.unwrap();
        let session = engine.shared.sessions.get().await.unwrap();
        let vouched = || session.vouched(&Clock::System.now());
        // While the process runs, half of it is always left.
        let started = tokio::time::Instant::now();
        while started.elapsed() < length {
            assert_eq!(vouched().unwrap(), length / 2);
            sleep(Duration::from_millis(20)).await;
        }
        // Everything in this process is stopped.
        std::thread::sleep(length * 5 / 8);
        let left = vouched().unwrap();
        assert!(left <= length * 3 / 8, "{left:?} are more than what is left");
        std::thread::sleep(length / 4);
        assert!(vouched().is_err(), "nearly nothing is left");
        let again = async {
            while vouched().ok() != Some(length / 2) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(length * 4, again).await.expect("the leader has a report again");
    }

    #[test]
    fn a_follower_that_is_cut_off_takes_along_what_it_did_not_report() {
        let length = Duration::from_secs(8);
        let now = Clock::System.now();
        let contact = |asked, answered, by_leader| Contact {
            asked: now.before(Duration::from_secs(asked)),
            answered: now.before(Duration::from_secs(answered)),
            by_leader,
        };
        let left = |all: &[Contact]| vouched(length, all.iter(), &now).as_secs();
        // Contacts older than a quarter were reported to the leader.
        assert_eq!(left(&[contact(3, 3, false), contact(1, 1, false)]), 4);
        assert_eq!(left(&[contact(6, 6, false), contact(1, 1, false)]), 2);
        // The answer counts for the report, the request for the age.
        assert_eq!(left(&[contact(7, 7, false), contact(5, 1, false)]), 1);
        assert_eq!(left(&[contact(7, 7, false), contact(5, 2, false)]), 3);
        assert_eq!(left(&[contact(9, 9, false), contact(1, 1, false)]), 0);
        assert_eq!(left(&[contact(1, 0, true)]), 4);
        assert_eq!(left(&[]), 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_closed_session_takes_its_locks_with_it_and_is_replaced() {
        let servers = spawn_blocking(Ensemble::single).await.expect("a server can be started");
        let url = servers.url("closed", Duration::from_secs(10));
        let engine = super::super::open(url.parse().unwrap()).await.unwrap();
        let shared = engine.shared.clone();
        let client = Client::new(engine);
        let guard = client.mutex("key").acquire().await.unwrap();
        let session = shared.sessions.get().await.unwrap();
        let mut lost = Box::pin(guard.lost());
        let loss = loop {
            // To the server, both are the same session: one moves it here, the other one back,
            // until the end of the one here ends both.
            let connector = zk::Client::connector().with_session(session.zk.session().clone());
            drop(connector.connect(&servers.hosts()).await);
            if let Ok(loss) = timeout(Duration::from_millis(300), &mut lost).await {
                break loss;
            }
        };
        // The servers may tell the end of the node before that of the session.
        assert!(matches!(loss, Loss::Disconnected(_) | Loss::Gone), "{loss:?}");
        assert!(guard.check().is_err());
        let again = client.mutex("key").acquire().await.unwrap();
        assert!(again.fence() > guard.fence());
        let next = shared.sessions.get().await.unwrap();
        assert_ne!(next.zk.session_id(), session.zk.session_id());
    }
}
