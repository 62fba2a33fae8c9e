//! One of the servers: what it is asked, how long it may take, and what it is still owed.
//!
//! A server that kept us waiting is left alone for as long as an answer may take, so that a dead one
//! costs nothing. What could not be given back to it is given back when it is next heard of.
//!
//! Easy to get wrong: a claim's steps on one server happen in their order, also when nobody waits for
//! an earlier one any more. So each claim has a [`Seat`] per server, which is locked for every step;
//! only a release is sent ahead, because nothing that comes later may overtake it.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{FromRedisValue, Value};
use tokio::time::{Instant, timeout};

use crate::core::clock::Clock;
use crate::engine::{Claim, Lease, Mode, Released, Renewal, Request};
use crate::error::{Error, Result};

use super::NAME;
use super::rw_claim::{Counter, RwClaim};
use super::settings::Settings;
use crate::engines::redis::claim::{RedisClaim, entry, life, millis};
use crate::engines::redis::connection::{Call, Connection};
use crate::engines::redis::error::{garbage, sort};
use crate::engines::redis::script::CONFIRM;
use crate::engines::redis::settings::Settings as Own;
use crate::engines::redis::topology::Topology;
use crate::engines::redis::{Store, renew};

/// How many leases are renewed within one time limit.
const RENEWED_AT_ONCE: usize = 2000;

/// How long a writer's wish lasts beyond one answer: some tries of the writer, which each renew it.
const WISH: Duration = Duration::from_millis(500);

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    name: String,
    link: Arc<Connection>,
    store: Arc<Store>,
    settings: Settings,
    /// Until when it is left alone.
    resting: Mutex<Option<Instant>>,
    debts: Mutex<Vec<Debt>>,
}

/// Something that this server may still hold for nobody, until it runs out by itself.
#[derive(Debug)]
struct Debt {
    seat: Arc<Seat>,
    until: Instant,
}

/// One claim's part at one server.
#[derive(Debug)]
pub(super) struct Seat {
    request: Request,
    state: tokio::sync::Mutex<State>,
    /// Whether a renewal takes the lock here just now.
    filling: AtomicBool,
    /// The counter that the server had when we last heard of it. It stays as long as we read there.
    counter: AtomicU64,
}

#[derive(Debug)]
struct State {
    part: Part,
    /// Whether nothing was asked since the last time that all was given back.
    clean: bool,
    held: bool,
    /// Whether the claim is over, and nothing may be taken in its name.
    closed: bool,
}

/// What a claim does at a server: mutexes are the Redis engine's own.
#[derive(Debug)]
enum Part {
    Alone(RedisClaim),
    Shared(RwClaim),
}

/// What a server says to a claim.
#[derive(Debug)]
pub(super) enum Vote {
    /// It is ours there, with this counter.
    Granted(Counter),
    /// Somebody else has it.
    Busy,
    /// Nobody can have it: something else is there, or the request makes no sense.
    Refused(Error),
    /// It did not answer, or has no vote.
    Silent(Error),
}

impl Node {
    pub(super) fn new(name: String, servers: Topology, own: Own, settings: Settings) -> Self {
        let Topology::One(link) = servers else {
            unreachable!("the URL of one server leads to one server")
        };
        let servers = Topology::One(link.clone());
        Self {
            name,
            store: Arc::new(Store { servers, settings: own, sharded: false }),
            link,
            settings,
            resting: Mutex::default(),
            debts: Mutex::default(),
        }
    }

    /// Its address.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Where its locks are kept.
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// A claim's part here.
    pub(super) fn seat(&self, request: &Request) -> Arc<Seat> {
        // A lock here belongs to one claim, whoever its owner is, and there is no line to stand in.
        let queue = request.queue && request.mode == Mode::Write;
        let request = Request { fair: false, owner: None, queue, ..request.clone() };
        let (store, wanted) = (self.store.clone(), request.clone());
        let part = match request.mode {
            Mode::Read | Mode::Write => {
                Part::Shared(RwClaim::new(store, wanted, WISH + self.settings.node_timeout))
            }
            _ => Part::Alone(RedisClaim::new(store, wanted)),
        };
        let state = State { part, clean: true, held: false, closed: false };
        Arc::new(Seat {
            request,
            state: tokio::sync::Mutex::new(state),
            filling: AtomicBool::new(false),
            counter: AtomicU64::new(0),
        })
    }

    /// Whether it answers at all.
    pub(super) async fn ping(self: Arc<Self>) -> Result<()> {
        let ping = async {
            self.link.command(&redis::cmd("PING")).await.map_err(|error| sort("connect", error))
        };
        self.within(ping).await.map(drop)
    }

