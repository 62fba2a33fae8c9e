//! The history of the locks, derived from successive polls: holds, waits, and episodes of
//! contention.
//!
//! A poll is a moment. What starts and ends between two polls is not seen at all, and an end is
//! only known to lie between two polls. So the store's own `since` is used if there is one, and an
//! ambiguous end is called `ended` or `unknown`, not guessed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper::engine::{Break, BrokenHold, Fence};
use serde::{Deserialize, Serialize};

use super::episode::{Episode, Interval};
use super::model::{EngineName, Lock, Party};
use super::time;

/// How many records are kept. The oldest are dropped first.
pub(crate) const MOST_RECORDS: usize = 100_000;

/// How far back `lost` is counted.
const RECENTLY: Duration = Duration::from_secs(3_600);

/// Something that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Record {
    Hold(Span),
    Wait(Span),
    Episode(Episode),
    /// A hold that began. It is only in the file: what is missing its end after a restart ended
    /// unseen.
    Begun(Span),
}

/// A hold or a wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) engine: EngineName,
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) who: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) fence: Option<u64>,
    #[serde(serialize_with = "time::plain", deserialize_with = "time::read")]
    pub(crate) from: SystemTime,
    /// `null` while it lasts.
    #[serde(serialize_with = "time::optional", deserialize_with = "time::read_optional")]
    pub(crate) to: Option<SystemTime>,
    pub(crate) outcome: Outcome,
    /// Who broke it, and why, if that was recorded in the store.
    #[serde(default)]
    pub(crate) broken_by: Option<String>,
    #[serde(default)]
    pub(crate) why: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It lasts.
    Now,
    /// The hold ended before its lease did.
    Ended,
    /// The lease ran out.
    Expired,
    /// Broken, as the store recorded it.
    Broken,
    /// The waiter holds the lock now.
    Granted,
    /// The waiter went away, or held the lock for less than the time between two polls.
    Left,
    /// The store could not be reached for too long to tell.
    Unknown,
}

/// What is known about the past, and what is needed to continue it.
#[derive(Debug)]
pub(crate) struct History {
    records: VecDeque<Arc<Record>>,
    /// Records that the file does not have yet.
    unsaved: Vec<Arc<Record>>,
    /// Holds in progress, by engine and by what identifies them.
    begun: HashMap<(EngineName, Identity), Span>,
    /// Contention in progress.
    episodes: HashMap<(EngineName, String), Episode>,
    /// Contention means that more than this many wait.
    above: usize,
}

/// What identifies a hold at an engine in the file: key, start of the identity, fence.
type Identity = (String, String, Option<u64>);

/// The locks of an engine by key.
pub(crate) type Locks = BTreeMap<String, Lock>;

impl History {
    /// Starts from the records of a file, oldest first.
    pub(crate) fn new(past: Vec<Record>, above: usize) -> Self {
        let mut history = Self {
            records: VecDeque::new(),
            unsaved: Vec::new(),
            begun: HashMap::new(),
            episodes: HashMap::new(),
            above,
        };
        past.into_iter().for_each(|record| history.push(record));
        history.unsaved.clear();
        history
    }

    /// Compares two polls of one engine, which recorded these breaks.
    pub(crate) fn observe(
        &mut self,
        engine: &EngineName,
        before: &Locks,
        after: &Locks,
        breaks: &[Break],
        interval: Interval,
    ) {
        self.follow_holds(engine, after, interval);
        let gone = before.values().filter(|lock| !after.contains_key(&lock.key));
        let pairs = gone.map(|old| (Some(old), None));
        let there = after.values().map(|new| (before.get(&new.key), Some(new)));
        for (old, new) in pairs.chain(there) {
            if let Some(old) = old {
                self.end_holds(old, new, breaks, interval);
                self.end_waits(old, new, interval);
            }
            self.follow_episode(old, new, interval);
        }
    }

