//! Hand-over inside a client: a lock passes from one task to the next without the store.
//!
//! A grant that reserved fences is handed over to the first task in this client's queue, if that
//! one wants the lock on the same terms. Every task gets a hold of its own with the next reserved
//! fence; the claim, its token and the validity stay those of the grant. If no task waits, it may be
//! [kept](super::keep) for the next.
//!
//! Easy to get wrong: the store knows the grant, not which task has it. If it reports a loss to a
//! hold that was handed over, the task that has the lock now must learn of it ([`Hold::end`]).

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::clock::Moment;
use super::hold::{Hold, State, next_id, span};
use super::keep::Keep;
use super::terms::Terms;
use crate::engine::{Claim, Fence, Grant};
use crate::error::Loss;

/// How long after the store granted a lock it is handed over; then the store decides again.
///
/// This is how much longer other clients may wait, so it is short for them; and it is long beside
/// the round trip that it saves, to most stores.
const TURN: Duration = Duration::from_millis(10);

/// How many fences a grant should reserve: one per microsecond of its turn, which is what a hybrid
/// counter has to spare.
pub(super) const PASSES: u32 = 10_000;

/// How many fences a grant that may be kept should reserve: enough to be taken every microsecond.
pub(super) fn passes(keep: Duration) -> u32 {
    u32::try_from(keep.as_micros()).unwrap_or(u32::MAX).max(PASSES)
}

/// What the holds of one grant share.
pub(super) struct HandOver {
    pub(super) terms: Terms,
    /// The fence that the store knows.
    granted: Fence,
    /// The last fence that the grant reserved.
    last: Fence,
    /// The end of its turn, unless it is kept as long as nobody else wants it.
    until: Instant,
    pub(super) keep: Option<Keep>,
    /// The hold that has the lock now.
    current: Mutex<Weak<Hold>>,
}

impl HandOver {
    /// `None` if the grant cannot be handed over. `heard` means that the client learns of others
    /// that want it.
    pub(super) fn of(terms: &Terms, grant: &Grant, heard: bool) -> Option<Arc<Self>> {
        let keep = terms.keep.filter(|_| heard);
        if grant.reserved == 0 || !terms.hand_over && keep.is_none() {
            return None;
        }
        Some(Arc::new(Self {
            terms: terms.clone(),
            granted: grant.fence,
            last: Fence::new(grant.fence.get().saturating_add(grant.reserved.into())),
            until: Instant::now() + TURN,
            keep: keep.map(Keep::new),
            current: Mutex::default(),
        }))
    }

    pub(super) fn set_current(&self, hold: &Arc<Hold>) {
        *self.current() = Arc::downgrade(hold);
    }

    /// The hold that has the lock now, if its guard is not gone.
    pub(super) fn holder(&self) -> Option<Arc<Hold>> {
        self.current().upgrade()
    }

    /// Whether the store has to decide again.
    fn is_over(&self, now: Instant) -> bool {
        self.keep.as_ref().map_or(now >= self.until, |keep| keep.is_over(now))
    }

    fn current(&self) -> MutexGuard<'_, Weak<Hold>> {
        self.current.lock().expect("nothing panics under this lock")
    }
}

impl Hold {
    /// Whether a task that wants the lock on these terms can take this grant over.
    pub(super) fn suits(&self, terms: &Terms) -> bool {
        self.hand_over.as_ref().is_some_and(|hand_over| hand_over.terms.suit(terms))
    }

    /// The fences by which the store may know the grant: its own, or the last that it reserved.
    pub(super) fn granted_fences(&self) -> [Fence; 2] {
        let hand_over = self.hand_over.as_ref();
        hand_over.map_or([self.fence; 2], |hand_over| [hand_over.granted, hand_over.last])
    }

    /// Ends this hold, whose only guard is being dropped, and passes its grant on: to a task, or to
    /// be kept for one. `None` if the store has to decide again. Called with `local` locked.
    pub(super) fn pass_on(self: &Arc<Self>, kept: bool) -> Option<Arc<Hold>> {
        let hand_over = self.hand_over.as_ref()?;
        if kept && hand_over.keep.is_none() {
            return None;
        }
        let now = self.inner.clock.now();
        let is_over = hand_over.is_over(now.runtime());
        if self.fence >= hand_over.last || is_over || !self.inner.keeps() {
            return None;
        }
        let mut state = self.state();
        if state.over.is_some() {
            return None;
        }
        // The next task has to have time for its work, or for the next renewal.
        if state.validity.is_some_and(|validity| !validity.is_half_left(&now)) {
            return None;
        }
        let claim = self.take_claim()?;
        let next = Arc::new(self.successor(claim, &mut state, now, kept));
        // Before this one is over: `end` looks for the other as soon as it is.
        hand_over.set_current(&next);
        state.over = Some(Loss::Released);
        drop(state);
        self.remove_guard();
        if let Some(keep) = &hand_over.keep {
            keep.released(kept, now.runtime());
        }
        Some(next)
    }

    /// Finishes what `pass_on` began, with `local` unlocked.
    pub(super) fn passed_on(&self, kept: bool) {
        self.inner.meters.ended(self.mode, &Loss::Released, self.held_for());
        if !kept {
            self.inner.meters.held(self.mode);
        }
        self.changed.notify_waiters();
    }

    /// The hold was over already. If its grant was handed over, what the store says about the grant
    /// concerns the task that has it now. That task looks at the clock itself.
    pub(super) fn ended_later(self: &Arc<Self>, loss: Loss) {
        if matches!(loss, Loss::Gone | Loss::Disconnected(_))
            && let Some(holder) = self.hand_over.as_ref().and_then(|it| it.holder())
            && !Arc::ptr_eq(self, &holder)
        {
            holder.end(loss);
        }
    }

    /// The hold that has the grant now: this one, or the one that it was passed on to.
    pub(super) fn current(self: &Arc<Self>) -> Arc<Hold> {
        let hand_over = self.hand_over.as_ref().filter(|_| self.is_over());
        hand_over.and_then(|hand_over| hand_over.holder()).unwrap_or_else(|| self.clone())
    }

    /// The hold that this grant is passed on to at `now`.
    fn successor(&self, claim: Box<dyn Claim>, state: &mut State, now: Moment, kept: bool) -> Self {
        let fence = self.fence.next();
        Self {
            id: next_id(),
            inner: self.inner.clone(),
            key: self.key.clone(),
            mode: self.mode,
            owner: self.owner.clone(),
            fence,
            slots: self.slots.clone(),
            lease: self.lease.clone(),
            fixed: self.fixed,
            limit: self.limit,
            margin: self.margin,
            kept_when_lost: self.kept_when_lost,
            since: now.runtime(),
            guards: AtomicUsize::new(usize::from(!kept)),
            state: Mutex::new(State {
                length: state.length,
                validity: state.validity,
                over: None,
                asking_why: false,
                due: None,
                kept,
                taken: None,
                listener: state.listener.take(),
                attendant: state.attendant.take(),
                answers: state.answers.hand_over(),
            }),
            changed: Notify::new(),
            claim: Mutex::new(Some(claim)),
            hand_over: self.hand_over.clone(),
            span: span(&self.inner, &self.key, self.mode, fence),
        }
    }
}
