//! A claim: a place in line, held by a lease of its own.
//!
//! The way in is a transaction that takes the place and looks at the line in one step. One that had
//! to wait confirms with another transaction that its place is still there: such a one goes
//! through the cluster's log, while a mere read may come from a member that is out of date.
//!
//! Easy to get wrong: every request may run twice, or late. The place is made only if it does not exist,
//! and once a request went without an answer the lease is revoked in the end instead of being used again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::time::sleep;

use super::cluster::{NAME, PATIENCE, is_not_found};
use super::keepalive::KeepAliveOutcome;
use super::leases::{BorrowedLease, revoke};
use super::look::{View, revision};
use super::queue::{self, refuse_mix};
use super::record::Record;
use super::watch::Target;
use super::{EtcdHeld, Shared, nested, patience};
use crate::core::admission::{self, Turn};
use crate::core::clock::Moment;
use crate::engine::{Claim, Fence, Grant, Mode, Released, Request};
use crate::engines::yield_signal::YieldSignal;
use crate::error::{Error, Result};

/// A lease counts as new within this part of its length.
const RECENT: u32 = 10;

/// One claim on one lock.
#[derive(Debug)]
pub(super) struct EtcdClaim {
    pub(super) shared: Arc<Shared>,
    pub(super) request: Request,
    pub(super) record: Record,
    lent: Option<BorrowedLease>,
    /// The create revision of our place in line; `None` only when an answer said that there is none.
    pub(super) number: Option<i64>,
    /// What has to happen before it can be our turn.
    ahead: Option<Ahead>,
    slots: Vec<u32>,
    held: bool,
    /// Whether a request that could give us a place may still be on its way.
    pub(super) doubt: bool,
    /// Whether a request that gives it back may have had its effect unheard.
    unheard: bool,
    released: Option<Released>,
    bell: YieldSignal,
}

/// What has to happen before our turn can come.
#[derive(Debug, Clone)]
struct Ahead {
    theirs: Target,
    /// The end of our own place.
    ours: Target,
}

impl EtcdClaim {
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
            bell: YieldSignal::default(),
        }
    }

    /// Whether the line matters as a whole, or only who is right ahead.
    pub(super) fn is_mutex(&self) -> bool {
        self.request.mode == Mode::Mutex
    }

    /// Our lease, made if there is none.
    async fn lease(&mut self, asked: Moment) -> Result<(i64, Duration)> {
        let lent = self.lent.get_or_insert_with(|| self.shared.leases.take(self.request.ttl));
        if let Some(ttl) = lent.ttl {
            return Ok((lent.id, ttl));
        }
        let made = lent.make(&self.shared.cluster, asked).await;
        self.doubt |= made.is_err();
        Ok((lent.id, made?))
    }

    /// Our lease has ended, and our place with it.
    fn start_over(&mut self) {
        self.lent = None;
        self.number = None;
        self.doubt = false;
    }

    /// It is our turn: says so in the store, where that is needed, what the fence is, and as of which
    /// revision. `None` when the store changed meanwhile, and we have to look again.
    async fn confirm(
        &mut self,
        lease: i64,
        number: i64,
        view: &View,
    ) -> Result<Option<(Fence, i64)>> {
        if view.entered && self.is_mutex() {
            return Ok(Some((fence(number), view.revision)));
        }
        if view.entered && self.request.mode == Mode::Read {
            return Ok(Some((fence(view.written), view.revision)));
        }
        let names = &self.shared.names;
        let key = &self.request.key;
        let seat = names.seat(key, lease);
        let with_lease = || Some(PutOptions::new().with_lease(lease));
        let remembering = PutOptions::new().with_lease(lease).with_prev_key();
        self.record.since = Some(std::time::SystemTime::now());
        let mut conditions = vec![Compare::create_revision(seat.clone(), CompareOp::Equal, number)];
        let mut then = vec![TxnOp::put(seat, self.record.text(), Some(remembering))];
        match self.request.mode {
            Mode::Mutex | Mode::Read => {}
            Mode::Write => then.push(TxnOp::put(names.written(key), "", None)),
            Mode::Permits { take, .. } => {
                let ours: Vec<_> = view.slots.iter().filter(|slot| slot.lease == lease).collect();
                if let Some(first) = ours.first() {
                    // We took them before, and did not hear of it.
                    self.slots = ours.iter().map(|slot| slot.number).collect();
                    return Ok(Some((fence(first.fence), view.revision)));
                }
                self.slots = admission::free_slots(view.slots.iter().map(|slot| slot.number), take);
                let (start, end) = names.slots(key);
                let none_since =
                    Compare::create_revision(start, CompareOp::Less, view.revision + 1);
                conditions.push(none_since.with_range(end));
                let slots = self.slots.iter().map(|slot| names.slot(key, *slot));
                then.extend(slots.map(|slot| TxnOp::put(slot, "", with_lease())));
            }
        }
        let txn = Txn::new().when(conditions).and_then(nested(then));
        let mut unanswered = false;
        let answer = self.shared.txn("confirm a place in line", txn, &mut unanswered).await;
        self.doubt |= unanswered;
        let answer = answer?;
        if let Some(TxnOpResponse::Put(before)) = answer.op_responses().first()
            && let Some(before) = before.prev_key()
            && Record::read(before.value()).is_some_and(|before| before.asked)
        {
            // Somebody was quicker to see us in than we were.
            self.bell.ring();
        }
        let fence = match self.request.mode {
            Mode::Mutex => fence(number),
            Mode::Read => fence(view.written),
            Mode::Write | Mode::Permits { .. } => fence(revision(&answer)),
        };
        Ok(answer.succeeded().then(|| (fence, revision(&answer))))
    }

    /// What has to happen before our turn can come.
    fn behind(&self, turn: Turn, view: &View, me: usize) -> Option<Ahead> {
        let from = view.revision + 1;
        let theirs = match turn {
            Turn::In => return None,
            Turn::Behind(at) => Target {
                key: view.line[at].name.clone(),
                end: None,
                from,
                // One who waits for permits also waits for the one ahead to be let in.
                changes: matches!(self.request.mode, Mode::Permits { .. }),
            },
            Turn::Full => {
                let (key, end) = self.shared.names.line(&self.request.key);
                Target { key, end: Some(end), from, changes: false }
            }
        };
        let ours = Target { key: view.line[me].name.clone(), end: None, from, changes: false };
        Some(Ahead { theirs, ours })
    }

    /// Gives our place up; the lease stays. False when it was gone already.
    async fn withdraw(&mut self, lease: i64) -> Result<bool> {
        let Some(number) = self.number else { return Ok(false) };
        let names = &self.shared.names;
        let key = &self.request.key;
        let seat = names.seat(key, lease);
        let ours = Compare::create_revision(seat.clone(), CompareOp::Equal, number);
        let slots = self.slots.iter().map(|slot| TxnOp::delete(names.slot(key, *slot), None));
        let delete = std::iter::once(TxnOp::delete(seat, None)).chain(slots).collect();
        let txn = Txn::new().when([ours]).and_then(nested(delete));
        let answer = self.shared.txn("give up a place in line", txn, &mut self.unheard).await?;
        self.number = None;
        Ok(answer.succeeded())
    }

    fn grant(
        &mut self,
        lease: i64,
        number: i64,
        seen: i64,
        (ttl, since): (Duration, Moment),
        fence: Fence,
    ) -> Grant {
        self.held = true;
        self.ahead = None;
        let seat = self.shared.names.seat(&self.request.key, lease);
        let (shared, yielding) = (self.shared.clone(), self.bell.clone());
        let held = EtcdHeld { shared, lease, seat, number, seen, yielding };
        Grant { fence, slots: self.slots.clone(), ttl, since, held: Arc::new(held) }
    }
}

