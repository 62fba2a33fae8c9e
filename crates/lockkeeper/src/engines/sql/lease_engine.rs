//! Leases in a table, by the server's clock: what such strategies share.
//!
//! Everything about a key is decided in the database, in one transaction per request;
//! [`LeaseTable`] has the statements of a kind of database. A known token is recognised, so a
//! request whose reply was lost is repeated.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{broadcast, oneshot};
use tokio::time::{sleep, timeout};

use super::batch::Batch;
use super::error::{ServerErrors, is_refusal};
use super::lease_claim::LeaseClaim;
use super::rows::{Row, snapshots};
use super::sessions::{Borrowed, Dialect, Sessions, within};
use super::yielding::{self, Asked};
use super::{ASKED, ASKED_ANYWAY, STATEMENT, broken, schema};
use crate::core::clock::Moment;
use crate::engine::{
    Break, Breaker, Claim, Death, Engine, Entry, FenceSource, Finding, Guarantees, Held, Lease,
    Order, Query, Reentrance, Renewal, Request, Scope, Signal, Snapshot, Support, Survives, Wakeup,
    YieldRequest,
};
use crate::error::{Error, Result};
use crate::key::Key;

/// How a kind of database keeps leases.
#[async_trait]
pub(crate) trait LeaseTable: fmt::Debug + Send + Sync + 'static {
    /// The connection.
    type Wire: Dialect + fmt::Debug + 'static;

    /// What a claim remembers between its requests.
    type Memory: fmt::Debug + Send + Sync;

    /// What it promises.
    fn guarantees(&self) -> Guarantees;

    /// The memory of a claim that has not asked yet.
    fn remember(&self, ask: &LeaseAsk) -> Self::Memory;

    /// Whether [`take_all`](LeaseTable::take_all) may grant a claim, which is asked once.
    fn starts(&self, _ask: &LeaseAsk, _memory: &mut Self::Memory) -> bool {
        false
    }

    /// Grants those of these claims whose locks are free, without waiting for anything, and returns
    /// their fences by token.
    async fn take_all(
        &self,
        _wire: &mut Self::Wire,
        _asks: &[Arc<LeaseAsk>],
    ) -> sqlx::Result<HashMap<String, i64>> {
        Ok(HashMap::new())
    }

    /// What a claim remembers that was granted in this way.
    fn took(&self, _memory: &mut Self::Memory) -> Arc<dyn Held> {
        Arc::new(())
    }

    /// Whether [`free_all`](LeaseTable::free_all) may release a claim.
    fn is_alone(&self, _memory: &Self::Memory) -> bool {
        false
    }

    /// Releases those of these claims that no other waits for, without waiting for anything.
    /// Returns by token whether the claim still held.
    async fn free_all(
        &self,
        _wire: &mut Self::Wire,
        _asks: &[Arc<LeaseAsk>],
    ) -> sqlx::Result<HashMap<String, bool>> {
        Ok(HashMap::new())
    }

    /// Enters the queue if it has not yet, and asks whether the lock is granted.
    async fn attempt(
        &self,
        wire: &mut Self::Wire,
        ask: &LeaseAsk,
        memory: &mut Self::Memory,
        asked: Moment,
    ) -> sqlx::Result<Answer>;

    /// Waits until asking again may return something else.
    ///
    /// # Cancel safety
    /// May be dropped at any await.
    async fn wait(&self, memory: &Self::Memory, busy: &Busy) -> Result<()>;

    /// Removes a claim, whatever its state. False if it no longer held.
    async fn release(
        &self,
        wire: &mut Self::Wire,
        ask: &LeaseAsk,
        memory: &Self::Memory,
    ) -> sqlx::Result<bool>;

    /// Extends living leases, and returns their tokens.
    async fn renew(
        &self,
        wire: &mut Self::Wire,
        leases: &[Lease],
        tokens: &[String],
    ) -> sqlx::Result<HashSet<String>>;

    /// All claims, in the order of the keys, and of the queue within each.
    async fn rows(&self, wire: &mut Self::Wire, query: &Query) -> sqlx::Result<Vec<Row>>;

    /// Breaks a lock, and returns its holders.
    async fn break_lock(&self, wire: &mut Self::Wire, key: &Key) -> sqlx::Result<Vec<Row>>;

    /// The keys whose holders are asked to give way from now on; an empty text means that any may
    /// have been. `None` if holders cannot be notified.
    async fn requests(&self) -> Option<broadcast::Receiver<String>> {
        None
    }
}

/// A request.
pub(crate) struct LeaseAsk {
    pub(crate) request: Request,
    pub(crate) token: String,
    /// The owner, or the token of a claim without one.
    pub(crate) identity: String,
}

