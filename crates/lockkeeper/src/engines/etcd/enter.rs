//! How a claim enters the queue and looks at it: one transaction that creates its entry, or confirms
//! that it is first, or reads those ahead.
//!
//! Easy to get wrong: the transaction may run twice, so the entry is created only if it does not
//! exist. If it exists, there may be others behind it. The create revision of our entry is recorded
//! from every answer that has it, before anything else can fail.

use std::time::SystemTime;

use super::claim::EtcdQueue;
use super::client::{
    Compare, KeyValue, PutRequest, RangeRequest, RequestOp, ResponseOp, SortOrder, SortTarget,
    TxnRequest, TxnResponse,
};
use super::layout::{QueueEntry, Slot, queue_of, refuse_mix};
use crate::core::admission;
use crate::engine::Mode;
use crate::engines::queued::{self, Entered};
use crate::error::{Error, Result};

const DOING: &str = "enter the queue";

/// What a transaction returned.
pub(super) struct View {
    pub(super) lease: i64,
    pub(super) revision: i64,
    /// Whether this step wrote to our entry, and all that a grant needs.
    pub(super) confirmed: bool,
    /// Our entry and those ahead of it. For a mutex, only the last of those.
    pub(super) queue: Vec<QueueEntry>,
    /// The position of our entry among them.
    pub(super) own: usize,
    /// How many keys are in the range of the queue, up to ours. For a mutex, it does not count.
    pub(super) stored: usize,
    /// The last writer's fence.
    pub(super) written: i64,
    /// The permits that are taken.
    pub(super) slots: Vec<Slot>,
}

impl EtcdQueue {
    /// Creates an entry if there is none, and reads the queue; see `Queue::enter`.
    pub(super) async fn look(&mut self, lease: i64) -> Result<Entered<View>> {
        let is_next = std::mem::take(&mut self.is_next);
        match (self.entry, self.request.mode) {
            (Some(own), mode) if is_next && !matches!(mode, Mode::Permits { .. }) => {
                self.confirm_first(lease, own).await
            }
            (Some(_), _) => {
                let txn = TxnRequest::when([], self.with_queue(self.get_own(lease)));
                let answer = self.shared.txn(DOING, txn, &mut false).await?;
                self.view(lease, revision(&answer), false, answer.responses).await
            }
            (None, Mode::Mutex) => self.enter_empty(lease).await,
            (None, _) => self.enter_behind(lease).await,
        }
    }

    /// Creates an entry if the queue is empty, which it usually is: the shortest possible path,
    /// because all of it goes through the cluster's log. If it is not, the same transaction enters
    /// behind the others.
    async fn enter_empty(&mut self, lease: i64) -> Result<Entered<View>> {
        let empty = Compare::empty(self.shared.names.queue(&self.request.key));
        let put = self.put_entry(lease);
        let otherwise = match self.request.queue {
            true => RequestOp::txn(self.enter_txn(lease)),
            false => self.get_own(lease),
        };
        let txn = TxnRequest::when([empty], vec![put]).or_else(vec![otherwise]);
        let answer = self.change(DOING, txn).await?;
        let revision = revision(&answer);
        if answer.succeeded {
            self.entry = Some(revision);
            return Ok(Entered::Queued(self.alone(lease, revision, revision)));
        }
        let answer = answer.responses.into_iter().next();
        if !self.request.queue {
            // Perhaps our own: then the reply to an earlier request was lost.
            self.entry = self.find_own(answer, lease)?;
            return self.enter_behind(lease).await;
        }
        let Some(entered) = answer.and_then(ResponseOp::nested) else { return Ok(Entered::Gone) };
        self.view(lease, revision, entered.succeeded, entered.responses).await
    }

    /// Creates an entry, unless it would have to wait and must not.
    async fn enter_behind(&mut self, lease: i64) -> Result<Entered<View>> {
        if self.entry.is_none() && !self.request.queue && self.would_wait().await? {
            return Ok(Entered::Busy);
        }
        let txn = self.enter_txn(lease);
        let answer = self.change(DOING, txn).await?;
        self.view(lease, revision(&answer), answer.succeeded, answer.responses).await
    }

    /// One transaction: creates our entry, unless it exists, and reads the queue.
    fn enter_txn(&mut self, lease: i64) -> TxnRequest {
        let absent = Compare::created(self.shared.names.entry(&self.request.key, lease), 0);
        let put = self.put_entry(lease);
        TxnRequest::when([absent], self.with_queue(put))
            .or_else(self.with_queue(self.get_own(lease)))
    }

    /// The entry ahead is gone, so ours is the first, unless a waiter left: one transaction
    /// confirms that, or reads the queue.
    async fn confirm_first(&mut self, lease: i64, own: i64) -> Result<Entered<View>> {
        let (names, key) = (self.shared.names.clone(), self.request.key.clone());
        let exists = Compare::created(names.entry(&key, lease), own);
        let first = Compare::created_since(names.queue(&key), own);
        let mut then = vec![self.put_entry(lease)];
        match self.request.mode {
            Mode::Read => then.push(RequestOp::get(RangeRequest::key(names.written(&key)))),
            Mode::Write => then.push(RequestOp::put(PutRequest::new(names.written(&key), ""))),
            Mode::Mutex | Mode::Permits { .. } => {}
        }
        let txn =
            TxnRequest::when([exists, first], then).or_else(self.with_queue(self.get_own(lease)));
        let answer = self.change("confirm a place in the queue", txn).await?;
        let revision = revision(&answer);
        if !answer.succeeded {
            return self.view(lease, revision, false, answer.responses).await;
        }
        let mut answers = answer.responses.into_iter();
        self.notice_request(answers.next());
        let beside = answers.next().map_or_else(Vec::new, ResponseOp::found);
        let mut view = self.alone(lease, own, revision);
        view.written = match self.request.mode {
            Mode::Write => revision,
            _ => written(&beside),
        };
        Ok(Entered::Queued(view))
    }

