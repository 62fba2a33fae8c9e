//! A claim: an entry in the queue of a lock, kept by its own lease.
//!
//! One transaction creates the entry and reads the queue. A claim that had to wait confirms by
//! another transaction that its entry still exists: that goes through the cluster's log, while a
//! plain read may come from an outdated member.
//!
//! Easy to get wrong: every request may run twice, or late. Once a request got no answer, the lease
//! is finally revoked instead of being reused.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::sleep;

use super::ahead::Ahead;
use super::client::{
    Client, Compare, PutRequest, RequestOp, Response, ResponseOp, TxnRequest, TxnResponse,
};
use super::cluster::PATIENCE;
use super::enter::{View, revision};
use super::error::{NAME, is_not_found};
use super::held::EtcdHeld;
use super::keepalive::KeepAliveOutcome;
use super::layout::{QueueEntry, Record, fence};
use super::leases::{BorrowedLease, revoke};
use super::watch::Target;
use super::{Shared, nested, patience};
use crate::core::admission;
use crate::core::clock::Moment;
use crate::engine::{Fence, Grant, Mode, Released, Request};
use crate::engines::queued::{self, Entered, Queue, QueuedClaim, Turn};
use crate::engines::yield_signal::YieldSignal;
use crate::error::{Error, Result};

/// A lease counts as new within this part of its length.
const RECENT: u32 = 10;

pub(super) type EtcdClaim = QueuedClaim<EtcdQueue>;

/// The queue of a lock of any kind.
#[derive(Debug)]
pub(super) struct EtcdQueue {
    pub(super) shared: Arc<Shared>,
    pub(super) request: Request,
    pub(super) record: Record,
    lease: Option<BorrowedLease>,
    /// The create revision of our entry; `None` only if an answer said that there is none.
    pub(super) entry: Option<i64>,
    /// The permits that are certainly ours.
    pub(super) slots: Vec<u32>,
    held: bool,
    /// Whether the entry ahead of ours is gone.
    pub(super) is_next: bool,
    /// Whether a request that could create an entry may still be in flight.
    in_doubt: bool,
    /// Whether a request to leave may have taken effect without an answer.
    leaving: bool,
    yielding: YieldSignal,
}

impl EtcdClaim {
    pub(super) fn new(shared: Arc<Shared>, request: Request) -> Self {
        let queue = EtcdQueue {
            shared,
            record: Record::of(&request),
            request: request.clone(),
            lease: None,
            entry: None,
            slots: Vec::new(),
            held: false,
            is_next: false,
            in_doubt: false,
            leaving: false,
            yielding: YieldSignal::default(),
        };
        Self::over(queue, &request)
    }
}

#[async_trait]
impl Queue for EtcdQueue {
    const ENGINE: &'static str = NAME;
    type View = View;
    type Ahead = Ahead;

    /// Keeps the lease alive at the same time.
    async fn enter(&mut self, asked: Moment) -> Result<Entered<View>> {
        if self.leaving {
            // A deletion or a revocation without an answer names this lease, and would hit the next
            // entry with it: that one gets another lease.
            self.leave().await?;
            (self.leaving, self.in_doubt, self.entry) = (false, false, None);
        }
        let (lease, ttl) = self.lease(asked).await?;
        let is_fresh = self.is_fresh(ttl, asked);
        let shared = self.shared.clone();
        let keep_alive = async {
            match is_fresh {
                true => KeepAliveOutcome::Alive,
                false => shared.keepalive.keep(&shared.cluster, &[lease], patience(ttl)).await[0],
            }
        };
        let (looked, alive) = tokio::join!(self.look(lease), keep_alive);
        if let (false, KeepAliveOutcome::Alive, Some(lease)) = (is_fresh, alive, &mut self.lease) {
            lease.alive = Some(asked);
        }
        if alive == KeepAliveOutcome::Gone || looked.as_ref().is_err_and(is_not_found) {
            // Our lease has ended, and our entry with it.
            self.lease = None;
            self.entry = None;
            self.in_doubt = false;
            return Ok(Entered::Gone);
        }
        match alive {
            KeepAliveOutcome::Unknown if looked.is_ok() => {
                Err(Error::unreachable(NAME, "keep a lease alive", "no member answered"))
            }
            _ => looked,
        }
    }

