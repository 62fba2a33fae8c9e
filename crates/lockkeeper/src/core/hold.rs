//! A lock that is held: shared by its guards, the renewals and the queue of the process. How it ends is
//! in [`loss`](super::loss).

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::answers::Answers;
use super::clock::{Moment, Validity};
use super::hand_over::HandOver;
use super::inner::Inner;
use super::keep;
use super::terms::Terms;
use crate::engine::{Claim, Fence, Grant, Held, Lease, Mode};
use crate::error::Loss;
use crate::guard::Guard;
use crate::key::Key;
use crate::owner::{Owner, Token};

/// How long a lock is held before the engine starts to watch it. A watch costs too much for a lock
/// that is held only briefly, and the watch's first check covers the time before.
const WATCHED_AFTER: Duration = Duration::from_millis(50);

/// What all guards of one grant share with the renewals and the local queue.
pub(crate) struct Hold {
    /// Later holds have higher ids.
    pub(super) id: u64,
    pub(crate) inner: Arc<Inner>,
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(super) owner: Option<Owner>,
    pub(crate) fence: Fence,
    pub(crate) slots: Vec<u32>,
    pub(super) lease: Lease,
    /// Whether it is never renewed, because the store granted the whole of a fixed lease.
    pub(super) fixed: bool,
    /// The end of a fixed lease, whatever keeps the lock alive until then.
    pub(super) limit: Option<Validity>,
    pub(super) margin: Duration,
    /// Whether only its guards release it.
    pub(super) kept_when_lost: bool,
    pub(super) since: Instant,
    /// The number of guards. Changed only with `local` locked.
    pub(crate) guards: AtomicUsize,
    pub(super) state: Mutex<State>,
    pub(super) changed: Notify,
    /// Taken by the code that releases it.
    pub(super) claim: Mutex<Option<Box<dyn Claim>>>,
    /// Set if it can be handed over, or was.
    pub(super) hand_over: Option<Arc<HandOver>>,
    /// From the grant until all guards are gone.
    pub(super) span: tracing::Span,
}

#[derive(Debug)]
pub(crate) struct State {
    /// The length of the lease: what it was granted for at first, then its `ttl`.
    pub(super) length: Duration,
    /// `None` while the engine holds it without a time limit.
    pub(crate) validity: Option<Validity>,
    pub(crate) over: Option<Loss>,
    /// Whether the engine is being asked if somebody broke it.
    pub(super) asking_why: bool,
    /// When the renewals check it next.
    pub(super) due: Option<Instant>,
    /// Whether it has no guard and is [kept](super::keep) for the next task.
    pub(super) kept: bool,
    /// When a task took it after it was kept.
    pub(super) taken: Option<Instant>,
    /// The task that waits for the engine to report the lock gone.
    pub(super) listener: Option<AbortHandle>,
    /// The task of a grant that may be kept.
    pub(super) attendant: Option<AbortHandle>,
    pub(crate) answers: Answers,
}

impl State {
    /// Ends the tasks that listen for what happens to the lock.
    pub(super) fn stop_listening(&mut self) {
        for task in [self.listener.take(), self.attendant.take()].into_iter().flatten() {
            task.abort();
        }
    }
}

