//! The queue inside the process: a thousand tasks on one key are one waiter at the engine.
//!
//! Tasks of one client queue here in order of arrival. The first one is *at the gate*: it alone
//! asks the engine. A task that conflicts with this client's own holders does not ask at all. A
//! hold that is being released stays listed until its release is on the wire, so that the next
//! claim cannot overtake it and find its remains in the store.
//!
//! Easy to get wrong: dropping a [`Guard`] takes this lock, so no guard may be dropped while it is
//! held.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::hold::Hold;
use super::inner::Inner;
use super::tenure::Tenure;
use super::terms::Terms;
use crate::core::admission;
use crate::engine::{Claim, Mode};
use crate::guard::Guard;
use crate::key::Key;
use crate::owner::Owner;

/// The queues of one client, by key.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues {
    queues: Mutex<HashMap<Key, KeyQueue>>,
    next: AtomicUsize,
}

/// The result of entering the queue.
pub(crate) enum Enter {
    /// The task may ask the engine now.
    Gate(Ticket),
    /// The task has to wait for its turn to ask.
    Wait(Ticket, oneshot::Receiver<Wake>),
    /// Its owner already holds the lock: another guard of the same hold.
    Again(Guard),
    /// Its owner holds the lock as a reader and wants it exclusively: it might wait for itself
    /// forever.
    Upgrade,
    /// This hold is being released; send its release, then enter again.
    Leaving(Arc<Hold>),
    /// This hold is kept, on other terms or for too long: let it go, send its release, then enter
    /// again.
    LetGo(Arc<Hold>),
    /// The lock is busy, and the task did not want to wait.
    Busy,
}

/// Why a queued task is woken.
#[derive(Debug)]
pub(crate) enum Wake {
    /// It is at the gate.
    Gate,
    /// It has the lock: its owner acquired it meanwhile, or another task handed it over.
    Granted(Guard),
}

/// A place in the queue or at the gate; dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    inner: Arc<Inner>,
    key: Key,
    /// `None` for a single attempt next to a task at the gate: it is not in the queue at all.
    id: Option<usize>,
}

#[derive(Debug, Default)]
struct KeyQueue {
    holders: Vec<Arc<Hold>>,
    gate: Option<Gate>,
    waiters: VecDeque<Waiter>,
    turn: Tenure,
}

#[derive(Debug)]
struct Gate {
    id: usize,
    /// Whether the engine refused it and it waits to be woken.
    waiting: bool,
    /// Whether its claim was abandoned, and is being undone.
    leaving: bool,
}

#[derive(Debug)]
struct Waiter {
    id: usize,
    terms: Terms,
    wake: oneshot::Sender<Wake>,
}

