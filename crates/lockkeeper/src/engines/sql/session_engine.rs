//! Locks that the server itself holds for a connection: what such strategies share.
//!
//! Each claim has its own connection. It waits blocked in the server, and holds as long as the
//! connection lives. A heartbeat vouches for that, and the server is configured to end a session
//! after a silence of the length of a lease. In any doubt the connection is closed: asking twice on
//! one connection would count twice, and a lock is never assumed.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::error::{failed, is_refusal};
use super::session_claim::SessionClaim;
use super::session_lock::{Ask, Looked, SessionLock, Taken};
use super::sessions::{Dialect, Session, Sessions, within};
use super::yielding::{self, Asked};
use super::{ASKED, STATEMENT, broken, fence, schema};
use crate::core::clock::Moment;
use crate::engine::{
    Break, Breaker, Claim, Engine, Entry, Finding, Guarantees, Held, Lease, Mode, Query, Renewal,
    Request, Signal, Snapshot, YieldRequest,
};
use crate::error::{Error, Result};
use crate::key::Key;

/// How many connections are kept for later claims.
const SPARE: usize = 8;

/// A claim on a key that this connection found busy waits in the server at once, instead of after a
/// try, this often.
const WITHOUT_A_TRY: u32 = 16;

/// A connection that was used this recently is alive, as far as anybody can know.
const RECENT: Duration = Duration::from_secs(1);

/// The engine of one kind of session lock.
#[derive(Debug)]
pub(crate) struct SessionEngine<H: SessionLock> {
    shared: Arc<Shared<H>>,
}

pub(super) struct Shared<H: SessionLock> {
    pub(super) sessions: Sessions<H::Wire>,
    spare: Mutex<Vec<Dedicated<H::Wire>>>,
}

/// A connection of one claim.
pub(crate) struct Dedicated<W> {
    pub(crate) wire: W,
    pub(crate) session: Session,
    /// After how much silence the server ends it, if that was configured.
    silence: Option<Duration>,
    /// When it was last used.
    used: Instant,
    /// A key that it found busy, and how many of the next claims on it wait without a try.
    busy: Option<(Key, u32)>,
}

/// A connection, and the server's answer on it.
pub(super) type Answered<H> = (Dedicated<<H as SessionLock>::Wire>, sqlx::Result<Taken>);

/// A held lock. Its connection is closed once there was any doubt about it.
pub(super) struct Kept<H: SessionLock> {
    pub(super) ask: Ask,
    pub(super) connection: AsyncMutex<Option<Dedicated<H::Wire>>>,
}

/// Kept with a grant, for the heartbeat.
pub(super) struct SessionHeld<H: SessionLock> {
    pub(super) kept: Arc<Kept<H>>,
    pub(super) shared: Arc<Shared<H>>,
    pub(super) asked: Asked,
}

impl<H: SessionLock> Held for SessionHeld<H> {
    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        let (asked, shared) = (self.asked.clone(), self.shared.clone());
        Some(Box::pin(async move {
            loop {
                if let Ok(Some(request)) = asked.request(&shared.sessions).await {
                    return request;
                }
                sleep(ASKED).await;
            }
        }))
    }
}

impl<H: SessionLock> fmt::Debug for SessionHeld<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHeld").field("key", &self.kept.ask.key).finish_non_exhaustive()
    }
}

impl<H: SessionLock> SessionEngine<H> {
    pub(crate) fn new(sessions: Sessions<H::Wire>) -> Self {
        Self { shared: Arc::new(Shared { sessions, spare: Mutex::default() }) }
    }
}

#[async_trait]
impl<H: SessionLock> Engine for SessionEngine<H> {
    fn guarantees(&self) -> Guarantees {
        H::GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let ask = Ask {
            key: request.key.clone(),
            read: request.mode == Mode::Read,
            ttl: request.ttl,
            who: request.who.clone(),
            note: request.note.as_deref().map(|note| note.replace('\0', "")),
        };
        Box::new(SessionClaim::new(self.shared.clone(), request, ask))
    }

    /// An attempt uses another connection than the release before it.
    fn ordered(&self) -> bool {
        false
    }