    /// How many holds were lost in the last hour, as far as was seen.
    pub(crate) fn lost(&self, now: SystemTime) -> usize {
        let recent = |record: &&Arc<Record>| {
            now.duration_since(record.end()).unwrap_or_default() <= RECENTLY
        };
        let lost = |record: &&Arc<Record>| {
            matches!(
                &***record,
                Record::Hold(Span { outcome: Outcome::Expired | Outcome::Broken, .. })
            )
        };
        self.records.iter().rev().take_while(recent).filter(lost).count()
    }

    /// Records, newest first.
    pub(crate) fn records(&self) -> impl DoubleEndedIterator<Item = &Arc<Record>> {
        self.records.iter().rev()
    }

    /// The current contention at a lock.
    pub(crate) fn episode(&self, lock: &Lock) -> Option<&Episode> {
        self.episodes.get(&(lock.engine.clone(), lock.key.clone()))
    }

    /// The records added since the last call.
    pub(crate) fn take_unsaved(&mut self) -> Vec<Arc<Record>> {
        std::mem::take(&mut self.unsaved)
    }

    /// What a new file would have: what has ended, oldest first, and what lasts.
    pub(crate) fn saved(&self) -> impl Iterator<Item = Arc<Record>> {
        let begun = self.begun.values().map(|span| Arc::new(Record::Begun(span.clone())));
        self.records.iter().cloned().chain(begun)
    }

    fn push(&mut self, record: Record) {
        let record = Arc::new(record);
        match &*record {
            Record::Begun(span) => {
                self.begun.insert((span.engine.clone(), span.identity()), span.clone());
                self.unsaved.push(record);
                return;
            }
            Record::Hold(span) => {
                self.begun.remove(&(span.engine.clone(), span.identity()));
            }
            Record::Wait(_) | Record::Episode(_) => {}
        }
        if self.records.len() == MOST_RECORDS {
            self.records.pop_front();
        }
        self.unsaved.push(record.clone());
        self.records.push_back(record);
    }

    /// Writes down which holds begin. At the first look at an engine, those that began before a
    /// restart and are not there any more have ended unseen.
    fn follow_holds(&mut self, engine: &EngineName, after: &Locks, interval: Interval) {
        let spans = after.values().flat_map(|lock| {
            lock.holders.iter().map(|holder| Span::new(lock, holder, None, Outcome::Now))
        });
        let now: HashMap<_, _> = spans.map(|span| (span.identity(), span)).collect();
        if interval.from.is_none() {
            let before = self.begun.iter().filter(|((name, _), _)| name == engine);
            let gone = before.filter(|((_, identity), _)| !now.contains_key(identity));
            let unseen = |(_, span): (_, &Span)| Span {
                to: Some(interval.to),
                outcome: Outcome::Unknown,
                ..span.clone()
            };
            let gone: Vec<_> = gone.map(unseen).collect();
            gone.into_iter().for_each(|span| self.push(Record::Hold(span)));
        }
        for (identity, span) in now {
            if !self.begun.contains_key(&(engine.clone(), identity)) {
                self.push(Record::Begun(span));
            }
        }
    }

    fn end_holds(&mut self, old: &Lock, new: Option<&Lock>, breaks: &[Break], interval: Interval) {
        let there = new.map_or(&[][..], |lock| &lock.holders);
        for holder in old.holders.iter().filter(|holder| !is_among(holder, there)) {
            let broken = breaks.iter().find(|one| ended(one, old, holder));
            let ran_out = holder.lease_ends.is_some_and(|end| end <= interval.to);
            let outcome = match (broken, ran_out) {
                (Some(_), _) => Outcome::Broken,
                (None, _) if interval.blind => Outcome::Unknown,
                (None, true) => Outcome::Expired,
                (None, false) => Outcome::Ended,
            };
            let end = match outcome {
                Outcome::Expired => holder.lease_ends.unwrap_or(interval.to),
                _ => interval.to,
            };
            let span = Span::new(old, holder, Some(interval.clamp(end)), outcome);
            self.push(Record::Hold(Span {
                broken_by: broken.map(|one| one.by.clone()),
                why: broken.and_then(|one| one.why.clone()),
                ..span
            }));
        }
    }