impl LocalQueues {
    /// Enters the queue of a key. `once` means that the caller does not want to wait.
    pub(crate) fn enter(&self, inner: &Arc<Inner>, terms: &Terms, once: bool) -> Enter {
        let Terms { key, mode, owner, .. } = terms;
        let (mode, owner) = (*mode, owner.as_ref());
        let mut queues = self.lock();
        let queue = queues.entry(key.clone()).or_default();
        if let Some(hold) = queue.held_by(owner, mode) {
            return match hold.mode() == Mode::Read && mode.is_exclusive() {
                true => Enter::Upgrade,
                false => Enter::Again(Guard::another(hold)),
            };
        }
        if let Some(hold) = queue.holders.iter().find(|hold| hold.is_leaving()) {
            return Enter::Leaving(hold.clone());
        }
        // Beside it there is no other holder, and nobody waits.
        if let Some(hold) = queue.holders.iter().find(|hold| hold.is_kept()) {
            return match hold.take_kept(terms) {
                Some(guard) => Enter::Again(guard),
                None => Enter::LetGo(hold.clone()),
            };
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let ticket = |id| Ticket { inner: inner.clone(), key: key.clone(), id };
        if once {
            let gate = queue.gate.as_ref().filter(|gate| !gate.leaving);
            let waited_for = gate.is_some_and(|gate| gate.waiting);
            if waited_for || !queue.waiters.is_empty() || !queue.admits(mode, Hold::is_wanted) {
                return Enter::Busy;
            }
            if gate.is_some() {
                return Enter::Gate(ticket(None));
            }
        }
        if queue.gate.is_none() && queue.waiters.is_empty() && queue.admits(mode, |_| true) {
            queue.gate = Some(Gate { id, waiting: false, leaving: false });
            return Enter::Gate(ticket(Some(id)));
        }
        let (wake, woken) = oneshot::channel();
        queue.waiters.push_back(Waiter { id, terms: terms.clone(), wake });
        Enter::Wait(ticket(Some(id)), woken)
    }

    /// Hands a lock that is no longer needed over to the first task in the queue, or [keeps](super::keep)
    /// it for the next one. False if the store has to decide: nobody waits and it is not kept, the
    /// first task wants it on other terms, or the grant has been [handed over](super::hand_over)
    /// often enough.
    pub(crate) fn hand_over(&self, hold: &Arc<Hold>) -> bool {
        if hold.hand_over.is_none() {
            return false;
        }
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(hold.key()) else { return false };
        let Some((next, wake)) = queue.hand_over(hold) else { return false };
        // Before that task can hand it over again, or the schedule would miss a hold in between.
        hold.inner().renewals.replace(hold, &next);
        // Nothing is lost if that task stops waiting: its guard is dropped, and hands it over again.
        let is_kept = wake.is_none();
        let unwanted = wake.map(|wake| wake.send(Wake::Granted(Guard::first(&next))));
        drop(queues);
        hold.passed_on(is_kept);
        drop(unwanted);
        true
    }

    /// The hold of a key that is kept.
    pub(super) fn kept(&self, key: &Key) -> Option<Arc<Hold>> {
        let queues = self.lock();
        queues.get(key)?.holders.iter().find(|hold| hold.is_kept()).cloned()
    }

    /// Releases all locks that are kept.
    pub(crate) fn let_go_of_all(&self) {
        for hold in self.holds() {
            hold.let_go_in_background();
        }
    }

    /// Drops one guard of a hold. True if it was the last, and the hold must be released.
    ///
    /// A lost hold has left the list. It is listed again until its release is on the wire: whatever
    /// the store still keeps of it would block the next claim, like any other hold.
    pub(crate) fn drop_guard(&self, hold: &Arc<Hold>) -> bool {
        // Without an owner there is no re-entrance: this guard is the only one.
        let slots = hold.owner().map(|_| self.lock());
        let is_last = hold.remove_guard() == 0;
        drop(slots);
        if is_last && hold.is_over() {
            let mut queues = self.lock();
            // The code that takes the claim also removes the hold from the list again.
            if hold.claim().is_some() {
                queues.entry(hold.key().clone()).or_default().holders.push(hold.clone());
            }
        }
        is_last
    }

    /// Like `drop_guard`, for a caller that releases the hold at once and wants the outcome: for
    /// the last guard, returns the claim, so that no other task can take it in between to send the
    /// release. The claim is `None` if the hold is already being released because its time was up.
    pub(crate) fn take_last_guard(&self, hold: &Arc<Hold>) -> Option<Option<Box<dyn Claim>>> {
        let slots = hold.owner().map(|_| self.lock());
        let claim = hold.has_one_guard().then(|| hold.take_claim());
        hold.remove_guard();
        drop(slots);
        if let Some(Some(_)) = &claim
            && hold.is_over()
        {
            self.lock().entry(hold.key().clone()).or_default().holders.push(hold.clone());
        }
        claim
    }

    /// All holds.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.lock().values().flat_map(|queue| &queue.holders).cloned().collect()
    }

    /// Another client waits for the key, as the engine reported when it was released.
    pub(crate) fn wanted(&self, key: &Key) {
        if let Some(queue) = self.lock().get_mut(key) {
            queue.turn.wanted = true;
        }
    }

    /// Removes a hold from the list: it was released or lost. Idempotent.
    pub(crate) fn leave(&self, hold: &Arc<Hold>) {
        self.change(hold.key(), |queue| queue.holders.retain(|other| !Arc::ptr_eq(other, hold)));
    }

    fn change(&self, key: &Key, change: impl FnOnce(&mut KeyQueue)) {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(key) else { return };
        change(queue);
        let unwanted = queue.advance();
        if queue.holders.is_empty() && queue.gate.is_none() && queue.waiters.is_empty() {
            queues.remove(key);
        }
        drop(queues);
        drop(unwanted);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, KeyQueue>> {
        self.queues.lock().expect("nothing panics under this lock")
    }
}

impl Ticket {
    /// The engine refused: single attempts need not ask it too.
    pub(crate) fn waiting(&self) {
        let mut queues = self.inner.local.lock();
        let gate = queues.get_mut(&self.key).and_then(|queue| queue.gate.as_mut());
        if let Some(gate) = gate.filter(|gate| Some(gate.id) == self.id) {
            gate.waiting = true;
        }
        if let Some(queue) = queues.get_mut(&self.key) {
            queue.turn = Tenure::default();
        }
    }

    /// How long to pause before asking, so that another client gets the lock too. Usually `None`.
    pub(crate) fn gives_way(&self) -> Option<Duration> {
        let mut queues = self.inner.local.lock();
        queues.get_mut(&self.key)?.turn.gives_way()
    }

    /// The claim was abandoned. A single attempt waits until it is undone, or it would find its
    /// remains.
    pub(crate) fn leaving(&self) {
        let mut queues = self.inner.local.lock();
        let gate = queues.get_mut(&self.key).and_then(|queue| queue.gate.as_mut());
        if let Some(gate) = gate.filter(|gate| Some(gate.id) == self.id) {
            gate.leaving = true;
        }
    }

