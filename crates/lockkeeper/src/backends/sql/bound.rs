//! Locks that the server itself holds for a connection: what such strategies share.
//!
//! Each claim has a connection of its own. It waits blocked in the server, and it holds for as long as
//! the connection lives; a heartbeat vouches for that, and the server is told to end a session from
//! which it hears nothing for as long as a lease. On any doubt the connection is closed: asking twice
//! on one connection would count twice, and a lock is never assumed.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;

use super::sessions::{Greet, Sessions, failed, is_refusal, within};
use super::{STATEMENT, fence, stripe};
use crate::backend::{
    Backend, Claim, Death, Entry, FenceSource, Finding, Grant, Guarantees, Lease, Mode, Order,
    Query, Reentrance, Released, Renewal, Request, Scope, Snapshot, Support, Survives, Wakeup,
};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::owner::Token;

/// Connections that are kept for the next claim.
const SPARE: usize = 8;

/// A kind of lock that a server holds for a connection.
#[async_trait]
pub(crate) trait Hold: fmt::Debug + Send + Sync + 'static {
    /// The connection.
    type Wire: Greet + 'static;

    /// What it promises.
    const GUARANTEES: Guarantees;

    /// Takes the lock.
    async fn take(wire: &mut Self::Wire, ask: &Ask, wait: bool) -> sqlx::Result<Taken>;

    /// Commits a fence for a lock that connection `number` was [given](Taken::Unfenced), on a
    /// connection apart; `None` if that one does not hold it any more.
    async fn mark(_: &mut Self::Wire, _: &Ask, _: i64) -> sqlx::Result<Option<i64>> {
        Ok(None)
    }

    /// Whether the connection is still the one that holds the lock.
    async fn beat(wire: &mut Self::Wire, ask: &Ask) -> sqlx::Result<bool>;

    /// Gives the lock back. False if it was not held.
    async fn give_back(wire: &mut Self::Wire, ask: &Ask) -> sqlx::Result<bool>;

    /// Whether [`look`](Hold::look) tells of those who wait.
    const SEES_WAITERS: bool;

    /// Who holds and who waits, in order.
    async fn look(wire: &mut Self::Wire, query: &Query) -> sqlx::Result<Vec<Seen>>;
}

/// What such a lock promises, whatever it is.
pub(crate) const fn promises(
    engine: &'static str,
    read_write: Support,
    semaphore: Support,
) -> Guarantees {
    Guarantees {
        engine,
        read_write,
        semaphore,
        order: Order::Server,
        fence: FenceSource::Hybrid,
        death: Death::Session,
        wakeup: Wakeup::Server,
        scope: Scope::Network,
        survives: Survives::None,
        reentrance: Reentrance::Client,
    }
}

/// What a connection is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    pub(crate) read: bool,
    /// After this silence the server ends the session.
    pub(crate) ttl: Duration,
    pub(crate) note: Option<String>,
}

/// A server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Busy,
    /// Ours, under this fence, which is committed.
    Fenced(i64),
    /// Ours, on a connection that cannot commit a fence without giving the lock back.
    Unfenced,
}

/// A connection that holds or waits.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) number: i64,
    pub(crate) holds: bool,
    pub(crate) last: i64,
    pub(crate) entry: Entry,
}

/// The engine of one kind of bound lock.
#[derive(Debug)]
pub(crate) struct Bound<H: Hold> {
    shared: Arc<Shared<H>>,
}

struct Shared<H: Hold> {
    sessions: Sessions<H::Wire>,
    spare: Mutex<Vec<Dedicated<H::Wire>>>,
    /// An attempt passes only after a release that was begun before it: the two use different
    /// connections, and could overtake each other. Keys that share a gate only wait a little.
    gates: [AsyncMutex<()>; 16],
    /// The connections of those who hold, for the heartbeat.
    held: Mutex<HashMap<Token, Arc<Kept<H>>>>,
}

struct Dedicated<W> {
    wire: W,
    number: i64,
}

/// A held lock. Its connection is gone once there was any doubt about it.
struct Kept<H: Hold> {
    ask: Ask,
    connection: AsyncMutex<Option<Dedicated<H::Wire>>>,
}

impl<H: Hold> Bound<H> {
    pub(crate) fn new(sessions: Sessions<H::Wire>) -> Self {
        let (spare, gates, held) = Default::default();
        Self { shared: Arc::new(Shared { sessions, spare, gates, held }) }
    }
}

#[async_trait]
impl<H: Hold> Backend for Bound<H> {
    fn guarantees(&self) -> Guarantees {
        H::GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let ask = Ask {
            key: request.key.clone(),
            read: request.mode == Mode::Read,
            ttl: request.ttl,
            note: request.note.as_deref().map(|note| note.replace('\0', "")),
        };
        Box::new(BoundClaim { shared: self.shared.clone(), request, ask, state: State::Idle })
    }