    async fn turn(&mut self, view: &View) -> Result<Turn<Ahead>> {
        let one = |at: usize, changes| Target {
            key: view.queue[at].name.clone(),
            end: None,
            from: 0,
            changes,
        };
        let modes = view.queue.iter().map(QueueEntry::mode);
        let (theirs, stored) = match queued::turn(modes, view.own) {
            admission::Turn::In => return Ok(Turn::In),
            // A claim on permits also waits for the one ahead to be granted.
            admission::Turn::Behind(at) => {
                (one(at, matches!(self.request.mode, Mode::Permits { .. })), 1)
            }
            admission::Turn::Full => {
                let (key, end) = self.shared.names.queue(&self.request.key);
                (Target { key, end: Some(end), from: 0, changes: false }, view.stored)
            }
        };
        let ours = one(view.own, false);
        let own = view.queue[view.own].created;
        Ok(Turn::Behind(Ahead { theirs, stored, ours, own, seen: view.revision }))
    }

    /// Writes to our entry, unless `enter` did that, and takes the slots of permits.
    async fn confirm(&mut self, view: View, _asked: Moment) -> Result<Option<Grant>> {
        let own = view.queue[view.own].created;
        if view.confirmed {
            let revision = if self.is_mutex() { own } else { view.written };
            return Ok(Some(self.grant(&view, fence(revision), view.revision)));
        }
        let (names, key) = (&self.shared.names, &self.request.key);
        let name = names.entry(key, view.lease);
        let lease = view.lease;
        self.record.since = Some(SystemTime::now());
        let mut conditions = vec![Compare::created(name.clone(), own)];
        let put = PutRequest::new(name, self.record.text());
        let mut then = vec![RequestOp::put(PutRequest { lease, prev_kv: true, ..put })];
        let mut slots = Vec::new();
        match self.request.mode {
            Mode::Mutex | Mode::Read => {}
            Mode::Write => {
                let written = PutRequest::new(names.written(key), "");
                then.push(RequestOp::put(written));
            }
            Mode::Permits { take, .. } => {
                let ours: Vec<_> =
                    view.slots.iter().filter(|slot| slot.lease == view.lease).collect();
                if let Some(first) = ours.first() {
                    // An earlier request took them, and its reply was lost.
                    let fence = fence(first.created);
                    self.slots = ours.iter().map(|slot| slot.number).collect();
                    return Ok(Some(self.grant(&view, fence, view.revision)));
                }
                slots = admission::free_slots(view.slots.iter().map(|slot| slot.number), take);
                conditions.push(Compare::created_before(names.slots(key), view.revision + 1));
                then.extend(slots.iter().map(|slot| {
                    let slot = PutRequest::new(names.slot(key, *slot), "");
                    RequestOp::put(PutRequest { lease, ..slot })
                }));
            }
        }
        let txn = TxnRequest::when(conditions, nested(then));
        let answer = self.change("confirm a place in the queue", txn).await?;
        if !answer.succeeded {
            return Ok(None);
        }
        self.slots = slots;
        let revision = revision(&answer);
        self.notice_request(answer.responses.into_iter().next());
        let fence = match self.request.mode {
            Mode::Mutex => fence(own),
            Mode::Read => fence(view.written),
            Mode::Write | Mode::Permits { .. } => fence(revision),
        };
        Ok(Some(self.grant(&view, fence, revision)))
    }