    /// The task was taken out of the queue with a guard.
    pub(crate) fn served(mut self) {
        self.id = None;
    }

    /// The engine granted the lock: leave the gate and be listed as a holder.
    pub(crate) fn admit(mut self, hold: &Arc<Hold>) {
        let id = self.id.take();
        let mut queues = self.inner.local.lock();
        let queue = match queues.get_mut(&self.key) {
            Some(queue) => queue,
            // For a single attempt next to the gate, the queue may be gone: it ends with its last
            // member.
            None => queues.entry(self.key.clone()).or_default(),
        };
        // A hold that was lost meanwhile has left already.
        if !hold.is_over() {
            queue.holders.push(hold.clone());
        }
        queue.turn.since.get_or_insert_with(Instant::now);
        queue.step_away(id);
        let unwanted = queue.advance();
        drop(queues);
        drop(unwanted);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.inner.local.change(&self.key, |queue| queue.step_away(self.id));
        }
    }
}

impl KeyQueue {
    /// The hold that an owner may share.
    fn held_by(&self, owner: Option<&Owner>, mode: Mode) -> Option<&Arc<Hold>> {
        let owner = owner?;
        // Every permit counts separately: a semaphore is not re-entrant.
        let family = |hold: &Hold| {
            !matches!(mode, Mode::Permits { .. }) && admission::mixes(mode, hold.mode())
        };
        self.holders
            .iter()
            .find(|hold| hold.owner() == Some(owner) && hold.is_wanted() && family(hold))
    }

    /// Whether this client's own holders leave room. The engine refuses kinds that do not mix, but
    /// must not do so because of a hold that is on its way out.
    fn admits(&self, mode: Mode, counts: impl Fn(&Hold) -> bool) -> bool {
        let leaves = |hold: &Hold| !hold.is_wanted() && !admission::mixes(mode, hold.mode());
        if self.holders.iter().any(|hold| counts(hold) && leaves(hold)) {
            return false;
        }
        let mut beside = self
            .holders
            .iter()
            .filter(|hold| counts(hold) && admission::mixes(mode, hold.mode()))
            .map(|hold| hold.mode());
        match mode {
            Mode::Permits { take, limit } => {
                let taken: u32 = beside
                    .map(|other| if let Mode::Permits { take, .. } = other { take } else { 0 })
                    .sum();
                taken.saturating_add(take) <= limit
            }
            _ => !beside.any(|other| admission::conflict(mode, other)),
        }
    }

    /// Passes this hold on: to the first task, which is taken out of the queue, or to be kept if
    /// there is none.
    fn hand_over(
        &mut self,
        hold: &Arc<Hold>,
    ) -> Option<(Arc<Hold>, Option<oneshot::Sender<Wake>>)> {
        while self.waiters.front().is_some_and(|first| first.wake.is_closed()) {
            self.waiters.pop_front();
        }
        let first = self.waiters.front();
        if self.gate.is_some() || first.is_some_and(|first| !hold.suits(&first.terms)) {
            return None;
        }
        let is_kept = first.is_none();
        if is_kept && self.holders.len() > 1 {
            return None;
        }
        let listed = self.holders.iter_mut().find(|other| Arc::ptr_eq(other, hold))?;
        let next = hold.pass_on(is_kept)?;
        *listed = next.clone();
        Some((next, self.waiters.pop_front().map(|first| first.wake)))
    }

    fn step_away(&mut self, id: Option<usize>) {
        let Some(id) = id else { return };
        self.gate.take_if(|gate| gate.id == id);
        self.waiters.retain(|waiter| waiter.id != id);
    }

    /// Wakes every task that can proceed. Returns guards that no task took, to be dropped after
    /// unlocking.
    fn advance(&mut self) -> Vec<Guard> {
        let mut unwanted = Vec::new();
        let mut n = 0;
        while n < self.waiters.len() {
            let waiter = &self.waiters[n];
            let mode = waiter.terms.mode;
            let hold = self.held_by(waiter.terms.owner.as_ref(), mode);
            match hold.filter(|hold| hold.mode() != Mode::Read || !mode.is_exclusive()) {
                Some(hold) => {
                    let guard = Guard::another(hold);
                    let waiter = self.waiters.remove(n).expect("n is inside the queue");
                    if let Err(Wake::Granted(guard)) = waiter.wake.send(Wake::Granted(guard)) {
                        unwanted.push(guard);
                    }
                }
                None => n += 1,
            }
        }
        while self.gate.is_none()
            && self.waiters.front().is_some_and(|first| self.admits(first.terms.mode, |_| true))
        {
            let first = self.waiters.pop_front().expect("there is a first");
            if first.wake.send(Wake::Gate).is_ok() {
                self.gate = Some(Gate { id: first.id, waiting: false, leaving: false });
            }
        }
        unwanted
    }
}
