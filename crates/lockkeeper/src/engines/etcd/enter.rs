//! How a claim enters the queue: a transaction that makes its entry and looks at those ahead.
//!
//! Easy to get wrong: the transaction may run twice, so the entry is made only if it does not exist. One
//! that finds its entry there may have others behind it. The create revision of our entry is noted from
//! every answer that tells it, before anything else can fail.

use std::time::SystemTime;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use super::claim::EtcdQueue;
use super::layout::{QueueEntry, Slot, queue_of, refuse_mix};
use crate::core::admission;
use crate::engine::Mode;
use crate::engines::queued::{self, Entered};
use crate::error::{Error, Result};

/// What a transaction showed.
pub(super) struct View {
    pub(super) lease: i64,
    pub(super) revision: i64,
    /// Whether the entry was made in this very step.
    pub(super) is_new: bool,
    /// Our entry and those ahead of it. For a mutex, only the last one of those.
    pub(super) queue: Vec<QueueEntry>,
    /// Where our entry is among them.
    pub(super) own: usize,
    /// The last writer's fence.
    pub(super) written: i64,
    /// The permits that are taken.
    pub(super) slots: Vec<Slot>,
}

impl EtcdQueue {
    /// Makes an entry if there is none, and looks at the queue; see `Queue::enter`.
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

    /// Makes an entry if the queue is empty, which it is most of the time: the smallest transaction
    /// that will do, because all of it goes through the cluster's log.
    ///
    /// `None` if there are entries, maybe our own: the reply to an earlier request was lost then.
    async fn enter_empty(&mut self, lease: i64) -> Result<Option<View>> {
        let name = self.shared.names.entry(&self.request.key, lease);
        let (start, end) = self.shared.names.queue(&self.request.key);
        let empty = Compare::create_revision(start, CompareOp::Equal, 0).with_range(end);
        let put = self.put_entry(name.clone(), lease);
        let own = TxnOp::get(name.clone(), Some(GetOptions::new().with_keys_only()));
        let txn = Txn::new().when([empty]).and_then([put]).or_else([own]);
        let answer = self.change("take a place in the queue", txn).await?;
        if !answer.succeeded() {
            self.entry = self.find_own(answer.op_responses().into_iter().next(), lease)?;
            return Ok(None);
        }
        let revision = revision(&answer);
        self.entry = Some(revision);
        let record = Some(self.record.clone());
        let own = QueueEntry { name, lease, created: revision, changed: revision, record };
        let (queue, slots) = (vec![own], Vec::new());
        Ok(Some(View { lease, revision, is_new: true, queue, own: 0, written: 0, slots }))
    }

    /// For a single try: whether it would have to wait.
    async fn would_wait(&self) -> Result<bool> {
        let queue = self.read_queue(i64::MAX).await?;
        refuse_mix(&self.request, &queue)?;
        let modes = queue.iter().map(QueueEntry::mode).chain([self.request.mode]);
        Ok(queued::turn(modes, queue.len()) != admission::Turn::In)
    }

    /// One transaction: makes our entry, unless it is there, and looks at the queue.
    async fn enter_and_look(&mut self, lease: i64) -> Result<Entered<View>> {
        let names = self.shared.names.clone();
        let key = &self.request.key;
        let name = names.entry(key, lease);
        let (start, end) = names.queue(key);
        let mut queue = GetOptions::new().with_range(end);
        if let Some(created) = self.entry {
            queue = queue.with_max_create_revision(created);
        }
        if self.is_mutex() {
            queue = queue.with_sort(SortTarget::Create, SortOrder::Descend).with_limit(2);
        }
        let mut look = vec![TxnOp::get(start, Some(queue))];
        match self.request.mode {
            Mode::Mutex => {}
            Mode::Read | Mode::Write => look.push(TxnOp::get(names.written(key), None)),
            Mode::Permits { .. } => {
                let (start, end) = names.slots(key);
                look.push(TxnOp::get(start, Some(GetOptions::new().with_range(end))));
            }
        }
        let with = |first: TxnOp| [vec![first], look.clone()].concat();
        let own = TxnOp::get(name.clone(), None);
        let doing = "take a place in the queue";
        let (answer, is_new) = if self.entry.is_none() {
            let absent = Compare::create_revision(name.clone(), CompareOp::Equal, 0);
            let put = self.put_entry(name, lease);
            let txn = Txn::new().when([absent]).and_then(with(put)).or_else(with(own));
            let answer = self.change(doing, txn).await?;
            let is_new = answer.succeeded();
            (answer, is_new)
        } else {
            (self.shared.txn(doing, Txn::new().and_then(with(own)), &mut false).await?, false)
        };
        let revision = revision(&answer);
        let mut found = answer.op_responses().into_iter();
        let own = found.next();
        self.entry = match is_new {
            true => Some(revision),
            false => self.find_own(own, lease)?,
        };
        // Somebody took our entry away.
        let Some(created) = self.entry else { return Ok(Entered::Gone) };
        let stored = values(found.next());
        let beside = values(found.next());
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
            _ => written = beside.first().map_or(0, KeyValue::mod_revision),
        }
        Ok(Entered::Queued(View { lease, revision, is_new, queue, own, written, slots }))
    }

    /// The queue up to an entry.
    async fn read_queue(&self, last: i64) -> Result<Vec<QueueEntry>> {
        let (start, end) = self.shared.names.queue(&self.request.key);
        let options = GetOptions::new().with_range(end).with_max_create_revision(last);
        let found = self.shared.get("look at a queue", start, options).await?;
        Ok(queue_of(&self.shared.names, &self.request.key, found.kvs()))
    }

    /// A new entry, which has no permits yet.
    fn put_entry(&mut self, name: Vec<u8>, lease: i64) -> TxnOp {
        self.slots.clear();
        self.record.since = Some(SystemTime::now());
        TxnOp::put(name, self.record.text(), Some(PutOptions::new().with_lease(lease)))
    }

    /// The create revision of our entry, if it is there.
    fn find_own(&self, found: Option<TxnOpResponse>, lease: i64) -> Result<Option<i64>> {
        match values(found).first() {
            Some(entry) if entry.lease() != lease => Err(Error::Conflict {
                key: self.request.key.clone(),
                found: format!("somebody wrote to our entry in the queue, {:?}", entry.key_str()),
            }),
            entry => Ok(entry.map(KeyValue::create_revision)),
        }
    }
}

pub(super) fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, |header| header.revision())
}

fn values(found: Option<TxnOpResponse>) -> Vec<KeyValue> {
    match found {
        Some(TxnOpResponse::Get(mut found)) => found.take_kvs(),
        _ => Vec::new(),
    }
}
