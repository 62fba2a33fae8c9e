//! A claim: a place in line, held by a lease of its own.
//!
//! The way in is a transaction that takes the place and looks at the line in one step. A claim that had
//! to wait confirms with another transaction that its place is still there: such a one goes
//! through the cluster's log, while a mere read may come from a member that is out of date.
//!
//! Easy to get wrong: every request may run twice, or late. The place is made only if it does not exist,
//! and once a request went without an answer the lease is revoked in the end instead of being used again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use tokio::time::sleep;

use super::cluster::{NAME, PATIENCE, is_not_found};
use super::leases::{Lent, revoke};
use super::line::{self, Seat, mixes, refuse_mix};
use super::pulse::Beat;
use super::record::Record;
use super::watch::Target;
use super::{Held, Shared, patience};
use crate::backend::{Claim, Fence, Grant, Lease, Mode, Released, Request};
use crate::error::{Error, Result};
use crate::queue::{self, Turn};

/// One claim on one lock.
#[derive(Debug)]
pub(super) struct Ticket {
    shared: Arc<Shared>,
    request: Request,
    record: Record,
    lent: Option<Lent>,
    /// The create revision of our place in line.
    number: Option<i64>,
    /// What has to happen before it can be our turn.
    ahead: Option<Target>,
    slots: Vec<u32>,
    held: bool,
    /// Whether a request that could give us a place may still be on its way.
    doubt: bool,
    /// Whether a request that gives it back may have had its effect unheard.
    unheard: bool,
    released: Option<Released>,
}

/// What a transaction showed.
struct View {
    revision: i64,
    /// The create revision of our place, if we have one.
    number: Option<i64>,
    /// Whether the place was taken in this very step.
    entered: bool,
    /// Ourselves and those ahead of us. For a mutex, only the last one of those.
    line: Vec<Seat>,
    /// The last writer's fence.
    written: i64,
    /// The permits that are taken.
    slots: Vec<Slot>,
}

struct Slot {
    number: u32,
    lease: i64,
    /// The create revision.
    fence: i64,
}

impl Ticket {
    pub(super) fn new(shared: Arc<Shared>, request: Request) -> Self {
        let record = Record::of(&request);
        Self {
            shared,
            request,
            record,
            lent: None,
            number: None,
            ahead: None,
            slots: Vec::new(),
            held: false,
            doubt: false,
            unheard: false,
            released: None,
        }
    }

    /// Whether the line matters as a whole, or only who is right ahead.
    fn is_mutex(&self) -> bool {
        self.request.mode == Mode::Mutex
    }

    /// Our lease, made if there is none, and whether that was just now.
    async fn lease(&mut self) -> Result<(i64, Duration, bool)> {
        let lent = self.lent.get_or_insert_with(|| self.shared.leases.take(self.request.ttl));
        if let Some(ttl) = lent.ttl {
            return Ok((lent.id, ttl, false));
        }
        let made = lent.make(&self.shared.cluster).await;
        self.doubt |= made.is_err();
        Ok((lent.id, made?, true))
    }

    /// Our lease has ended, and our place with it.
    fn start_over(&mut self) {
        self.lent = None;
        self.number = None;
        self.doubt = false;
    }

    /// Where we stand. Takes a place in line if we have none; `None` if a single try need not.
    async fn look(&mut self, lease: i64) -> Result<Option<View>> {
        if self.number.is_some() {
            return self.view(lease, Vec::new()).await.map(Some);
        }
        let names = &self.shared.names;
        let seat = names.seat(&self.request.key, lease);
        if !self.request.queue {
            if self.is_mutex() {
                let (start, end) = names.line(&self.request.key);
                let empty = Compare::create_revision(start, CompareOp::Equal, 0).with_range(end);
                let view = self.view(lease, vec![empty]).await?;
                if view.number.is_some() {
                    return Ok(Some(view));
                }
            }
            if !self.would_be_let_in(lease).await? {
                return Ok(None);
            }
        }
        let absent = Compare::create_revision(seat, CompareOp::Equal, 0);
        self.view(lease, vec![absent]).await.map(Some)
    }

