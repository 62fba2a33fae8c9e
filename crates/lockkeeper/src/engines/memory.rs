//! `memory:`: locks between the tasks of one process, with the behaviour of a store far away.
//!
//! It has leases, queues and fences like any other engine, so code that uses locks can be tested
//! against it, also for the day when a lock is lost: [`Memory::expire`], [`Memory::partition`],
//! [`Memory::delay`]. Its only clock is the runtime's, which tests can pause.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::Registration;
use super::yield_signal::YieldSignal;
use crate::core::admission::{self, Queued, Turn};
use crate::core::clock::{Clock, Moment};
use crate::engine::{
    Claim, Death, Engine, Entry, Fence, FenceSource, Grant, Guarantees, Lease, Mode, Order, Query,
    Reentrance, Released, Renewal, Request, Scope, Snapshot, Support, Survives, Wakeup,
};
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::owner::{Token, whoami};

/// How long a waiter that is not heard of keeps its place. Waiters ask again far more often.
const WAITER_LEASE: Duration = Duration::from_secs(15);

pub(crate) const ENGINE: Registration = Registration {
    open: |endpoint| Box::pin(open(endpoint)),
    guarantees: |endpoint| endpoint.options().finish().map(|()| GUARANTEES),
    ways: &["memory:"],
};

/// What this engine promises.
const GUARANTEES: Guarantees = Guarantees {
    engine: "memory",
    read_write: Support::Yes,
    semaphore: Support::Yes,
    most_permits: 100_000,
    order: Order::Fifo,
    fence: FenceSource::Counter,
    death: Death::Lease,
    wakeup: Wakeup::Notify,
    scope: Scope::Process,
    survives: Survives::NothingApart,
    reentrance: Reentrance::Store,
};

/// A store inside this process. Clones share it; so do connections to `memory:NAME` with one name.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    shared: Arc<Shared>,
}

impl Memory {
    /// A store of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the leases of everyone who holds the key, as if their time was up.
    ///
    /// They are not told: a holder learns of it at its next renewal, as on a real store.
    pub fn expire(&self, key: impl AsRef<str>) {
        self.shared.lock().evict(key.as_ref());
    }

    /// Cuts the store off, or joins it again. Calls hang meanwhile; what reached the store has its effect.
    pub fn partition(&self, cut: bool) {
        self.shared.link.send_modify(|link| link.cut = cut);
    }

    /// Makes every call take so long, half of it on the way there.
    pub fn delay(&self, delay: Duration) {
        self.shared.link.send_modify(|link| link.delay = delay);
    }
}

/// Opens `memory:` (a store of its own) or `memory:NAME` (one per name and process).
async fn open(endpoint: Endpoint) -> Result<Arc<dyn Engine>> {
    static NAMED: OnceLock<Mutex<HashMap<String, Weak<Shared>>>> = OnceLock::new();
    endpoint.options().finish()?;
    let name = endpoint.expose().path();
    if endpoint.expose().has_host() {
        return Err(Error::Config(
            "memory: has no host; write memory: or memory:NAME to share a store inside a process"
                .to_owned(),
        ));
    }
    if name.is_empty() {
        return Ok(Arc::new(Memory::new()));
    }
    let mut named =
        NAMED.get_or_init(Mutex::default).lock().expect("nothing panics under this lock");
    named.retain(|_, shared| shared.strong_count() > 0);
    if let Some(shared) = named.get(name).and_then(Weak::upgrade) {
        return Ok(Arc::new(Memory { shared }));
    }
    let memory = Memory::new();
    named.insert(name.to_owned(), Arc::downgrade(&memory.shared));
    Ok(Arc::new(memory))
}

#[async_trait]
impl Engine for Memory {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(MemoryClaim { shared: self.shared.clone(), request, bells: Bells::default() })
    }

    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        self.shared.travel().await;
        let renewals = {
            let mut state = self.shared.lock();
            leases.iter().map(|lease| state.renew(lease)).collect()
        };
        self.shared.travel().await;
        Ok(renewals)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        self.shared.travel().await;
        let snapshots = self.shared.lock().inspect(query);
        self.shared.travel().await;
        Ok(snapshots)
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>> {
        self.shared.travel().await;
        let broken = self.shared.lock().evict(key.as_str());
        self.shared.travel().await;
        Ok(broken)
    }

    async fn request_yield(&self, key: &Key) -> Result<Vec<Entry>> {
        self.shared.travel().await;
        let told = self.shared.lock().ask(key);
        self.shared.travel().await;
        Ok(told)
    }

    fn clock(&self) -> Clock {
        Clock::Runtime
    }
}