    /// Takes the lock here; with a fence, for a claim that a majority has let in with it.
    pub(super) async fn vote(self: Arc<Self>, seat: Arc<Seat>, fence: Option<u64>) -> Vote {
        let mut state = seat.state.lock().await;
        let state = &mut *state;
        if state.closed {
            return Vote::Busy;
        }
        let voted = self.within(async {
            state.clean = false;
            let granted = state.part.attempt(fence).await?;
            state.held = granted.is_some();
            seat.counter.store(granted.map_or(0, |told| told.fence), Ordering::SeqCst);
            // Asked after the grant: a server that restarted in between shows it.
            if granted.is_some() {
                self.check_age().await?;
            }
            Ok(granted)
        });
        match voted.await {
            Ok(Some(told)) => Vote::Granted(told),
            Ok(None) => Vote::Busy,
            Err(error @ (Error::Conflict { .. } | Error::Config(_))) => Vote::Refused(error),
            Err(error) => Vote::Silent(error),
        }
    }

    /// Takes the lock here for a claim that holds it elsewhere, unless it is over.
    pub(super) async fn fill(self: Arc<Self>, seat: Arc<Seat>, fence: u64) {
        seat.filling.store(true, Ordering::SeqCst);
        self.vote(seat.clone(), Some(fence)).await;
        seat.filling.store(false, Ordering::SeqCst);
    }

    /// Raises the counter under a lock that is ours here. Answers the counter that is there then;
    /// `None` where the lock is not ours.
    pub(super) async fn confirm(
        self: Arc<Self>,
        seat: Arc<Seat>,
        lease: Arc<Lease>,
        fence: u64,
    ) -> Result<Option<u64>> {
        let state = seat.state.lock().await;
        if !state.held {
            return Ok(None);
        }
        let names = self.store.names(&lease.key);
        let (token, fence) = (lease.token.to_string(), fence.to_string());
        let field = entry(&token, &token, lease.mode);
        let (keys, life) = ([names.lock().to_owned(), names.state()], millis(life(lease.ttl)));
        let args = [field.as_str(), &fence, &life, &names.stem()];
        let call = Call { script: &CONFIRM, keys: &keys, args: &args, hinted: false, replicas: 0 };
        let doing = "agree on a fence";
        let answer = self.within(async {
            let reply = self.link.call(call).await.map_err(|error| sort(doing, error))?;
            match reply.value {
                Value::Int(there) => Ok(u64::try_from(there).ok()),
                other => Err(garbage(doing, &other)),
            }
        });
        let there = answer.await?;
        seat.counter.store(there.unwrap_or(0), Ordering::SeqCst);
        Ok(there)
    }

    /// Gives back whatever the claim has or may have here. True if it had the lock until now.
    ///
    /// With `last`, nothing is taken in its name any more.
    pub(super) async fn let_go(
        self: Arc<Self>,
        seat: Arc<Seat>,
        ttl: Duration,
        last: bool,
    ) -> Result<bool> {
        let mut is_told = false;
        let mut state = match seat.state.try_lock() {
            Ok(state) => state,
            // It may not even have asked yet.
            Err(_) if seat.filling.load(Ordering::SeqCst) => seat.state.lock().await,
            Err(_) => {
                // An answer is still awaited. The release does not wait for it: it goes the same way
                // and arrives after the question, and before whatever is asked next.
                let mut unsure = Part::unsure(self.store.clone(), seat.request.clone());
                is_told = self.within(unsure.release()).await.is_ok();
                seat.state.lock().await
            }
        };
        state.closed |= last;
        if state.clean {
            return Ok(false);
        }
        // Only a question that was answered certainly came first.
        if is_told && state.held {
            return Ok(state.cleared());
        }
        let released = self.within(state.part.release()).await;
        match released {
            Ok(released) => Ok(state.cleared() && released != Released::AlreadyGone),
            Err(error) => {
                let now = Instant::now();
                let mut debts = self.debts();
                debts.retain(|debt| debt.until > now);
                debts.push(Debt { seat: seat.clone(), until: now + ttl });
                Err(error)
            }
        }
    }

    /// Extends leases.
    pub(super) async fn renew(self: Arc<Self>, leases: Arc<[Lease]>) -> Result<Vec<Renewal>> {
        let mut renewals = Vec::with_capacity(leases.len());
        for some in leases.chunks(RENEWED_AT_ONCE) {
            let renewed = self.within(async {
                let renewed = renew::renew(&self.store, some).await?;
                self.check_age().await?;
                Ok(renewed)
            });
            renewals.extend(renewed.await?);
        }
        Ok(renewals)
    }