    /// For a single try: whether it is worth taking a place.
    async fn would_be_let_in(&self, lease: i64) -> Result<bool> {
        let mut line = self.whole_line(i64::MAX).await?;
        refuse_mix(&self.request.key, self.request.mode, &line)?;
        let me = Seat { name: Vec::new(), lease, number: i64::MAX, record: self.record.clone() };
        line.push(me);
        Ok(line::turn(&line, line.len() - 1) == Turn::In)
    }

    /// One transaction: takes our place if the conditions hold, and shows what there is.
    /// Without conditions, it only looks.
    async fn view(&mut self, lease: i64, conditions: Vec<Compare>) -> Result<View> {
        let names = &self.shared.names;
        let key = &self.request.key;
        let seat = names.seat(key, lease);
        let (start, end) = names.line(key);
        let mut line = GetOptions::new().with_range(end);
        if let Some(number) = self.number {
            line = line.with_max_create_revision(number);
        }
        if self.is_mutex() {
            line = line.with_sort(SortTarget::Create, SortOrder::Descend).with_limit(2);
        }
        let mut look = vec![TxnOp::get(start, Some(line))];
        match self.request.mode {
            Mode::Read | Mode::Write => look.push(TxnOp::get(names.written(key), None)),
            Mode::Permits { .. } => {
                let (start, end) = names.slots(key);
                look.push(TxnOp::get(start, Some(GetOptions::new().with_range(end))));
            }
            Mode::Mutex => {}
        }
        let own = TxnOp::get(seat.clone(), None);
        let is_change = !conditions.is_empty();
        let txn = if is_change {
            let put =
                TxnOp::put(seat, self.record.text(), Some(PutOptions::new().with_lease(lease)));
            let then: Vec<_> = std::iter::once(put).chain(look.iter().cloned()).collect();
            let or: Vec<_> = std::iter::once(own).chain(look).collect();
            Txn::new().when(conditions).and_then(then).or_else(or)
        } else {
            Txn::new().and_then(std::iter::once(own).chain(look).collect::<Vec<_>>())
        };
        let mut unanswered = false;
        let answer = self.shared.txn("take a place in line", txn, &mut unanswered).await;
        self.doubt |= unanswered && is_change;
        let answer = answer?;
        let revision = revision(&answer);
        let entered = is_change && answer.succeeded();
        let mut found = answer.op_responses().into_iter();
        let own = found.next();
        let number = match entered {
            true => Some(revision),
            false => stored(own).first().map(KeyValue::create_revision),
        };
        let places = stored(found.next());
        let beside = stored(found.next());
        let mut line = line::line_of(&self.shared.names, &self.request.key, &places);
        let partial = self.is_mutex()
            && (line.len() < places.len()
                || line.iter().any(|seat| !mixes(seat.record.mode, self.request.mode)));
        if let (true, Some(number)) = (partial, number) {
            line = self.whole_line(number).await?;
        }
        let mut view = View { revision, number, entered, line, written: 0, slots: Vec::new() };
        match self.request.mode {
            Mode::Permits { .. } => view.slots = beside.iter().filter_map(Slot::read).collect(),
            _ => view.written = beside.first().map_or(0, KeyValue::mod_revision),
        }
        Ok(view)
    }

    /// Everyone in line up to this number.
    async fn whole_line(&self, number: i64) -> Result<Vec<Seat>> {
        let (start, end) = self.shared.names.line(&self.request.key);
        let options = GetOptions::new().with_range(end).with_max_create_revision(number);
        let found = self.shared.get("look at a line", start, options).await?;
        Ok(line::line_of(&self.shared.names, &self.request.key, found.kvs()))
    }