    async fn wait(&mut self, ahead: &mut Ahead) -> Result<()> {
        // Asking again keeps our own lease alive, and detects if it is not.
        let ttl = self.lease.as_ref().and_then(|lease| lease.ttl).unwrap_or(PATIENCE);
        let shared = self.shared.clone();
        let mut theirs = shared.watches.begin(ahead.theirs.clone());
        let mut ours = shared.watches.begin(ahead.ours.clone());
        let missed = async {
            if let (Ok(theirs), Ok(ours)) = (theirs.started.await, ours.started.await)
                && shared.is_unchanged(ahead, theirs.max(ours)).await
            {
                std::future::pending::<()>().await;
            }
        };
        self.is_next = tokio::select! {
            _ = &mut theirs.event => true,
            _ = &mut ours.event => true,
            () = missed => true,
            () = sleep(ttl / 3) => false,
        };
        Ok(())
    }

    async fn leave(&mut self) -> Result<Released> {
        let Some(lease) = self.lease.as_ref().map(|lease| lease.id) else {
            return Ok(Released::Yes);
        };
        let shared = self.shared.clone();
        let was_there = match self.in_doubt {
            true => revoke(&shared.cluster, lease, &mut self.leaving).await?,
            false => self.delete_entry(lease).await?,
        };
        let released = match was_there || self.leaving || !self.held {
            true => Released::Yes,
            false => Released::AlreadyGone,
        };
        // If an operator deleted our entry, something that belongs to it may be left; and a deletion
        // without an answer would hit the next claim that uses the lease.
        let is_spare = was_there && !self.leaving;
        if let Some(spare) = self.lease.take().filter(|_| !self.in_doubt)
            && !(is_spare && shared.leases.give_back(spare))
        {
            let _ = revoke(&shared.cluster, lease, &mut false).await;
        }
        Ok(released)
    }
}

impl EtcdQueue {
    pub(super) fn is_mutex(&self) -> bool {
        self.request.mode == Mode::Mutex
    }

    /// Our lease, created if there is none.
    async fn lease(&mut self, asked: Moment) -> Result<(i64, Duration)> {
        let lease = self.lease.get_or_insert_with(|| self.shared.leases.take(self.request.ttl));
        if let Some(ttl) = lease.ttl {
            return Ok((lease.id, ttl));
        }
        let made = lease.make(&self.shared.cluster, asked).await;
        self.in_doubt |= made.is_err();
        Ok((lease.id, made?))
    }

    /// Whether the lease need not be kept alive now, because it just was. The grant counts from
    /// then, and is renewed that much earlier; a lease that is never renewed needs its full length.
    fn is_fresh(&self, ttl: Duration, asked: Moment) -> bool {
        let age =
            self.lease.as_ref().and_then(|lease| lease.alive).map(|alive| asked.since(&alive));
        let enough = if self.request.fixed { Duration::ZERO } else { ttl / RECENT };
        // A claim that asks again for what it holds wants the full length from now on.
        age.is_some_and(|age| age.is_zero() || !self.held && age < enough)
    }

    /// A transaction that attaches something to our lease.
    pub(super) async fn change(&mut self, doing: &str, txn: TxnRequest) -> Result<TxnResponse> {
        self.shared.txn(doing, txn, &mut self.in_doubt).await
    }

    /// Leaves the queue; the lease stays. False if our entry was gone already.
    async fn delete_entry(&mut self, lease: i64) -> Result<bool> {
        const DOING: &str = "leave the queue";
        let Some(created) = self.entry else { return Ok(!self.held) };
        let (names, key) = (&self.shared.names, &self.request.key);
        let name = names.entry(key, lease);
        let was_there = if self.slots.is_empty() {
            // Nobody else has a key with our lease in its name.
            let delete = |client: Client| client.delete(name.clone());
            let cluster = &self.shared.cluster;
            cluster.change(DOING, PATIENCE, &mut self.leaving, delete).await?.deleted > 0
        } else {
            let ours = Compare::created(name.clone(), created);
            let slots = self.slots.iter().map(|slot| names.slot(key, *slot));
            let delete = std::iter::once(name).chain(slots).map(RequestOp::delete).collect();
            let txn = TxnRequest::when([ours], nested(delete));
            self.shared.txn(DOING, txn, &mut self.leaving).await?.succeeded
        };
        self.entry = None;
        Ok(was_there)
    }

