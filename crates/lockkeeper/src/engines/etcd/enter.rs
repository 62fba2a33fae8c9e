//! How a claim enters the queue: a transaction that creates its entry and reads those ahead.
//!
//! Easy to get wrong: the transaction may run twice, so the entry is created only if it does not
//! exist. If it exists, there may be others behind it. The create revision of our entry is recorded
//! from every answer that has it, before anything else can fail.

use std::time::SystemTime;

use super::claim::EtcdQueue;
use super::client::{
    Compare, PutRequest, RangeRequest, RequestOp, ResponseOp, SortOrder, SortTarget, TxnRequest,
    TxnResponse,
};
use super::layout::{QueueEntry, Slot, queue_of, refuse_mix};
use crate::core::admission;
use crate::engine::Mode;
use crate::engines::queued::{self, Entered};
use crate::error::{Error, Result};

/// What a transaction returned.
pub(super) struct View {
    pub(super) lease: i64,
    pub(super) revision: i64,
    /// Whether the entry was created in this very step.
    pub(super) is_new: bool,
    /// Our entry and those ahead of it. For a mutex, only the last of those.
    pub(super) queue: Vec<QueueEntry>,
    /// The position of our entry among them.
    pub(super) own: usize,
    /// The last writer's fence.
    pub(super) written: i64,
    /// The permits that are taken.
    pub(super) slots: Vec<Slot>,
}

impl EtcdQueue {
    /// Creates an entry if there is none, and reads the queue; see `Queue::enter`.
    pub(super) async fn look(&mut self, lease: i64) -> Result<Entered<View>> {
        if self.entry.is_none()
            && self.is_mutex()
            && let Some(view) = self.enter_empty(lease).await?
        {
            return Ok(Entered::Queued(view));
        }
        if self.entry.is_none() && !self.request.queue && self.would_wait().await? {
            return Ok(Entered::Busy);
        }
        self.enter_and_look(lease).await
    }

    /// Creates an entry if the queue is empty, which it usually is: the smallest possible
    /// transaction, because all of it goes through the cluster's log.
    ///
    /// `None` if there are entries, perhaps our own: then the reply to an earlier request was lost.
    async fn enter_empty(&mut self, lease: i64) -> Result<Option<View>> {
        let name = self.shared.names.entry(&self.request.key, lease);
        let empty = Compare::empty(self.shared.names.queue(&self.request.key));
        let put = self.put_entry(name.clone(), lease);
        let own = RangeRequest { keys_only: true, ..RangeRequest::key(name.clone()) };
        let txn = TxnRequest::when([empty], vec![put]).or_else(vec![RequestOp::get(own)]);
        let answer = self.change("enter the queue", txn).await?;
        if !answer.succeeded {
            self.entry = self.find_own(answer.responses.into_iter().next(), lease)?;
            return Ok(None);
        }
        let revision = revision(&answer);
        self.entry = Some(revision);
        let record = Some(self.record.clone());
        let own = QueueEntry { name, lease, created: revision, changed: revision, record };
        let (queue, slots) = (vec![own], Vec::new());
        Ok(Some(View { lease, revision, is_new: true, queue, own: 0, written: 0, slots }))
    }

    /// For a single attempt: whether it would have to wait.
    async fn would_wait(&self) -> Result<bool> {
        let queue = self.read_queue(i64::MAX).await?;
        refuse_mix(&self.request, &queue)?;
        let modes = queue.iter().map(QueueEntry::mode).chain([self.request.mode]);
        Ok(queued::turn(modes, queue.len()) != admission::Turn::In)
    }

    /// One transaction: creates our entry, unless it exists, and reads the queue.
    async fn enter_and_look(&mut self, lease: i64) -> Result<Entered<View>> {
        let names = self.shared.names.clone();
        let key = &self.request.key;
        let name = names.entry(key, lease);
        let mut queue = RangeRequest::range(names.queue(key));
        // Without a limit if there is no entry yet.
        queue.max_create_revision = self.entry.unwrap_or_default();
        if self.is_mutex() {
            queue.sort_target = SortTarget::Create as i32;
            queue.sort_order = SortOrder::Descend as i32;
            queue.limit = 2;
        }
        let mut look = vec![RequestOp::get(queue)];
        match self.request.mode {
            Mode::Mutex => {}
            Mode::Read | Mode::Write => {
                look.push(RequestOp::get(RangeRequest::key(names.written(key))));
            }
            Mode::Permits { .. } => {
                look.push(RequestOp::get(RangeRequest::range(names.slots(key))));
            }
        }
        let with = |first: RequestOp| [vec![first], look.clone()].concat();
        let own = RequestOp::get(RangeRequest::key(name.clone()));
        let doing = "enter the queue";
        let (answer, is_new) = if self.entry.is_none() {
            let absent = Compare::created(name.clone(), 0);
            let put = self.put_entry(name, lease);
            let txn = TxnRequest::when([absent], with(put)).or_else(with(own));
            let answer = self.change(doing, txn).await?;
            let is_new = answer.succeeded;
            (answer, is_new)
        } else {
            (self.shared.txn(doing, TxnRequest::when([], with(own)), &mut false).await?, false)
        };
        let revision = revision(&answer);
        let mut found = answer.responses.into_iter();
        let own = found.next();
        self.entry = match is_new {
            true => Some(revision),
            false => self.find_own(own, lease)?,
        };
        // Our entry was deleted by another client.
        let Some(created) = self.entry else { return Ok(Entered::Gone) };
        let stored = found.next().map_or_else(Vec::new, ResponseOp::found);
        let beside = found.next().map_or_else(Vec::new, ResponseOp::found);
        let mut queue = queue_of(&names, &self.request.key, &stored);
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
        let (mut written, mut slots) = (0, Vec::new());
        match self.request.mode {
            Mode::Permits { .. } => slots = beside.iter().filter_map(Slot::read).collect(),
            _ => written = beside.first().map_or(0, |kv| kv.mod_revision),
        }
        Ok(Entered::Queued(View { lease, revision, is_new, queue, own, written, slots }))
    }

    /// The queue up to an entry.
    async fn read_queue(&self, last: i64) -> Result<Vec<QueueEntry>> {
        let queue = RangeRequest::range(self.shared.names.queue(&self.request.key));
        let queue = RangeRequest { max_create_revision: last, ..queue };
        let found = self.shared.get("look at a queue", queue).await?;
        Ok(queue_of(&self.shared.names, &self.request.key, &found.kvs))
    }

    /// A new entry, which has no permits yet.
    fn put_entry(&mut self, name: Vec<u8>, lease: i64) -> RequestOp {
        self.slots.clear();
        self.record.since = Some(SystemTime::now());
        RequestOp::put(PutRequest { lease, ..PutRequest::new(name, self.record.text()) })
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

pub(super) fn revision(answer: &TxnResponse) -> i64 {
    answer.header.map_or(0, |header| header.revision)
}