    /// It is our turn: says so in the store, where that is needed, and what the fence is.
    /// `None` when the store changed meanwhile, and we have to look again.
    async fn confirm(&mut self, lease: i64, number: i64, view: &View) -> Result<Option<Fence>> {
        if view.entered && self.is_mutex() {
            return Ok(Some(fence(number)));
        }
        if view.entered && self.request.mode == Mode::Read {
            return Ok(Some(fence(view.written)));
        }
        let names = &self.shared.names;
        let key = &self.request.key;
        let seat = names.seat(key, lease);
        let with_lease = || Some(PutOptions::new().with_lease(lease));
        self.record.since = Some(std::time::SystemTime::now());
        let mut conditions = vec![Compare::create_revision(seat.clone(), CompareOp::Equal, number)];
        let mut then = vec![TxnOp::put(seat, self.record.text(), with_lease())];
        match self.request.mode {
            Mode::Mutex | Mode::Read => {}
            Mode::Write => then.push(TxnOp::put(names.written(key), "", None)),
            Mode::Permits { take, .. } => {
                let ours: Vec<_> = view.slots.iter().filter(|slot| slot.lease == lease).collect();
                if let Some(first) = ours.first() {
                    // We took them before, and did not hear of it.
                    self.slots = ours.iter().map(|slot| slot.number).collect();
                    return Ok(Some(fence(first.fence)));
                }
                self.slots = queue::free_slots(view.slots.iter().map(|slot| slot.number), take);
                for slot in &self.slots {
                    let slot = names.slot(key, *slot);
                    conditions.push(Compare::create_revision(slot.clone(), CompareOp::Equal, 0));
                    then.push(TxnOp::put(slot, "", with_lease()));
                }
            }
        }
        let txn = Txn::new().when(conditions).and_then(then);
        let mut unanswered = false;
        let answer = self.shared.txn("confirm a place in line", txn, &mut unanswered).await;
        self.doubt |= unanswered;
        let answer = answer?;
        Ok(answer.succeeded().then(|| match self.request.mode {
            Mode::Mutex => fence(number),
            Mode::Read => fence(view.written),
            Mode::Write | Mode::Permits { .. } => fence(revision(&answer)),
        }))
    }

    /// What has to happen before our turn can come.
    fn behind(&self, turn: Turn, view: &View) -> Option<Target> {
        let from = view.revision + 1;
        match turn {
            Turn::In => None,
            Turn::Behind(at) => Some(Target {
                key: view.line[at].name.clone(),
                end: None,
                from,
                // One who waits for permits also waits for the one ahead to be let in.
                changes: matches!(self.request.mode, Mode::Permits { .. }),
            }),
            Turn::Full => {
                let (key, end) = self.shared.names.line(&self.request.key);
                Some(Target { key, end: Some(end), from, changes: false })
            }
        }
    }

    /// Gives our place up; the lease stays. False when it was gone already.
    async fn withdraw(&mut self, lease: i64) -> Result<bool> {
        let Some(number) = self.number else { return Ok(false) };
        let names = &self.shared.names;
        let key = &self.request.key;
        let seat = names.seat(key, lease);
        let ours = Compare::create_revision(seat.clone(), CompareOp::Equal, number);
        let slots = self.slots.iter().map(|slot| TxnOp::delete(names.slot(key, *slot), None));
        let delete: Vec<_> = std::iter::once(TxnOp::delete(seat, None)).chain(slots).collect();
        let txn = Txn::new().when([ours]).and_then(delete);
        let answer = self.shared.txn("give up a place in line", txn, &mut self.unheard).await?;
        self.number = None;
        Ok(answer.succeeded())
    }

    fn grant(&mut self, lease: i64, number: i64, ttl: Duration, fence: Fence) -> Grant {
        self.held = true;
        self.ahead = None;
        let seat = self.shared.names.seat(&self.request.key, lease);
        self.shared.hold(self.request.token, Held { lease, seat, number });
        Grant {
            fence,
            slots: self.slots.clone(),
            lease: Lease { ttl, ..Lease::of(&self.request) },
            bound: false,
            gone: None,
        }
    }
}

