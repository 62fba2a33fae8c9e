//! What the store keeps: for each key, a queue of holders and waiters, granted by the admission
//! rule.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::core::admission::{self, Queued, Turn};
use crate::core::clock::Moment;
use crate::engine::broken;
use crate::engine::{
    Break, Breaker, Entry, Fence, Grant, Held, Lease, Mode, Query, Released, Renewal, Request,
    Signal, Snapshot, YieldRequest,
};
use crate::engines::yield_signal::YieldSignal;
use crate::error::Result;
use crate::key::Key;
use crate::owner::{Owner, Token};

/// How long a silent waiter keeps its place. Waiters poll far more often.
const WAITER_LEASE: Duration = Duration::from_secs(15);

/// How the store reaches a claim.
#[derive(Debug, Clone, Default)]
pub(super) struct Signals {
    /// It may be the claim's turn.
    pub(super) turn: Arc<Notify>,
    /// The holder is asked to release the lock.
    pub(super) yield_requested: YieldSignal,
    /// Others want a lock that may be kept.
    wanted: Option<YieldSignal>,
}

impl Signals {
    pub(super) fn of(request: &Request) -> Self {
        Self { wanted: request.keep.then(YieldSignal::default), ..Self::default() }
    }

    fn held(&self) -> Arc<dyn Held> {
        match &self.wanted {
            Some(_) => Arc::new(self.clone()),
            None => Arc::new(self.yield_requested.clone()),
        }
    }

    fn want(&self) {
        if let Some(wanted) = &self.wanted {
            wanted.request(YieldRequest::default());
        }
    }
}

/// What is known about a lock that may be kept.
impl Held for Signals {
    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        Some(self.yield_requested.requested())
    }

    fn wanted(&self) -> Option<Signal> {
        let wanted = self.wanted.as_ref()?.requested();
        Some(Box::pin(async move { drop(wanted.await) }))
    }
}

#[derive(Debug, Default)]
pub(super) struct Store {
    queues: BTreeMap<Key, Queue>,
    /// The last fence granted, on any key.
    fence: u64,
    /// The last breaks.
    broken: VecDeque<Break>,
}

/// The holders of and waiters for one key, in order of arrival.
#[derive(Debug)]
struct Queue {
    members: Vec<Member>,
    /// The last fence that belongs to a writer, which readers carry.
    fence: Fence,
}

#[derive(Debug)]
struct Member {
    request: Request,
    since: SystemTime,
    /// When it expires unless it is renewed or polls again.
    until: Instant,
    granted: Option<Fence>,
    /// How many fences after that one belong to its grant.
    reserved: u32,
    slots: Vec<u32>,
    /// Whether it is kept, and not in use.
    kept: bool,
    signals: Signals,
}

impl Store {
    pub(super) fn attempt(
        &mut self,
        request: &Request,
        signals: &Signals,
        asked: Moment,
    ) -> Result<Option<Grant>> {
        self.expire(&request.key);
        let now = Instant::now();
        let fence = &mut self.fence;
        let queue = self
            .queues
            .entry(request.key.clone())
            .or_insert_with(|| Queue { members: Vec::new(), fence: Fence::new(*fence) });
        let at = match queue.members.iter().position(|other| other.request.token == request.token) {
            Some(at) => at,
            None => {
                if let Some(other) = queue
                    .members
                    .iter()
                    .find(|other| !admission::mixes(request.mode, other.request.mode))
                {
                    return Err(request.conflict(other.request.mode));
                }
                queue.members.push(Member {
                    request: request.clone(),
                    since: SystemTime::now(),
                    until: now,
                    granted: None,
                    reserved: 0,
                    slots: Vec::new(),
                    kept: false,
                    signals: signals.clone(),
                });
                queue.members.len() - 1
            }
        };
        if queue.turn(at) != Turn::In {
            queue.want();
            if request.queue {
                queue.members[at].until = now + WAITER_LEASE;
            } else {
                queue.members.remove(at);
            }
            return Ok(None);
        }
        if queue.members[at].granted.is_none() {
            // An owner that re-enters keeps its fence, or the resource would reject its first
            // guard.
            let again = !matches!(request.mode, Mode::Permits { .. }) && queue.holds(at);
            let mut granted = queue.fence;
            if request.mode != Mode::Read && !again {
                granted = Fence::new(*fence + 1);
                queue.members[at].reserved = request.reserve;
                *fence = granted.get() + u64::from(request.reserve);
                queue.fence = Fence::new(*fence);
            }
            if let Mode::Permits { take, .. } = request.mode {
                let taken = queue.members.iter().flat_map(|other| other.slots.iter().copied());
                queue.members[at].slots = admission::free_slots(taken, take);
            }
            queue.members[at].granted = Some(granted);
        }
        let member = &mut queue.members[at];
        member.until = now + request.ttl;
        Ok(Some(Grant {
            fence: member.granted.unwrap_or_default(),
            slots: member.slots.clone(),
            ttl: request.ttl,
            since: asked,
            held: signals.held(),
            reserved: member.reserved,
        }))
    }

    pub(super) fn renew(&mut self, lease: &Lease) -> Renewal {
        self.expire(&lease.key);
        let member = self.queues.get_mut(&lease.key).and_then(|queue| {
            queue.members.iter_mut().find(|member| member.request.token == lease.token)
        });
        match member.filter(|member| member.granted.is_some()) {
            Some(member) => {
                member.until = Instant::now() + lease.ttl;
                member.kept = lease.kept == Some(true);
                Renewal::Renewed
            }
            None => Renewal::Gone,
        }
    }