/// A claim on a lock in memory.
#[derive(Debug)]
struct MemoryClaim {
    shared: Arc<Shared>,
    request: Request,
    bells: Bells,
}

/// How a claim is told.
#[derive(Debug, Clone, Default)]
struct Bells {
    /// It may be its turn.
    turn: Arc<Notify>,
    /// It is asked to give way.
    asked: YieldSignal,
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        self.shared.travel().await;
        let answer = self.shared.lock().attempt(&self.request, &self.bells, asked);
        self.shared.travel().await;
        answer
    }

    async fn wait(&mut self) -> Result<()> {
        let next = self.shared.lock().next_end(&self.request.key);
        match next {
            Some(next) => tokio::select! {
                biased;
                () = self.bells.turn.notified() => {}
                () = sleep_until(next) => {}
            },
            None => self.bells.turn.notified().await,
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        self.shared.travel().await;
        let released = self.shared.lock().release(&self.request.key, self.request.token);
        self.shared.travel().await;
        Ok(released)
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    link: watch::Sender<Link>,
}

/// The way to the store.
#[derive(Debug, Default, Clone)]
struct Link {
    cut: bool,
    delay: Duration,
}

impl Shared {
    /// One way to the store or back.
    async fn travel(&self) {
        let link = self.link.borrow().clone();
        if link.cut {
            let mut changes = self.link.subscribe();
            // The sender lives in `self`, so this ends when the link is joined again.
            let _ = changes.wait_for(|link| !link.cut).await;
        }
        if !link.delay.is_zero() {
            sleep(link.delay / 2).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

#[derive(Debug, Default)]
struct State {
    lines: BTreeMap<Key, Line>,
    /// The last fence given, on any key.
    fence: u64,
}

/// Everyone who holds or waits for one key, in order of arrival.
#[derive(Debug)]
struct Line {
    tickets: Vec<InLine>,
    /// What readers carry: the last writer's fence.
    fence: Fence,
}

#[derive(Debug)]
struct InLine {
    request: Request,
    identity: String,
    since: SystemTime,
    /// When it is forgotten unless it is heard of.
    until: Instant,
    granted: Option<Fence>,
    slots: Vec<u32>,
    bells: Bells,
}

impl State {
    fn attempt(
        &mut self,
        request: &Request,
        bells: &Bells,
        asked: Moment,
    ) -> Result<Option<Grant>> {
        self.forget_the_late(&request.key);
        let now = Instant::now();
        let fence = &mut self.fence;
        let line = self
            .lines
            .entry(request.key.clone())
            .or_insert_with(|| Line { tickets: Vec::new(), fence: Fence::new(*fence) });
        let at = match line.tickets.iter().position(|other| other.request.token == request.token) {
            Some(at) => at,
            None => {
                if let Some(other) = line
                    .tickets
                    .iter()
                    .find(|other| !admission::mixes(request.mode, other.request.mode))
                {
                    return Err(request.conflict(other.request.mode));
                }
                line.tickets.push(InLine {
                    request: request.clone(),
                    identity: request.identity(),
                    since: SystemTime::now(),
                    until: now,
                    granted: None,
                    slots: Vec::new(),
                    bells: bells.clone(),
                });
                line.tickets.len() - 1
            }
        };
        if line.turn(at) != Turn::In {
            if request.queue {
                line.tickets[at].until = now + WAITER_LEASE;
            } else {
                line.tickets.remove(at);
            }
            return Ok(None);
        }
        if line.tickets[at].granted.is_none() {
            // An owner that enters again keeps its fence, or the resource would refuse its first guard.
            let again = !matches!(request.mode, Mode::Permits { .. }) && line.holds(at);
            if request.mode != Mode::Read && !again {
                *fence += 1;
                line.fence = Fence::new(*fence);
            }
            if let Mode::Permits { take, .. } = request.mode {
                let taken = line.tickets.iter().flat_map(|other| other.slots.iter().copied());
                line.tickets[at].slots = admission::free_slots(taken, take);
            }
            line.tickets[at].granted = Some(line.fence);
        }
        let ticket = &mut line.tickets[at];
        ticket.until = now + request.ttl;
        Ok(Some(Grant {
            fence: ticket.granted.unwrap_or_default(),
            slots: ticket.slots.clone(),
            ttl: request.ttl,
            since: asked,
            held: Arc::new(bells.asked.clone()),
        }))
    }

    fn renew(&mut self, lease: &Lease) -> Renewal {
        self.forget_the_late(&lease.key);
        let ticket = self.lines.get_mut(&lease.key).and_then(|line| {
            line.tickets.iter_mut().find(|ticket| ticket.request.token == lease.token)
        });
        match ticket.filter(|ticket| ticket.granted.is_some()) {
            Some(ticket) => {
                ticket.until = Instant::now() + lease.ttl;
                Renewal::Renewed
            }
            None => Renewal::Gone,
        }
    }

    fn release(&mut self, key: &Key, token: Token) -> Released {
        self.forget_the_late(key);
        let was_there = self.change(key, |line| {
            let before = line.tickets.len();
            line.tickets.retain(|ticket| ticket.request.token != token);
            line.tickets.len() < before
        });
        if was_there { Released::Yes } else { Released::AlreadyGone }
    }

    /// Takes away everyone who holds the key.
    fn evict(&mut self, key: &str) -> Vec<Entry> {
        let Ok(key) = Key::new(key) else { return Vec::new() };
        self.forget_the_late(&key);
        let mut evicted = Vec::new();
        self.change(&key, |line| {
            evicted.extend(line.holders());
            line.tickets.retain(|ticket| ticket.granted.is_none());
            !evicted.is_empty()
        });
        evicted
    }

    /// Tells everyone who holds the key that they are asked to give way.
    fn ask(&mut self, key: &Key) -> Vec<Entry> {
        self.forget_the_late(key);
        let Some(line) = self.lines.get(key) else { return Vec::new() };
        let granted = line.tickets.iter().filter(|ticket| ticket.granted.is_some());
        for ticket in granted {
            ticket.bells.asked.ring();
        }
        line.holders().collect()
    }

    fn inspect(&mut self, query: &Query) -> Vec<Snapshot> {
        let keys: Vec<_> =
            self.lines.keys().filter(|key| query.matches(key.as_str())).cloned().collect();
        keys.iter().for_each(|key| self.forget_the_late(key));
        let lines = keys.into_iter().filter_map(|key| Some((self.lines.get(&key)?, key)));
        lines
            .map(|(line, key)| Snapshot {
                key,
                holders: line.holders().collect(),
                waiters: Some(line.waiters().collect()),
                fence: Some(line.fence),
            })
            .collect()
    }

    /// When the next one of a line is forgotten unless it is heard of.
    fn next_end(&self, key: &Key) -> Option<Instant> {
        self.lines.get(key)?.tickets.iter().map(|ticket| ticket.until).min()
    }

    fn forget_the_late(&mut self, key: &Key) {
        let now = Instant::now();
        self.change(key, |line| {
            let before = line.tickets.len();
            line.tickets.retain(|ticket| ticket.until > now);
            line.tickets.len() < before
        });
    }

    /// Changes a line, and wakes those whose turn it is now if it did.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Line) -> bool) -> bool {
        let Some(line) = self.lines.get_mut(key) else { return false };
        let changed = change(line);
        if changed {
            for at in 0..line.tickets.len() {
                if line.tickets[at].granted.is_none() && line.turn(at) == Turn::In {
                    line.tickets[at].bells.turn.notify_one();
                }
            }
        }
        if line.tickets.is_empty() {
            self.lines.remove(key);
        }
        changed
    }
}

impl Line {
    fn turn(&self, at: usize) -> Turn {
        let places: Vec<_> = self
            .tickets
            .iter()
            .map(|ticket| Queued {
                owner: ticket.identity.as_str(),
                mode: ticket.request.mode,
                granted: ticket.granted.is_some(),
            })
            .collect();
        admission::turn(&places, at)
    }

    /// Whether the owner of this ticket is alone inside by another one.
    fn holds(&self, at: usize) -> bool {
        let owner = &self.tickets[at].identity;
        self.tickets.iter().any(|ticket| {
            let alone = ticket.granted.is_some() && ticket.request.mode.is_exclusive();
            alone && ticket.identity == *owner
        })
    }

    fn holders(&self) -> impl Iterator<Item = Entry> {
        self.tickets.iter().filter(|ticket| ticket.granted.is_some()).map(InLine::entry)
    }

    fn waiters(&self) -> impl Iterator<Item = Entry> {
        self.tickets.iter().filter(|ticket| ticket.granted.is_none()).map(InLine::entry)
    }
}

impl InLine {
    fn entry(&self) -> Entry {
        Entry {
            identity: self.identity.clone(),
            mode: self.request.mode,
            who: Some(whoami()),
            note: self.request.note.as_deref().map(str::to_owned),
            since: Some(self.since),
            left: self.granted.map(|_| self.until.saturating_duration_since(Instant::now())),
            fence: self.granted,
            slots: self.slots.clone(),
        }
    }
}