    /// How long the server runs, and its run id.
    pub(super) async fn age(&self) -> Result<(Duration, String)> {
        let doing = "ask how long it runs";
        let info = self.link.command(redis::cmd("INFO").arg("server")).await;
        let info = info.map_err(|error| sort(doing, error))?;
        let info = String::from_redis_value(info).map_err(|error| sort(doing, error.into()))?;
        let field = |name: &str| {
            info.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        let seconds = field("uptime_in_seconds:").and_then(|seconds| seconds.parse().ok());
        match (seconds, field("run_id:")) {
            (Some(seconds), Some(id)) => Ok((Duration::from_secs(seconds), id)),
            _ => Err(Error::broken(NAME, doing, "INFO does not say")),
        }
    }

    /// Closes its connections.
    pub(super) fn close(&self) {
        self.link.close();
    }

    /// Refuses the vote of a server that may have forgotten somebody's lock.
    async fn check_age(&self) -> Result<()> {
        let Some(strict) = self.settings.strict else { return Ok(()) };
        let (age, _) = self.age().await?;
        // Whole seconds, rounded down.
        if age > strict {
            return Ok(());
        }
        let young = format!(
            "it runs for {} only, and votes after {}",
            humantime::format_duration(age),
            humantime::format_duration(strict)
        );
        Err(Error::unreachable(NAME, "count its vote", young))
    }

    /// Keeps the time limit, and keeps account of whether the server answers.
    async fn within<T>(self: &Arc<Self>, work: impl Future<Output = Result<T>>) -> Result<T> {
        let silence = |why: String| Error::unreachable(NAME, "ask", why);
        if self.resting().is_some_and(|until| Instant::now() < until) {
            return Err(silence("it did not answer a moment ago".to_owned()));
        }
        let (limit, asked) = (self.settings.node_timeout, Instant::now());
        let answer = timeout(limit, work).await.unwrap_or_else(|_| {
            Err(silence(format!("no answer within {}", humantime::format_duration(limit))))
        });
        match &answer {
            // One that says no at once costs nothing, and may be back at once.
            Err(error) if error.is_retryable() => {
                let is_slow = asked.elapsed() >= limit / 2;
                *self.resting() = is_slow.then(|| Instant::now() + limit);
            }
            _ => {
                *self.resting() = None;
                self.pay();
            }
        }
        answer
    }

    /// Gives back what it could not be told before.
    fn pay(self: &Arc<Self>) {
        let debts = std::mem::take(&mut *self.debts());
        if debts.is_empty() {
            return;
        }
        let node = self.clone();
        tokio::spawn(async move {
            for debt in debts {
                let mut state = debt.seat.state.lock().await;
                if state.clean || debt.until <= Instant::now() {
                    continue;
                }
                match timeout(node.settings.node_timeout, state.part.release()).await {
                    Ok(Ok(_)) => drop(state.cleared()),
                    _ => {
                        drop(state);
                        node.debts().push(debt);
                    }
                }
            }
        });
    }

    fn resting(&self) -> MutexGuard<'_, Option<Instant>> {
        self.resting.lock().expect("nothing panics under this lock")
    }

    fn debts(&self) -> MutexGuard<'_, Vec<Debt>> {
        self.debts.lock().expect("nothing panics under this lock")
    }
}

impl Seat {
    /// Whether the server has this counter, which stays while we hold there.
    pub(super) fn agrees(&self, fence: u64) -> bool {
        self.counter.load(Ordering::SeqCst) == fence
    }
}

impl Part {
    /// One of which it is not known what it left.
    fn unsure(store: Arc<Store>, request: Request) -> Self {
        match request.mode {
            Mode::Read | Mode::Write => Part::Shared(RwClaim::unsure(store, request)),
            _ => Part::Alone(RedisClaim::unsure(store, request)),
        }
    }

    async fn attempt(&mut self, fence: Option<u64>) -> Result<Option<Counter>> {
        match self {
            Part::Alone(ticket) => {
                // Nobody counts from this moment: the quorum grants.
                let granted = ticket.attempt(Clock::System.now()).await?;
                Ok(granted.map(|grant| Counter { fence: grant.fence.get(), clock: 0 }))
            }
            Part::Shared(stake) => stake.attempt(fence).await,
        }
    }

    async fn release(&mut self) -> Result<Released> {
        match self {
            Part::Alone(ticket) => ticket.release().await,
            Part::Shared(stake) => stake.release().await,
        }
    }
}

impl State {
    /// Notes that all was given back; true if the lock was ours.
    fn cleared(&mut self) -> bool {
        self.clean = true;
        std::mem::take(&mut self.held)
    }
}