#[async_trait]
impl Claim for Ticket {
    async fn attempt(&mut self) -> Result<Option<Grant>> {
        self.shared.departures.over(&self.request.key).await;
        loop {
            let (lease, ttl, fresh) = self.lease().await?;
            let shared = self.shared.clone();
            let alive = async {
                match fresh {
                    true => Beat::Alive,
                    false => shared.pulse.keep(&shared.cluster, &[lease], patience(ttl)).await[0],
                }
            };
            let (view, alive) = tokio::join!(self.look(lease), alive);
            let view = match (view, alive) {
                (_, Beat::Gone) => {
                    self.start_over();
                    continue;
                }
                (Err(error), _) if is_not_found(&error) => {
                    self.start_over();
                    continue;
                }
                (Err(error), _) => return Err(error),
                (Ok(_), Beat::Unknown) => {
                    let silence = "no member answered";
                    return Err(Error::unreachable(NAME, "keep a lease alive", silence));
                }
                (Ok(None), Beat::Alive) => return Ok(None),
                (Ok(Some(view)), Beat::Alive) => view,
            };
            self.number = view.number;
            let me = view.line.iter().position(|seat| Some(seat.number) == view.number);
            let (Some(number), Some(me)) = (view.number, me) else {
                // The place that we had is gone while its lease is not: somebody took it away.
                self.number = None;
                continue;
            };
            if view.entered {
                refuse_mix(&self.request.key, self.request.mode, &view.line[..me])?;
            }
            let turn = line::turn(&view.line, me);
            self.ahead = self.behind(turn, &view);
            if turn == Turn::In {
                match self.confirm(lease, number, &view).await? {
                    Some(fence) => return Ok(Some(self.grant(lease, number, ttl, fence))),
                    None => continue,
                }
            }
            if !self.request.queue {
                self.withdraw(lease).await?;
            }
            return Ok(None);
        }
    }

    async fn wait(&mut self) -> Result<()> {
        let Some(target) = self.ahead.clone() else { return Ok(()) };
        // Asking again keeps our own lease alive, and tells if it is not.
        let ttl = self.lent.as_ref().and_then(|lent| lent.ttl).unwrap_or(PATIENCE);
        tokio::select! {
            () = self.shared.watches.event(target) => {}
            () = sleep(ttl / 3) => {}
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        if let Some(released) = self.released {
            return Ok(released);
        }
        let shared = self.shared.clone();
        let _departing = shared.departures.begin(&self.request.key);
        shared.let_go(self.request.token);
        let Some(lease) = self.lent.as_ref().map(|lent| lent.id) else {
            return Ok(Released::Yes);
        };
        let was_there = if self.doubt {
            revoke(&shared.cluster, lease, &mut self.unheard).await?
        } else if self.number.is_some() {
            self.withdraw(lease).await?
        } else {
            !self.held
        };
        let released = match was_there || self.unheard || !self.held {
            true => Released::Yes,
            false => Released::AlreadyGone,
        };
        if let Some(lent) = self.lent.take().filter(|_| !self.doubt) {
            match was_there {
                true => shared.leases.give_back(lent),
                // Whoever took our place away may have left something that belongs to it.
                false => _ = revoke(&shared.cluster, lease, &mut false).await,
            }
        }
        self.released = Some(released);
        Ok(released)
    }
}

impl Slot {
    fn read(stored: &KeyValue) -> Option<Self> {
        let number = stored.key_str().ok()?.rsplit_once(':')?.1.parse().ok()?;
        Some(Self { number, lease: stored.lease(), fence: stored.create_revision() })
    }
}

fn fence(revision: i64) -> Fence {
    Fence::new(u64::try_from(revision).unwrap_or_default())
}

fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, |header| header.revision())
}

fn stored(found: Option<TxnOpResponse>) -> Vec<KeyValue> {
    match found {
        Some(TxnOpResponse::Get(mut found)) => found.take_kvs(),
        _ => Vec::new(),
    }
}