    /// For a single attempt: whether it would have to wait.
    async fn would_wait(&self) -> Result<bool> {
        let queue = self.read_queue(i64::MAX).await?;
        refuse_mix(&self.request, &queue)?;
        let modes = queue.iter().map(QueueEntry::mode).chain([self.request.mode]);
        Ok(queued::turn(modes, queue.len()) != admission::Turn::In)
    }

    /// Our entry, which this step wrote to, and nobody ahead of it.
    fn alone(&self, lease: i64, created: i64, revision: i64) -> View {
        let name = self.shared.names.entry(&self.request.key, lease);
        let record = Some(self.record.clone());
        let own = QueueEntry { name, lease, created, changed: revision, record };
        View {
            lease,
            revision,
            confirmed: true,
            queue: vec![own],
            own: 0,
            stored: 1,
            written: 0,
            slots: Vec::new(),
        }
    }

    /// Reads what a transaction returned: our entry, the queue, and what is kept beside it.
    async fn view(
        &mut self,
        lease: i64,
        revision: i64,
        is_new: bool,
        answers: Vec<ResponseOp>,
    ) -> Result<Entered<View>> {
        let mut found = answers.into_iter();
        let own = found.next();
        self.entry = match is_new {
            true => Some(revision),
            false => self.find_own(own, lease)?,
        };
        // Our entry was deleted by another client.
        let Some(created) = self.entry else { return Ok(Entered::Gone) };
        let stored = found.next().map_or_else(Vec::new, ResponseOp::found);
        let beside = found.next().map_or_else(Vec::new, ResponseOp::found);
        let mut queue = queue_of(&self.shared.names, &self.request.key, &stored);
        if self.is_mutex()
            && (queue.len() < stored.len()
                || queue.iter().any(|entry| !entry.mixes(self.request.mode)))
        {
            queue = self.read_queue(created).await?;
        }
        let own = queue.iter().position(|entry| entry.created == created);
        let Some(own) = own else { return Ok(Entered::Gone) };
        if is_new {
            refuse_mix(&self.request, &queue[..own])?;
        }
        let slots = match self.request.mode {
            Mode::Permits { .. } => beside.iter().filter_map(Slot::read).collect(),
            _ => Vec::new(),
        };
        let confirmed = is_new && matches!(self.request.mode, Mode::Mutex | Mode::Read);
        let (stored, written) = (stored.len(), written(&beside));
        Ok(Entered::Queued(View { lease, revision, confirmed, queue, own, stored, written, slots }))
    }

    /// This operation, and those that read the queue and what is kept beside it.
    fn with_queue(&self, first: RequestOp) -> Vec<RequestOp> {
        let (names, key) = (&self.shared.names, &self.request.key);
        let mut queue = RangeRequest::range(names.queue(key));
        // Without a limit if there is no entry yet.
        queue.max_create_revision = self.entry.unwrap_or_default();
        if self.is_mutex() {
            queue.sort_target = SortTarget::Create as i32;
            queue.sort_order = SortOrder::Descend as i32;
            queue.limit = 2;
        }
        let beside = match self.request.mode {
            Mode::Mutex => None,
            Mode::Read | Mode::Write => Some(RangeRequest::key(names.written(key))),
            Mode::Permits { .. } => Some(RangeRequest::range(names.slots(key))),
        };
        [first, RequestOp::get(queue)].into_iter().chain(beside.map(RequestOp::get)).collect()
    }

    /// The queue up to an entry.
    async fn read_queue(&self, last: i64) -> Result<Vec<QueueEntry>> {
        let queue = RangeRequest::range(self.shared.names.queue(&self.request.key));
        let queue = RangeRequest { max_create_revision: last, ..queue };
        let found = self.shared.get("look at a queue", queue).await?;
        Ok(queue_of(&self.shared.names, &self.request.key, &found.kvs))
    }

    /// Writes our entry, which has no permits yet.
    fn put_entry(&mut self, lease: i64) -> RequestOp {
        self.slots.clear();
        self.record.since = Some(SystemTime::now());
        let name = self.shared.names.entry(&self.request.key, lease);
        let put = PutRequest::new(name, self.record.text());
        RequestOp::put(PutRequest { lease, prev_kv: self.entry.is_some(), ..put })
    }

    fn get_own(&self, lease: i64) -> RequestOp {
        RequestOp::get(RangeRequest::key(self.shared.names.entry(&self.request.key, lease)))
    }

    /// The create revision of our entry, if it exists.
    fn find_own(&self, found: Option<ResponseOp>, lease: i64) -> Result<Option<i64>> {
        match found.map_or_else(Vec::new, ResponseOp::found).first() {
            Some(entry) if entry.lease != lease => Err(Error::Conflict {
                key: self.request.key.clone(),
                found: format!(
                    "another client wrote to our entry in the queue, {:?}",
                    String::from_utf8_lossy(&entry.key)
                ),
            }),
            entry => Ok(entry.map(|entry| entry.create_revision)),
        }
    }
}

/// The last writer's fence, from the key that keeps it.
fn written(beside: &[KeyValue]) -> i64 {
    beside.first().map_or(0, |kv| kv.mod_revision)
}

pub(super) fn revision(answer: &TxnResponse) -> i64 {
    answer.header.map_or(0, |header| header.revision)
}