impl Hold {
    /// Creates a hold with its first guard. `asked` was read before the request was sent.
    pub(crate) fn new(
        inner: &Arc<Inner>,
        terms: &Terms,
        token: Token,
        claim: Box<dyn Claim>,
        grant: Grant,
        asked: Moment,
    ) -> (Arc<Self>, Guard) {
        let wanted = terms.keep.and_then(|_| grant.held.wanted());
        let hand_over = HandOver::of(terms, &grant, wanted.is_some());
        let Grant { fence, slots, ttl, since, held, .. } = grant;
        let limited = terms.fixed || held.expires();
        // A session or a connection grants less than a long fixed lease at a time, and is renewed
        // meanwhile.
        let fixed = terms.fixed && ttl >= terms.ttl;
        let margin = terms.margin(ttl);
        let length = held.probation().unwrap_or(ttl);
        let limit = terms.fixed.then(|| Validity::new(asked, terms.ttl, terms.margin(terms.ttl)));
        let hold = Arc::new(Self {
            id: next_id(),
            inner: inner.clone(),
            key: terms.key.clone(),
            mode: terms.mode,
            owner: terms.owner.clone(),
            fence,
            slots,
            lease: Lease {
                key: terms.key.clone(),
                token,
                owner: terms.owner.clone(),
                mode: terms.mode,
                ttl,
                held: held.clone(),
                kept: None,
            },
            fixed,
            limit,
            margin,
            kept_when_lost: terms.kept_when_lost,
            since: asked.runtime(),
            guards: AtomicUsize::new(1),
            state: Mutex::new(State {
                length,
                validity: limited.then(|| Validity::new(since, length, terms.margin(length))),
                over: None,
                asking_why: false,
                due: None,
                kept: false,
                taken: None,
                listener: None,
                attendant: None,
                answers: Answers::default(),
            }),
            changed: Notify::new(),
            claim: Mutex::new(Some(claim)),
            hand_over,
            span: span(inner, &terms.key, terms.mode, fence),
        });
        inner.meters.held(hold.mode);
        if let Some(hand_over) = &hold.hand_over {
            hand_over.set_current(&hold);
        }
        if let Some(gone) = held.gone() {
            let (listener, hand_over) = (Arc::downgrade(&hold), hold.hand_over.clone());
            let task = inner.runtime.spawn(async move {
                sleep(WATCHED_AFTER).await;
                let loss = gone.await;
                let holder = match hand_over {
                    Some(hand_over) => hand_over.holder(),
                    None => listener.upgrade(),
                };
                if let Some(hold) = holder {
                    hold.end(loss);
                }
            });
            hold.state().listener = Some(task.abort_handle());
        }
        if let (Some(wanted), Some(hand_over)) = (wanted, &hold.hand_over) {
            let task = inner.runtime.spawn(keep::attend(hand_over.clone(), wanted));
            hold.state().attendant = Some(task.abort_handle());
        }
        // After the listener is set: ending the hold aborts the listener too.
        let due = if fixed { length } else { length / 3 };
        inner.renewals.watch(&hold, since.runtime() + hold.pace(due));
        let guard = Guard::first(&hold);
        (hold, guard)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// What the engine is asked to extend, as of now.
    pub(crate) fn lease_now(&self) -> Lease {
        Lease { kept: self.kept_now(), ..self.lease.clone() }
    }

    /// How long a task has had it.
    pub(super) fn held_for(&self) -> Duration {
        self.state().taken.unwrap_or(self.since).elapsed()
    }

    /// What the engine knows about it.
    pub(crate) fn held(&self) -> &Arc<dyn Held> {
        &self.lease.held
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.lease.ttl
    }

    /// The length of the lease as it stands.
    pub(crate) fn length(&self) -> Duration {
        self.state().length
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Whether a guard is left. Otherwise the hold is on its way out.
    pub(crate) fn is_wanted(&self) -> bool {
        self.guards.load(Ordering::Relaxed) > 0
    }

    /// Whether it has no guard and its release has not begun.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.is_wanted() && !self.is_kept() && self.claim().is_some()
    }

    /// Whether exactly one guard is left.
    pub(crate) fn has_one_guard(&self) -> bool {
        self.guards.load(Ordering::Relaxed) == 1
    }

    /// Removes one guard and returns how many are left.
    pub(crate) fn remove_guard(&self) -> usize {
        self.guards.fetch_sub(1, Ordering::Relaxed) - 1
    }

    /// Hands the claim to the first caller, which releases it.
    pub(crate) fn take_claim(&self) -> Option<Box<dyn Claim>> {
        self.claim().take()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state().over.is_some()
    }

    /// The delay until the renewals check again: `usual`, or less if a fixed lease ends earlier.
    pub(crate) fn pace(&self, usual: Duration) -> Duration {
        let Some(limit) = &self.limit else { return usual };
        limit.until_signal(&self.inner.clock.now()).max(Duration::from_millis(1)).min(usual)
    }

    /// Sets when the renewals check it next, and returns the previous time.
    pub(crate) fn set_due(&self, due: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut self.state().due, due)
    }

    /// A renewal is sent. True if the previous one is still in progress, and so is late.
    pub(crate) fn asking(&self) -> bool {
        let mut state = self.state();
        // What led to a loss is not changed after it.
        let over = state.over.is_some();
        state.answers.asking(&self.inner.place, !over)
    }

    /// A renewal has ended; an error means that it got no answer.
    pub(crate) fn asked(&self, error: Option<String>) {
        let mut state = self.state();
        let over = state.over.is_some();
        state.answers.asked(error, !over);
    }

    /// The engine found out why there is no answer.
    pub(crate) fn silent_because(&self, cause: String) {
        let mut state = self.state();
        if state.over.is_none() {
            state.answers.silent_because(cause, &self.inner.place);
        }
    }

    /// A renewal sent at `asked` was confirmed. False if it came too late to matter.
    pub(crate) fn renewed(&self, asked: Moment) -> bool {
        let now = self.inner.clock.now();
        let mut state = self.state();
        if state.over.is_some() {
            return false;
        }
        state.answers.came();
        let Some(validity) = state.validity else {
            self.inner.meters.renewed(None);
            return true;
        };
        let slack = validity.until_signal(&now);
        if slack.is_zero() {
            return false;
        }
        self.inner.meters.renewed(Some(slack));
        // Answers may arrive out of order; an earlier request never undoes a later one.
        if asked.since(validity.from()) > Duration::ZERO {
            state.length = self.ttl();
            state.validity = Some(Validity::new(asked, self.ttl(), self.margin));
        }
        drop(state);
        self.look_at_the_clock();
        true
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    pub(crate) fn claim(&self) -> MutexGuard<'_, Option<Box<dyn Claim>>> {
        self.claim.lock().expect("nothing panics under this lock")
    }
}

pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn span(inner: &Inner, key: &Key, mode: Mode, fence: Fence) -> tracing::Span {
    let (fence, engine) = (fence.get(), inner.engine_name());
    tracing::debug_span!("hold", %key, %mode, fence, engine)
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &self.key)
            .field("mode", &self.mode)
            .field("fence", &self.fence)
            .field("slots", &self.slots)
            .field("over", &self.state().over)
            .finish_non_exhaustive()
    }
}