/// The server's answer to a claim.
pub(crate) enum Answer {
    Granted { fence: i64, slots: Vec<u32>, held: Arc<dyn Held> },
    Busy { pause: Option<i64>, ahead: i64 },
    Clash(String),
}

/// What blocks a claim.
#[derive(Debug)]
pub(crate) struct Busy {
    /// How long until a blocking lease could expire, of which we would not be notified; zero if
    /// only a guarded transaction blocks us.
    pub(crate) pause: Duration,
    /// How many claims are ahead, if the server counts them.
    pub(crate) ahead: i64,
    /// How often we have polled since that number last fell.
    pub(crate) looks: u32,
}

/// The engine of one kind of table.
#[derive(Debug)]
pub(crate) struct LeaseEngine<T: LeaseTable> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
pub(super) struct Shared<T: LeaseTable> {
    pub(super) sessions: Sessions<T::Wire>,
    pub(super) table: T,
    /// What waits for each connection.
    pub(super) takes: Vec<Batch<i64>>,
    pub(super) frees: Vec<Batch<bool>>,
}

impl<T: LeaseTable> LeaseEngine<T> {
    pub(crate) fn new(sessions: Sessions<T::Wire>, table: T) -> Self {
        let takes = (0..sessions.connections()).map(|_| Batch::new()).collect();
        let frees = (0..sessions.connections()).map(|_| Batch::new()).collect();
        Self { shared: Arc::new(Shared { sessions, table, takes, frees }) }
    }
}

impl<T: LeaseTable> Shared<T> {
    /// Sends a request together with others that wait for the same connection. Without an answer, the
    /// connection is returned for the next request.
    pub(super) async fn together<A>(
        &self,
        batches: &[Batch<A>],
        ask: &Arc<LeaseAsk>,
        doing: &'static str,
    ) -> Result<(Option<A>, Option<Borrowed<'_, T::Wire>>)> {
        let key = &ask.request.key;
        let at = self.sessions.place_of(key);
        // On its way from the first poll on: a release is sent no later than the next claim.
        let mut answer = batches[at].enter(ask);
        let unsent = || {
            let failed = "the connection failed with which it was sent";
            Error::unreachable(T::Wire::ENGINE, doing, failed)
        };
        let mut session = tokio::select! {
            biased;
            answered = &mut answer => return Ok((answered.map_err(|_| unsent())?, None)),
            session = self.sessions.of(key) => session?,
        };
        loop {
            match answer.try_recv() {
                Ok(None) => return Ok((None, Some(session))),
                Ok(answered) => return session.settle(Ok((answered, None)), doing),
                Err(oneshot::error::TryRecvError::Closed) => return Err(unsent()),
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            if let Err(error) = self.send(at, session.wire()).await {
                return session.settle(Err(error), doing);
            }
        }
    }

    /// Sends all that waits for this connection.
    async fn send(&self, at: usize, wire: &mut T::Wire) -> sqlx::Result<()> {
        // In this order: the release that a claim follows is among these, or was sent before.
        let takes = self.takes[at].leave();
        let frees = self.frees[at].leave();
        if !frees.asks.is_empty() {
            let freed = within(STATEMENT, self.table.free_all(wire, &frees.asks)).await;
            let freed = each_alone::<T::Wire, _>(freed, frees.asks.len())?;
            frees.answer(freed);
        }
        if !takes.asks.is_empty() {
            let taken = within(STATEMENT, self.table.take_all(wire, &takes.asks)).await;
            let taken = each_alone::<T::Wire, _>(taken, takes.asks.len())?;
            takes.answer(taken);
        }
        Ok(())
    }
}

#[async_trait]
impl<T: LeaseTable> Engine for LeaseEngine<T> {
    fn guarantees(&self) -> Guarantees {
        self.shared.table.guarantees()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(LeaseClaim::new(self.shared.clone(), request))
    }

    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        let tokens: Vec<_> = leases.iter().map(|lease| lease.token.to_string()).collect();
        let leases: Vec<_> = leases.iter().map(LeaseHeld::<T>::of_the_table).collect();
        // A silent connection is replaced before the lease expires. Very short leases get only one
        // attempt.
        let shortest = leases.iter().map(|lease| lease.ttl).min().unwrap_or_default();
        let limit = (shortest / 6).clamp(Duration::from_secs(1), STATEMENT);
        let mut session = self.shared.sessions.for_renewals().await?;
        let renewing = self.shared.table.renew(session.wire(), &leases, &tokens);
        let answer = within(limit, renewing).await;
        let renewed = session.settle(answer, "renew leases")?;
        let renewal = |token| match renewed.contains(token) {
            true => Renewal::Renewed,
            false => Renewal::Gone,
        };
        Ok(tokens.iter().map(renewal).collect())
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        if !schema::exist(&self.shared.sessions).await? {
            return Ok(Vec::new());
        }
        let mut session = self.shared.sessions.any().await?;
        let answer = within(STATEMENT, self.shared.table.rows(session.wire(), query)).await;
        session.settle(answer, "look at locks").map(snapshots)
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        let seen = self.inspect(&Query::Key(key.clone())).await?;
        let holders: Vec<_> = seen.into_iter().flat_map(|seen| seen.holders).collect();
        let breaking = async {
            if !schema::exist(&self.shared.sessions).await? {
                return Ok(Vec::new());
            }
            let mut session = self.shared.sessions.of(key).await?;
            let breaking = self.shared.table.break_lock(session.wire(), key);
            let answer = within(STATEMENT, breaking).await;
            let broken = session.settle(answer, "break a lock")?;
            Ok(broken.into_iter().map(Row::entry).collect())
        };
        broken::recorded(&self.shared.sessions, key, by, &holders, breaking).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        broken::breaks(&self.shared.sessions).await
    }