    pub(super) fn release(&mut self, key: &Key, token: Token) -> Released {
        self.expire(key);
        let was_there = self.change(key, |queue| {
            let before = queue.members.len();
            queue.members.retain(|member| member.request.token != token);
            queue.members.len() < before
        });
        if was_there { Released::Yes } else { Released::AlreadyGone }
    }

    /// Removes the holders of a key.
    pub(super) fn evict(&mut self, key: &str) -> Vec<Entry> {
        let Ok(key) = Key::new(key) else { return Vec::new() };
        self.expire(&key);
        let mut evicted = Vec::new();
        self.change(&key, |queue| {
            evicted.extend(queue.holders());
            queue.members.retain(|member| member.granted.is_none());
            !evicted.is_empty()
        });
        evicted
    }

    /// Removes the holders of a key, and records that.
    pub(super) fn break_lock(&mut self, key: &Key, by: &Breaker) -> Vec<Entry> {
        if let Some(queue) = self.queues.get(key) {
            queue.want();
        }
        let evicted = self.evict(key.as_str());
        if !evicted.is_empty() {
            self.broken.truncate(broken::KEPT - 1);
            self.broken.push_front(by.breaks(key, &evicted));
        }
        evicted
    }

    /// The last breaks.
    pub(super) fn broken(&self) -> Vec<Break> {
        broken::listed(self.broken.iter().cloned())
    }

    /// Asks the holders of a key to release it.
    pub(super) fn request_yield(&mut self, key: &Key, asked: &YieldRequest) -> Vec<Entry> {
        self.expire(key);
        let Some(queue) = self.queues.get(key) else { return Vec::new() };
        queue.want();
        let granted = queue.members.iter().filter(|member| member.granted.is_some());
        for member in granted {
            member.signals.yield_requested.request(asked.clone());
        }
        queue.holders().collect()
    }

    pub(super) fn inspect(&mut self, query: &Query) -> Vec<Snapshot> {
        let keys: Vec<_> =
            self.queues.keys().filter(|key| query.matches(key.as_str())).cloned().collect();
        keys.iter().for_each(|key| self.expire(key));
        let queues = keys.into_iter().filter_map(|key| Some((self.queues.get(&key)?, key)));
        queues
            .map(|(queue, key)| Snapshot {
                holders: queue.holders().collect(),
                waiters: Some(queue.waiters().collect()),
                fence: Some(queue.fence),
                ..Snapshot::new(key)
            })
            .collect()
    }

    /// When the next member of a queue expires.
    pub(super) fn next_expiry(&self, key: &Key) -> Option<Instant> {
        self.queues.get(key)?.members.iter().map(|member| member.until).min()
    }

    fn expire(&mut self, key: &Key) {
        let now = Instant::now();
        self.change(key, |queue| {
            let before = queue.members.len();
            queue.members.retain(|member| member.until > now);
            queue.members.len() < before
        });
    }

    /// Changes a queue. If `change` did something, wakes the waiters whose turn it is now.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Queue) -> bool) -> bool {
        let Some(queue) = self.queues.get_mut(key) else { return false };
        let changed = change(queue);
        if changed {
            for at in 0..queue.members.len() {
                if queue.members[at].granted.is_none() && queue.turn(at) == Turn::In {
                    queue.members[at].signals.turn.notify_one();
                }
            }
        }
        if queue.members.is_empty() {
            self.queues.remove(key);
        }
        changed
    }
}

impl Queue {
    fn turn(&self, at: usize) -> Turn {
        let places: Vec<_> = self
            .members
            .iter()
            .map(|member| Queued {
                owner: member.owner(),
                mode: member.request.mode,
                granted: member.granted.is_some(),
            })
            .collect();
        admission::turn(&places, at)
    }

    /// Whether the owner of this member holds the key exclusively as another member.
    fn holds(&self, at: usize) -> bool {
        let owner = self.members[at].owner();
        self.members.iter().any(|member| {
            let exclusive = member.granted.is_some() && member.request.mode.is_exclusive();
            exclusive && member.owner() == owner
        })
    }

    /// Tells the holders that others want the lock.
    fn want(&self) {
        let granted = self.members.iter().filter(|member| member.granted.is_some());
        granted.for_each(|member| member.signals.want());
    }

    fn holders(&self) -> impl Iterator<Item = Entry> {
        self.members.iter().filter(|member| member.granted.is_some()).map(Member::entry)
    }

    fn waiters(&self) -> impl Iterator<Item = Entry> {
        self.members.iter().filter(|member| member.granted.is_none()).map(Member::entry)
    }
}

impl Member {
    /// Who it belongs to: an owner, or this claim alone. Not as a text, which every lock would format.
    fn owner(&self) -> (Option<&Owner>, Option<Token>) {
        let owner = self.request.owner.as_ref();
        (owner, owner.is_none().then_some(self.request.token))
    }

    fn entry(&self) -> Entry {
        Entry {
            note: self.request.note.as_deref().map(str::to_owned),
            since: Some(self.since),
            left: self.granted.map(|_| self.until.saturating_duration_since(Instant::now())),
            fence: self.granted,
            slots: self.slots.clone(),
            kept: self.kept,
            ..Entry::new(self.request.identity(), self.request.mode).by(&self.request.who)
        }
    }
}
