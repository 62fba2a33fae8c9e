//! What a claim sees of its line, and how it takes its place there: in one transaction.
//!
//! Easy to get wrong: the transaction may run twice, so the place is made only if it does not exist.

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use super::claim::Ticket;
use super::line::{self, Seat, mixes, refuse_mix};
use crate::backend::Mode;
use crate::error::Result;
use crate::queue::Turn;

/// What a transaction showed.
pub(super) struct View {
    pub(super) revision: i64,
    /// The create revision of our place, if we have one.
    pub(super) number: Option<i64>,
    /// Whether the place was taken in this very step.
    pub(super) entered: bool,
    /// Ourselves and those ahead of us. For a mutex, only the last one of those.
    pub(super) line: Vec<Seat>,
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
    fn of(revision: i64, line: Vec<Seat>) -> Self {
        Self { revision, number: None, entered: false, line, written: 0, slots: Vec::new() }
    }
}

/// What a transaction is to do besides looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    Nothing,
    /// A place, if nobody else is in line. Of a mutex only.
    IfAlone,
    Place,
}

impl Ticket {
    /// Where we stand. Takes a place in line if we have none; `None` if a single try need not.
    pub(super) async fn look(&mut self, lease: i64) -> Result<Option<View>> {
        if self.number.is_some() {
            return self.view(lease, Take::Nothing).await.map(Some);
        }
        if !self.request.queue {
            if self.is_mutex() {
                let view = self.view(lease, Take::IfAlone).await?;
                if view.number.is_some() {
                    return Ok(Some(view));
                }
            }
            if !self.would_be_let_in(lease).await? {
                return Ok(None);
            }
        }
        self.view(lease, Take::Place).await.map(Some)
    }

    /// For a single try: whether it is worth taking a place.
    async fn would_be_let_in(&self, lease: i64) -> Result<bool> {
        let mut line = self.whole_line(i64::MAX).await?;
        refuse_mix(&self.request.key, self.request.mode, &line)?;
        let me = Seat {
            name: Vec::new(),
            lease,
            number: i64::MAX,
            changed: 0,
            record: self.record.clone(),
        };
        line.push(me);
        Ok(line::turn(&line, line.len() - 1) == Turn::In)
    }

    /// One transaction: takes our place, unless we have it already, and shows what there is.
    async fn view(&mut self, lease: i64, take: Take) -> Result<View> {
        let names = &self.shared.names;
        let key = &self.request.key;
        let seat = names.seat(key, lease);
        let (start, end) = names.line(key);
        let mut line = GetOptions::new().with_range(end.clone());
        if let Some(number) = self.number {
            line = line.with_max_create_revision(number);
        }
        if self.is_mutex() {
            line = line.with_sort(SortTarget::Create, SortOrder::Descend).with_limit(2);
        }
        let mut look = vec![TxnOp::get(start.clone(), Some(line))];
        match self.request.mode {
            Mode::Read | Mode::Write => look.push(TxnOp::get(names.written(key), None)),
            Mode::Permits { .. } => {
                let (start, end) = names.slots(key);
                look.push(TxnOp::get(start, Some(GetOptions::new().with_range(end))));
            }
            Mode::Mutex => {}
        }
        let own = [TxnOp::get(seat.clone(), None)].into_iter().chain(look.iter().cloned());
        let own: Vec<_> = own.collect();
        let put = {
            let options = PutOptions::new().with_lease(lease);
            TxnOp::put(seat.clone(), self.record.text(), Some(options))
        };
        let absent = Compare::create_revision(seat.clone(), CompareOp::Equal, 0);
        let alone = Compare::create_revision(start, CompareOp::Equal, 0).with_range(end);
        let queue_up = |put: &TxnOp| {
            let then: Vec<_> = [put.clone()].into_iter().chain(look.iter().cloned()).collect();
            Txn::new().when([absent]).and_then(then).or_else(own.clone())
        };
        // Nobody else is in line most of the time, and then there is nothing to look at.
        let at_once = self.is_mutex() && take != Take::Nothing;
        let txn = match take {
            Take::Nothing => Txn::new().and_then(own),
            Take::IfAlone => Txn::new().when([alone]).and_then([put]).or_else(own),
            Take::Place if at_once => {
                let queue_up = TxnOp::txn(queue_up(&put));
                Txn::new().when([alone]).and_then([put]).or_else([queue_up])
            }
            Take::Place => queue_up(&put),
        };
        let mut unanswered = false;
        let answer = self.shared.txn("take a place in line", txn, &mut unanswered).await;
        self.doubt |= unanswered && take != Take::Nothing;
        let answer = answer?;
        let revision = revision(&answer);
        if at_once && answer.succeeded() {
            let record = self.record.clone();
            let me = Seat { name: seat, lease, number: revision, changed: revision, record };
            return Ok(View {
                number: Some(revision),
                entered: true,
                ..View::of(revision, vec![me])
            });
        }
        let mut entered = take == Take::Place && answer.succeeded();
        let mut found = answer.op_responses();
        if let Some(TxnOpResponse::Txn(inner)) = found.first() {
            entered = inner.succeeded();
            found = inner.op_responses();
        }
        let mut found = found.into_iter();
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
        let mut view = View { number, entered, ..View::of(revision, line) };
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