    fn end_waits(&mut self, old: &Lock, new: Option<&Lock>, interval: Interval) {
        // An engine that no longer knows them does not report their end.
        let unknown = new.is_some_and(|lock| lock.waiters.is_none());
        let there = new.map_or(&[][..], Lock::waiting);
        let holders = new.map_or(&[][..], |lock| &lock.holders);
        for waiter in old.waiting().iter().filter(|waiter| !is_among(waiter, there)) {
            let same = |holder: &&Party| {
                holder.identity == waiter.identity
                    || (holder.who.is_some() && holder.who == waiter.who)
            };
            let (outcome, end) = match holders.iter().find(same) {
                Some(holder) => (Outcome::Granted, interval.clamp(holder.began())),
                None if unknown || interval.blind => (Outcome::Unknown, interval.to),
                None => (Outcome::Left, interval.to),
            };
            self.push(Record::Wait(Span::new(old, waiter, Some(end), outcome)));
        }
    }

    fn follow_episode(&mut self, old: Option<&Lock>, new: Option<&Lock>, interval: Interval) {
        let Some(lock) = new.or(old) else { return };
        let name = (lock.engine.clone(), lock.key.clone());
        let waiting = new.map_or(0, |lock| lock.waiting().len());
        let contended = waiting > self.above;
        if contended && !self.episodes.contains_key(&name) {
            self.episodes.insert(name.clone(), Episode::begin(lock, old, interval));
        } else if let Some(episode) = self.episodes.get_mut(&name) {
            episode.go_on(old, new, interval);
        }
        if !contended && let Some(mut episode) = self.episodes.remove(&name) {
            episode.to = Some(interval.to);
            self.push(Record::Episode(episode));
        }
    }
}

impl Record {
    pub(crate) fn engine(&self) -> &str {
        match self {
            Record::Hold(span) | Record::Wait(span) | Record::Begun(span) => &span.engine,
            Record::Episode(episode) => &episode.engine,
        }
    }

    pub(crate) fn key(&self) -> &str {
        match self {
            Record::Hold(span) | Record::Wait(span) | Record::Begun(span) => &span.key,
            Record::Episode(episode) => &episode.key,
        }
    }

    pub(crate) fn end(&self) -> SystemTime {
        let (from, to) = match self {
            Record::Hold(span) | Record::Wait(span) | Record::Begun(span) => (span.from, span.to),
            Record::Episode(episode) => (episode.from, episode.to),
        };
        to.unwrap_or(from)
    }
}

impl Span {
    pub(crate) fn new(
        lock: &Lock,
        party: &Party,
        to: Option<SystemTime>,
        outcome: Outcome,
    ) -> Self {
        let from = party.began();
        Self {
            engine: lock.engine.clone(),
            key: lock.key.clone(),
            id: party.id.clone(),
            kind: party.kind.clone(),
            who: party.who.clone(),
            note: party.note.clone(),
            fence: party.fence,
            from,
            to: to.map(|to| to.max(from)),
            outcome,
            broken_by: None,
            why: None,
        }
    }

    fn identity(&self) -> Identity {
        (self.key.clone(), self.id.clone(), self.fence)
    }
}

/// Whether this break ended a hold.
fn ended(one: &Break, lock: &Lock, holder: &Party) -> bool {
    let same = |hold: &BrokenHold| {
        hold.fence.map(Fence::get) == holder.fence && (hold.who.is_none() || hold.who == holder.who)
    };
    one.key.as_str() == lock.key && holder.fence.is_some() && one.holders.iter().any(same)
}

fn is_among(party: &Party, others: &[Party]) -> bool {
    others.iter().any(|other| {
        // A re-entered lock is one hold; a new fence is a new one.
        other.identity == party.identity && other.mode == party.mode && other.fence == party.fence
    })
}

#[cfg(test)]
mod tests;
