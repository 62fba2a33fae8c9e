//! What a claim sees of its line, and how it takes its place there: in one transaction.
//!
//! Easy to get wrong: the transaction may run twice, so the place is made only if it does not exist.
//! One that finds its place there may have others behind it.

use std::time::SystemTime;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use super::claim::EtcdClaim;
use super::queue::{self, QueueEntry, refuse_mix};
use crate::core::admission::Turn;
use crate::engine::Mode;
use crate::error::{Error, Result};

/// What a transaction showed.
pub(super) struct View {
    pub(super) revision: i64,
    /// Whether the place was taken in this very step.
    pub(super) entered: bool,
    /// Ourselves and those ahead of us. For a mutex, only the last one of those.
    pub(super) line: Vec<QueueEntry>,
    /// The last writer's fence.
    pub(super) written: i64,
    /// The permits that are taken.
    pub(super) slots: Vec<Slot>,
}

pub(super) struct Slot {
    pub(super) number: u32,
    pub(super) lease: i64,
    /// The create revision.
    pub(super) fence: i64,
}

impl View {
    fn of(revision: i64, line: Vec<QueueEntry>) -> Self {
        Self { revision, entered: false, line, written: 0, slots: Vec::new() }
    }
}

impl EtcdClaim {
    /// Where we stand. Takes a place in line if we have none; `None` if a single try need not.
    ///
    /// The number of our place is noted by every answer that tells it, before anything else can fail.
    pub(super) async fn look(&mut self, lease: i64) -> Result<Option<View>> {
        if self.number.is_none()
            && self.is_mutex()
            && let Some(view) = self.enter_alone(lease).await?
        {
            return Ok(Some(view));
        }
        if self.number.is_none() && !self.request.queue && !self.would_be_let_in(lease).await? {
            return Ok(None);
        }
        self.view(lease).await.map(Some)
    }

    /// Takes a place if nobody else is in line, which is how it is most of the time: the smallest
    /// transaction that will do, because all of it goes through the cluster's log.
    ///
    /// `None` if somebody is in line, maybe we ourselves: the reply to an earlier request was lost then.
    async fn enter_alone(&mut self, lease: i64) -> Result<Option<View>> {
        self.record.since = Some(SystemTime::now());
        let names = &self.shared.names;
        let seat = names.seat(&self.request.key, lease);
        let (start, end) = names.line(&self.request.key);
        let empty = Compare::create_revision(start, CompareOp::Equal, 0).with_range(end);
        let put = self.put(seat.clone(), lease);
        let own = TxnOp::get(seat.clone(), Some(GetOptions::new().with_keys_only()));
        let txn = Txn::new().when([empty]).and_then([put]).or_else([own]);
        let answer = self.shared.txn("take a place in line", txn, &mut self.doubt).await?;
        if !answer.succeeded() {
            self.number = self.own(answer.op_responses().into_iter().next(), lease)?;
            return Ok(None);
        }
        let revision = revision(&answer);
        self.number = Some(revision);
        let record = Some(self.record.clone());
        let me = QueueEntry { name: seat, lease, number: revision, changed: revision, record };
        Ok(Some(View { entered: true, ..View::of(revision, vec![me]) }))
    }

    /// What makes our place.
    fn put(&self, seat: Vec<u8>, lease: i64) -> TxnOp {
        TxnOp::put(seat, self.record.text(), Some(PutOptions::new().with_lease(lease)))
    }

    /// For a single try: whether it is worth taking a place.
    async fn would_be_let_in(&self, lease: i64) -> Result<bool> {
        let mut line = self.whole_line(i64::MAX).await?;
        refuse_mix(&self.request.key, self.request.mode, &line)?;
        let me = QueueEntry {
            name: Vec::new(),
            lease,
            number: i64::MAX,
            changed: 0,
            record: Some(self.record.clone()),
        };
        line.push(me);
        Ok(queue::turn(&line, line.len() - 1) == Turn::In)
    }

    /// One transaction: takes our place, unless we have it already, and shows what there is.
    async fn view(&mut self, lease: i64) -> Result<View> {
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
        let with = |first: TxnOp| -> Vec<_> {
            std::iter::once(first).chain(look.iter().cloned()).collect()
        };
        let is_change = self.number.is_none();
        if is_change {
            self.record.since = Some(SystemTime::now());
        }
        let txn = match is_change {
            true => {
                let absent = Compare::create_revision(seat.clone(), CompareOp::Equal, 0);
                let put = self.put(seat, lease);
                Txn::new().when([absent]).and_then(with(put)).or_else(with(own))
            }
            false => Txn::new().and_then(with(own)),
        };
        let mut unanswered = false;
        let answer = self.shared.txn("take a place in line", txn, &mut unanswered).await;
        self.doubt |= unanswered && is_change;
        let answer = answer?;
        let revision = revision(&answer);
        let entered = is_change && answer.succeeded();
        let mut found = answer.op_responses().into_iter();
        let own = found.next();
        self.number = match entered {
            true => Some(revision),
            false => self.own(own, lease)?,
        };
        let places = stored(found.next());
        let beside = stored(found.next());
        let mut line = queue::line_of(&self.shared.names, &self.request.key, &places);
        let partial = self.is_mutex()
            && (line.len() < places.len()
                || line.iter().any(|seat| !seat.goes_with(self.request.mode)));
        if let (true, Some(number)) = (partial, self.number) {
            line = self.whole_line(number).await?;
        }
        let mut view = View { entered, ..View::of(revision, line) };
        match self.request.mode {
            Mode::Permits { .. } => view.slots = beside.iter().filter_map(Slot::read).collect(),
            _ => view.written = beside.first().map_or(0, KeyValue::mod_revision),
        }
        Ok(view)
    }

    /// The number of our place, if it is there.
    fn own(&self, found: Option<TxnOpResponse>, lease: i64) -> Result<Option<i64>> {
        match stored(found).first() {
            Some(place) if place.lease() != lease => Err(Error::Conflict {
                key: self.request.key.clone(),
                found: format!("somebody wrote to our place in line, {:?}", place.key_str()),
            }),
            place => Ok(place.map(KeyValue::create_revision)),
        }
    }

    /// Everyone in line up to this number.
    async fn whole_line(&self, number: i64) -> Result<Vec<QueueEntry>> {
        let (start, end) = self.shared.names.line(&self.request.key);
        let options = GetOptions::new().with_range(end).with_max_create_revision(number);
        let found = self.shared.get("look at a line", start, options).await?;
        Ok(queue::line_of(&self.shared.names, &self.request.key, found.kvs()))
    }
}

impl Slot {
    fn read(stored: &KeyValue) -> Option<Self> {
        let number = stored.key_str().ok()?.rsplit_once(':')?.1.parse().ok()?;
        Some(Self { number, lease: stored.lease(), fence: stored.create_revision() })
    }
}

pub(super) fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, |header| header.revision())
}

fn stored(found: Option<TxnOpResponse>) -> Vec<KeyValue> {
    match found {
        Some(TxnOpResponse::Get(mut found)) => found.take_kvs(),
        _ => Vec::new(),
    }
}