    /// From the answer to a write to our entry: whether a client saw that we hold the lock before we
    /// did, and asked us to release it.
    pub(super) fn notice_request(&self, answer: Option<ResponseOp>) {
        if let Some(Response::Put(put)) = answer.and_then(|op| op.response)
            && let Some(before) = put.prev_kv
            && let Some(asked) = Record::read(&before.value).and_then(|before| before.asked)
        {
            self.yielding.request(asked);
        }
    }

    fn grant(&mut self, view: &View, fence: Fence, seen: i64) -> Grant {
        self.held = true;
        let lease = self.lease.as_ref().expect("an entry has a lease");
        let own = &view.queue[view.own];
        let held = EtcdHeld {
            shared: self.shared.clone(),
            lease: view.lease,
            name: own.name.clone(),
            created: own.created,
            seen,
            yielding: self.yielding.clone(),
        };
        Grant {
            fence,
            slots: self.slots.clone(),
            ttl: lease.ttl.expect("a lease with an entry was granted"),
            since: lease.alive.expect("a lease that was looked at is alive"),
            held: Arc::new(held),
            reserved: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_testkit::server::etcd::Servers;
    use tokio::task::spawn_blocking;

    use super::super::{inspect, open};
    use super::*;
    use crate::core::clock::Clock;
    use crate::engine::{Claim, Query};
    use crate::key::Key;
    use crate::owner::Token;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_claim_that_was_too_late_for_a_slot_leaves_it_to_its_holder() {
        let servers = spawn_blocking(|| Servers::start(1)).await.expect("a server can be started");
        let shared = open(servers.url("").parse().unwrap()).await.unwrap().shared;
        let key = Key::new("key").unwrap();
        let claim = || {
            let (mode, ttl) = (Mode::Permits { take: 1, limit: 2 }, Duration::from_secs(30));
            let request = Request::new(key.clone(), Token::fresh(), mode, ttl);
            EtcdClaim::new(shared.clone(), request)
        };
        let now = Clock::System.now();
        let (mut late, mut quick) = (claim(), claim());
        let Entered::Queued(view) = late.queue.enter(now).await.unwrap() else {
            panic!("nobody else is in the queue")
        };
        let grant = quick.attempt(now).await.unwrap().expect("there is room for two");
        // It saw the same slot free.
        assert!(late.queue.confirm(view, now).await.unwrap().is_none());
        late.release().await.unwrap();
        let seen = inspect::inspect(&shared, &Query::Key(key)).await.unwrap();
        assert_eq!(seen[0].holders[0].slots, grant.slots);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_lease_that_a_late_deletion_may_name_serves_no_other_claim() {
        let servers = spawn_blocking(|| Servers::start(1)).await.expect("a server can be started");
        let shared = open(servers.url("").parse().unwrap()).await.unwrap().shared;
        let (key, ttl) = (Key::new("key").unwrap(), Duration::from_secs(30));
        let request = Request::new(key, Token::fresh(), Mode::Mutex, ttl);
        for (late, spare) in [(false, 1), (true, 0)] {
            let mut claim = EtcdClaim::new(shared.clone(), request.clone());
            claim.attempt(Clock::System.now()).await.unwrap().expect("it is free");
            // A first deletion got no answer, and may still arrive.
            claim.queue.leaving = late;
            assert_eq!(claim.release().await.unwrap(), Released::Yes);
            assert_eq!(servers.leases(), spare);
        }
        // Nor the next entry of the same claim.
        let mut claim = EtcdClaim::new(shared.clone(), request);
        claim.attempt(Clock::System.now()).await.unwrap().expect("it is free");
        let named = claim.queue.lease.as_ref().map(|lease| lease.id);
        claim.queue.leaving = true;
        claim.attempt(Clock::System.now()).await.unwrap().expect("it is free");
        assert_ne!(claim.queue.lease.as_ref().map(|lease| lease.id), named);
        assert_eq!(servers.leases(), 1);
    }
}