    /// Every connection is asked by itself, all at a time.
    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Renewal>> {
        let mut beats = JoinSet::new();
        let mut renewals = vec![Renewal::Gone; leases.len()];
        for (n, lease) in leases.iter().enumerate() {
            let kept = lock(&self.shared.held).get(&lease.token).cloned();
            if let Some(kept) = kept {
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
        for seen in self.shared.look(query).await? {
            if snapshots.last().is_none_or(|last| last.key.as_str() != seen.key) {
                let Ok(key) = Key::new(&seen.key) else { continue };
                let (holders, waiters) = (Vec::new(), H::SEES_WAITERS.then(Vec::new));
                snapshots.push(Snapshot { key, holders, waiters, fence: Some(fence(seen.last)) });
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
    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>> {
        let mut broken = Vec::new();
        for seen in self.shared.look(&Query::Key(key.clone())).await? {
            if seen.holds {
                self.shared.end(seen.number).await?;
                broken.push(seen.entry);
            }
        }
        Ok(broken)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        H::Wire::doctor(&self.shared.sessions).await
    }

    async fn close(&self) {
        lock(&self.shared.spare).clear();
        self.shared.sessions.close().await;
    }
}

impl<H: Hold> Shared<H> {
    async fn look(&self, query: &Query) -> Result<Vec<Seen>> {
        let mut session = self.sessions.any().await?;
        let answer = within(STATEMENT, H::look(session.wire(), query)).await;
        session.settle(answer, "look at locks")
    }

    async fn end(&self, number: i64) -> Result<()> {
        let mut session = self.sessions.any().await?;
        let answer = within(STATEMENT, session.wire().end(number)).await;
        session.settle(answer, "end a connection")
    }

    async fn mark(&self, ask: &Ask, number: i64) -> Result<Option<i64>> {
        let mut session = self.sessions.of(&ask.key).await?;
        let answer = within(STATEMENT, H::mark(session.wire(), ask, number)).await;
        session.settle(answer, "acquire a lock")
    }

    /// Asks on a connection that may have been idle for long; if that one is dead, on a new one.
    async fn take(&self, ask: &Ask) -> Result<Answered<H>> {
        let spare = lock(&self.spare).pop();
        let was_idle = spare.is_some();
        let mut connection = match spare {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let _gate = self.gate(&ask.key).lock().await;
        let mut answer = within(STATEMENT, H::take(&mut connection.wire, ask, false)).await;
        if was_idle && answer.is_err() && !is_refusal::<H::Wire>(&answer) {
            connection = self.connect().await?;
            answer = within(STATEMENT, H::take(&mut connection.wire, ask, false)).await;
        }
        Ok((connection, answer))
    }

    fn gate(&self, key: &Key) -> &AsyncMutex<()> {
        &self.gates[stripe(key, self.gates.len())]
    }

    async fn connect(&self) -> Result<Dedicated<H::Wire>> {
        let mut wire = self.sessions.connect().await?;
        let number = within(STATEMENT, wire.number()).await;
        let number = number.map_err(|error| failed::<H::Wire>(error, "connect"))?;
        Ok(Dedicated { wire, number })
    }

    fn spare(&self, connection: Dedicated<H::Wire>) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE {
            spare.push(connection);
        }
    }
}

impl<H: Hold> Kept<H> {
    /// Whether the lock is still ours. An answer that does not come in time is a no: the connection
    /// is closed, which also makes it one.
    async fn beat(&self) -> bool {
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

/// One connection on its way to a lock.
struct BoundClaim<H: Hold> {
    shared: Arc<Shared<H>>,
    request: Request,
    ask: Ask,
    state: State<H>,
}

enum State<H: Hold> {
    /// Without a connection.
    Idle,
    /// Blocked in the server. Kept here, so that nothing is lost when a wait is dropped.
    Waiting {
        number: i64,
        blocked: Blocked<H>,
    },
    /// The server answered.
    Woken(Answered<H>),
    Held {
        kept: Arc<Kept<H>>,
        fence: i64,
    },
}

type Answered<H> = (Dedicated<<H as Hold>::Wire>, sqlx::Result<Taken>);
type Blocked<H> = Pin<Box<dyn Future<Output = Answered<H>> + Send>>;

impl<H: Hold> BoundClaim<H> {
    fn block(&self, mut connection: Dedicated<H::Wire>) -> State<H> {
        let (number, ask) = (connection.number, self.ask.clone());
        let blocked = Box::pin(async move {
            let answer = H::take(&mut connection.wire, &ask, true).await;
            (connection, answer)
        });
        State::Waiting { number, blocked }
    }

    fn hold(&mut self, connection: Dedicated<H::Wire>, fence: i64) -> Grant {
        let kept = Kept { ask: self.ask.clone(), connection: AsyncMutex::new(Some(connection)) };
        let kept = Arc::new(kept);
        lock(&self.shared.held).insert(self.request.token, kept.clone());
        self.state = State::Held { kept, fence };
        self.grant(fence)
    }

    /// An answer that was waited for may be old: if we were stopped meanwhile, the server may have
    /// ended the silent connection and let the next one in.
    async fn confirm(
        &mut self,
        connection: Dedicated<H::Wire>,
        fence: i64,
        waited: bool,
    ) -> Result<Grant> {
        let grant = self.hold(connection, fence);
        if let State::Held { kept, .. } = &self.state
            && waited
            && !kept.clone().beat().await
        {
            self.forget();
            return Err(ended::<H>());
        }
        Ok(grant)
    }

    fn grant(&self, number: i64) -> Grant {
        Grant {
            fence: fence(number),
            slots: Vec::new(),
            lease: Lease::of(&self.request),
            bound: false,
            gone: None,
        }
    }

    fn forget(&mut self) -> State<H> {
        lock(&self.shared.held).remove(&self.request.token);
        std::mem::replace(&mut self.state, State::Idle)
    }
}

#[async_trait]
impl<H: Hold> Claim for BoundClaim<H> {
    async fn attempt(&mut self) -> Result<Option<Grant>> {
        if let State::Held { kept, fence } = &self.state {
            let (kept, fence) = (kept.clone(), *fence);
            if kept.beat().await {
                return Ok(Some(self.grant(fence)));
            }
            self.forget();
        }
        if let State::Waiting { blocked, .. } = &mut self.state {
            match poll_fn(|cx| Poll::Ready(blocked.as_mut().poll(cx))).await {
                Poll::Pending => return Ok(None),
                Poll::Ready(answered) => self.state = State::Woken(answered),
            }
        }
        let (answered, waited) = match std::mem::replace(&mut self.state, State::Idle) {
            State::Woken(answered) => (answered, true),
            _ => (self.shared.take(&self.ask).await?, false),
        };
        match answered {
            (connection, Ok(Taken::Fenced(fence))) => {
                self.confirm(connection, fence, waited).await.map(Some)
            }
            // If no fence can be had, the connection goes, and with it the lock.
            (connection, Ok(Taken::Unfenced)) => {
                match self.shared.mark(&self.ask, connection.number).await? {
                    Some(fence) => self.confirm(connection, fence, waited).await.map(Some),
                    None => Err(ended::<H>()),
                }
            }
            (connection, Ok(Taken::Busy)) if self.request.queue => {
                self.state = self.block(connection);
                if let State::Waiting { blocked, .. } = &mut self.state
                    && let Poll::Ready(answered) =
                        poll_fn(|cx| Poll::Ready(blocked.as_mut().poll(cx))).await
                {
                    self.state = State::Woken(answered);
                }
                Ok(None)
            }
            (connection, Ok(Taken::Busy)) => {
                self.shared.spare(connection);
                Ok(None)
            }
            // The connection goes with this, and with it whatever it may have got.
            (_, Err(error)) => Err(sort::<H>(&self.ask.key, error)),
        }
    }

    async fn wait(&mut self) -> Result<()> {
        if let State::Waiting { blocked, .. } = &mut self.state {
            let answered = blocked.await;
            self.state = State::Woken(answered);
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        match self.forget() {
            State::Idle => Ok(Released::Yes),
            // Closing the connection is enough for the server, but it may take a second to look.
            State::Waiting { number, blocked } => {
                let ended = self.shared.end(number).await;
                drop(blocked);
                ended.map(|()| Released::Yes)
            }
            State::Woken((connection, _)) => {
                let number = connection.number;
                drop(connection);
                self.shared.end(number).await.map(|()| Released::Yes)
            }
            State::Held { kept, .. } => {
                let _gate = self.shared.gate(&self.ask.key).lock().await;
                let taken = kept.connection.lock().await.take();
                let Some(mut connection) = taken else { return Ok(Released::AlreadyGone) };
                let giving = H::give_back(&mut connection.wire, &self.ask);
                match within(STATEMENT, giving).await {
                    Ok(true) => {
                        self.shared.spare(connection);
                        Ok(Released::Yes)
                    }
                    // The connection ended before we asked, and its lock with it.
                    Ok(false) | Err(sqlx::Error::Database(_)) => Ok(Released::AlreadyGone),
                    Err(sqlx::Error::Io(error)) if error.kind() != std::io::ErrorKind::TimedOut => {
                        Ok(Released::AlreadyGone)
                    }
                    // Closed now: the server frees the lock when it sees that.
                    Err(error) => Err(failed::<H::Wire>(error, "release a lock")),
                }
            }
        }
    }
}

fn ended<H: Hold>() -> Error {
    let engine = H::GUARANTEES.engine;
    Error::unreachable(engine, "acquire a lock", "its connection ended meanwhile")
}

/// A number that two keys share is the one refusal that a caller can do something about.
fn sort<H: Hold>(key: &Key, error: sqlx::Error) -> Error {
    match error.as_database_error() {
        Some(database) if database.is_unique_violation() => Error::Conflict {
            key: key.clone(),
            found: "another key has the same number on this server; choose another name".into(),
        },
        _ => failed::<H::Wire>(error, "acquire a lock"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics under this lock")
}

impl<H: Hold> fmt::Debug for Shared<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

impl<H: Hold> fmt::Debug for BoundClaim<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundClaim").field("request", &self.request).finish_non_exhaustive()
    }
}