    async fn request_yield(&self, key: &Key, asked: &YieldRequest) -> Result<Vec<Entry>> {
        let seen = self.inspect(&Query::Key(key.clone())).await?;
        let holders: Vec<_> = seen.into_iter().flat_map(|seen| seen.holders).collect();
        yielding::ask(&self.shared.sessions, key, &holders, asked).await?;
        Ok(holders)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        if !schema::exist(&self.shared.sessions).await? {
            return Ok(vec![schema::missing_finding::<T::Wire>()]);
        }
        T::Wire::doctor(&self.shared.sessions).await
    }

    fn disconnected(&self) -> Option<Signal> {
        Some(self.shared.sessions.disconnections.next())
    }

    async fn close(&self) {
        self.shared.sessions.close().await;
    }
}

/// Kept with a grant: what the table needs later, and how to check for a yield request.
#[derive(Debug)]
pub(super) struct LeaseHeld<T: LeaseTable> {
    pub(super) of_table: Arc<dyn Held>,
    pub(super) shared: Arc<Shared<T>>,
    pub(super) asked: Asked,
}

impl<T: LeaseTable> LeaseHeld<T> {
    /// The lease with what its table returned.
    fn of_the_table(lease: &Lease) -> Lease {
        let held = lease.held::<Self>().map_or(&lease.held, |held| &held.of_table);
        Lease { held: held.clone(), ..lease.clone() }
    }
}

impl<T: LeaseTable> Held for LeaseHeld<T> {
    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        let (shared, asked) = (self.shared.clone(), self.asked.clone());
        Some(Box::pin(async move {
            loop {
                // Subscribe before looking, or a request in between is missed.
                let requests = shared.table.requests().await;
                if let Ok(Some(request)) = asked.request(&shared.sessions).await {
                    return request;
                }
                match requests {
                    Some(requests) => {
                        let _ = timeout(ASKED_ANYWAY, heard(requests, &asked.key)).await;
                    }
                    None => sleep(ASKED).await,
                }
            }
        }))
    }
}

/// Resolves when the holders of a key may have been asked.
async fn heard(mut requests: broadcast::Receiver<String>, key: &Key) {
    while let Ok(asked) = requests.recv().await {
        if asked.is_empty() || asked == key.as_str() {
            return;
        }
    }
}

impl fmt::Debug for LeaseAsk {
    /// Without the token, which identifies it in the store.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

/// What a table of leases promises.
pub(crate) const fn leases(engine: &'static str, wakeup: Wakeup) -> Guarantees {
    Guarantees {
        engine,
        read_write: Support::Yes,
        semaphore: Support::Yes,
        most_permits: 100_000,
        order: Order::Fifo,
        fence: FenceSource::Hybrid,
        death: Death::Lease,
        wakeup,
        scope: Scope::Network,
        survives: Survives::Restart,
        reentrance: Reentrance::Store,
        hand_over: Support::No("its grants reserve no fences"),
        keep: Support::No("its grants reserve no fences"),
    }
}

/// If the server refuses what several requests sent together, one of them is to blame: no answer to
/// any of them, so that each asks alone and gets its own.
fn each_alone<C: ServerErrors, A>(
    answers: sqlx::Result<HashMap<String, A>>,
    asks: usize,
) -> sqlx::Result<HashMap<String, A>> {
    match is_refusal::<C>(&answers) && asks > 1 {
        true => Ok(HashMap::new()),
        false => answers,
    }
}