#[async_trait]
impl Claim for EtcdClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        loop {
            let (lease, ttl) = self.lease(asked).await?;
            let lent = self.lent.as_ref().expect("it was just made or taken");
            // One that was kept alive a moment ago need not be again: the grant counts from then, and
            // is renewed that much earlier. One that is not renewed has to be of full length.
            let enough = if self.request.fixed { Duration::ZERO } else { ttl / RECENT };
            let age = lent.alive.map(|alive| asked.since(&alive));
            // One that asks again for what it holds wants its full length from now on.
            let recent = age.is_some_and(|age| age.is_zero() || !self.held && age < enough);
            let shared = self.shared.clone();
            let alive = async {
                match recent {
                    true => KeepAliveOutcome::Alive,
                    false => shared.pulse.keep(&shared.cluster, &[lease], patience(ttl)).await[0],
                }
            };
            let (view, alive) = tokio::join!(self.look(lease), alive);
            if let (false, KeepAliveOutcome::Alive, Some(lent)) = (recent, alive, &mut self.lent) {
                lent.alive = Some(asked);
            }
            let view = match (view, alive) {
                (_, KeepAliveOutcome::Gone) => {
                    self.start_over();
                    continue;
                }
                (Err(error), _) if is_not_found(&error) => {
                    self.start_over();
                    continue;
                }
                (Err(error), _) => return Err(error),
                (Ok(_), KeepAliveOutcome::Unknown) => {
                    let silence = "no member answered";
                    return Err(Error::unreachable(NAME, "keep a lease alive", silence));
                }
                (Ok(None), KeepAliveOutcome::Alive) => return Ok(None),
                (Ok(Some(view)), KeepAliveOutcome::Alive) => view,
            };
            let me = view.line.iter().position(|seat| Some(seat.number) == self.number);
            let (Some(number), Some(me)) = (self.number, me) else {
                // Somebody took our place away, or we found it where we did not look for those around it.
                continue;
            };
            if view.entered
                && let Err(refusal) =
                    refuse_mix(&self.request.key, self.request.mode, &view.line[..me])
            {
                // Whoever is refused is not seen in line afterwards.
                self.withdraw(lease).await?;
                return Err(refusal);
            }
            let turn = queue::turn(&view.line, me);
            self.ahead = self.behind(turn, &view, me);
            if turn == Turn::In {
                match self.confirm(lease, number, &view).await? {
                    Some((fence, seen)) => {
                        let lent = self.lent.as_ref().and_then(|lent| lent.alive);
                        let since = lent.expect("a lease that was looked at is alive");
                        return Ok(Some(self.grant(lease, number, seen, (ttl, since), fence)));
                    }
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
        let Some(Ahead { theirs, ours }) = self.ahead.clone() else { return Ok(()) };
        // Asking again keeps our own lease alive, and tells if it is not.
        let ttl = self.lent.as_ref().and_then(|lent| lent.ttl).unwrap_or(PATIENCE);
        tokio::select! {
            () = self.shared.watches.event(theirs) => {}
            () = self.shared.watches.event(ours) => {}
            () = sleep(ttl / 3) => {}
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        if let Some(released) = self.released {
            return Ok(released);
        }
        let shared = self.shared.clone();
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
            // Whoever took our place away may have left something that belongs to it.
            if !was_there || !shared.leases.give_back(lent) {
                let _ = revoke(&shared.cluster, lease, &mut false).await;
            }
        }
        self.released = Some(released);
        Ok(released)
    }
}

fn fence(revision: i64) -> Fence {
    Fence::new(u64::try_from(revision).unwrap_or_default())
}