    /// Every connection is asked separately, all at once.
    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        let mut beats = JoinSet::new();
        let mut renewals = vec![Renewal::Gone; leases.len()];
        for (n, lease) in leases.iter().enumerate() {
            if let Some(kept) = lease.held::<SessionHeld<H>>().map(|held| held.kept.clone()) {
                beats.spawn(async move { (n, kept.beat().await) });
            }
        }
        while let Some(beat) = beats.join_next().await {
            if let Ok((n, true)) = beat {
                renewals[n] = Renewal::Renewed;
            }
        }
        Ok(renewals)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        let mut snapshots: Vec<Snapshot> = Vec::new();
        let looked = self.shared.look(query).await?;
        for seen in looked.seen {
            if snapshots.last().is_none_or(|last| last.key.as_str() != seen.key) {
                let Ok(key) = Key::new(&seen.key) else { continue };
                snapshots.push(Snapshot {
                    waiters: looked.unknown.is_none().then(Vec::new),
                    unknown: looked.unknown,
                    fence: Some(fence(seen.last)),
                    ..Snapshot::new(key)
                });
            }
            let Some(snapshot) = snapshots.last_mut() else { continue };
            match seen.holds {
                true => snapshot.holders.push(seen.entry),
                false => snapshot.waiters.get_or_insert_default().push(seen.entry),
            }
        }
        Ok(snapshots)
    }

    /// Ends the connections that hold it.
    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        let mut seen = self.shared.look(&Query::Key(key.clone())).await?.seen;
        seen.retain(|seen| seen.holds);
        let holders: Vec<_> = seen.iter().map(|seen| seen.entry.clone()).collect();
        let breaking = async {
            for holder in &seen {
                self.shared.end(&holder.session).await?;
            }
            Ok(holders.clone())
        };
        broken::recorded(&self.shared.sessions, key, by, &holders, breaking).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        broken::breaks(&self.shared.sessions).await
    }

    async fn request_yield(&self, key: &Key, asked: &YieldRequest) -> Result<Vec<Entry>> {
        let seen = self.shared.look(&Query::Key(key.clone())).await?.seen;
        let holders = seen.into_iter().filter(|seen| seen.holds).map(|seen| seen.entry);
        let (ours, others): (Vec<_>, Vec<_>) = holders.partition(|holder| holder.who.is_some());
        if ours.is_empty() && !others.is_empty() {
            return Err(Error::unsupported(
                H::GUARANTEES.engine,
                "the holder is another program, which does not listen to requests to give way; break the lock instead",
            ));
        }
        yielding::ask(&self.shared.sessions, key, &ours, asked).await?;
        Ok(ours)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        if !schema::exist(&self.shared.sessions).await? {
            return Ok(vec![schema::missing_finding::<H::Wire>()]);
        }
        H::Wire::doctor(&self.shared.sessions).await
    }

    fn disconnected(&self) -> Option<Signal> {
        Some(self.shared.sessions.disconnections.next())
    }

    async fn close(&self) {
        lock(&self.shared.spare).clear();
        self.shared.sessions.close().await;
    }
}

impl<H: SessionLock> Shared<H> {
    async fn look(&self, query: &Query) -> Result<Looked> {
        if !schema::exist(&self.sessions).await? {
            return Ok(Looked { seen: Vec::new(), unknown: None });
        }
        let mut session = self.sessions.any().await?;
        let answer = within(STATEMENT, H::look(session.wire(), query)).await;
        session.settle(answer, "look at locks")
    }

    pub(super) async fn end(&self, ended: &Session) -> Result<()> {
        let mut session = self.sessions.any().await?;
        let answer = within(STATEMENT, session.wire().end(ended)).await;
        session.settle(answer, "end a connection")
    }

    /// Asks on a connection that may have been idle for long; if it is dead, on a new one.
    pub(super) async fn take(&self, ask: &Ask) -> Result<Answered<H>> {
        schema::ensure(&self.sessions).await?;
        let spare = lock(&self.spare).pop();
        let was_idle = spare.is_some();
        let mut connection = match spare {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut answer = within(STATEMENT, connection.take::<H>(ask)).await;
        if was_idle && answer.is_err() && !is_refusal::<H::Wire>(&answer) {
            connection = self.connect().await?;
            answer = within(STATEMENT, connection.take::<H>(ask)).await;
        }
        Ok((connection, answer))
    }

    /// The connection on which the last claim released this key, if it is likely to be busy again.
    pub(super) fn contended(&self, ask: &Ask) -> Option<Dedicated<H::Wire>> {
        let mut spare = lock(&self.spare);
        let last = spare.last_mut()?;
        let same = last.silence == Some(ask.ttl) && last.used.elapsed() < RECENT;
        match &mut last.busy {
            Some((key, tries @ 1..)) if same && *key == ask.key => *tries -= 1,
            _ => return None,
        }
        spare.pop()
    }

    async fn connect(&self) -> Result<Dedicated<H::Wire>> {
        let mut wire = self.sessions.connect().await?;
        let session = within(STATEMENT, wire.session()).await;
        let session = session.map_err(|error| failed::<H::Wire>(error, "connect"))?;
        Ok(Dedicated { wire, session, silence: None, used: Instant::now(), busy: None })
    }

    pub(super) fn spare(&self, mut connection: Dedicated<H::Wire>) {
        connection.used = Instant::now();
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE {
            spare.push(connection);
        }
    }
}

impl<W: Dialect> Dedicated<W> {
    pub(super) fn expect_to_wait(&mut self, key: &Key) {
        self.busy = Some((key.clone(), WITHOUT_A_TRY));
    }

    async fn take<H: SessionLock<Wire = W>>(&mut self, ask: &Ask) -> sqlx::Result<Taken> {
        if self.silence != Some(ask.ttl) {
            H::limit(&mut self.wire, ask.ttl).await?;
            self.silence = Some(ask.ttl);
        }
        H::take(&mut self.wire, ask, false).await
    }
}

impl<H: SessionLock> Kept<H> {
    /// Whether the lock is still held. No answer in time counts as a no: the connection is closed,
    /// which makes it true.
    pub(super) async fn beat(&self) -> bool {
        let mut home = self.connection.lock().await;
        let Some(mut connection) = home.take() else { return false };
        let limit = (self.ask.ttl / 3).clamp(Duration::from_secs(1), STATEMENT);
        match within(limit, H::beat(&mut connection.wire, &self.ask)).await {
            Ok(true) => {
                *home = Some(connection);
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::debug!(key = %self.ask.key, %error, "a lock's connection is gone");
                false
            }
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics under this lock")
}

impl<H: SessionLock> fmt::Debug for Shared<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}
