//! What is held: shared by its guards, the renewals and the queue of the process.
//!
//! Easy to get wrong: whether a lock is still ours is computed from the clock at the moment of the
//! question. A flag that a task sets would say "yes" as long as that task does not run.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::clock::{Moment, Validity};
use super::inner::Inner;
use super::release::BackgroundWork;
use crate::engine::{Claim, Death, Fence, Grant, Held, Lease, Mode};
use crate::error::Loss;
use crate::guard::{Guard, Trouble};
use crate::key::Key;
use crate::lock::Terms;
use crate::owner::{Owner, Token};

/// How long a lock is held before the engine watches over it. One that is held for a moment is not worth
/// a watch, and what happens before is seen by its first look.
const WATCHED_AFTER: Duration = Duration::from_millis(50);

/// What all guards of one grant share with the renewals and the queue.
pub(crate) struct Hold {
    /// Later holds have higher ones.
    id: u64,
    pub(crate) inner: Arc<Inner>,
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    owner: Option<Owner>,
    pub(crate) fence: Fence,
    pub(crate) slots: Vec<u32>,
    lease: Lease,
    /// Whether it is not renewed, because what the store granted covers the whole of a fixed lease.
    fixed: bool,
    /// The end of a fixed lease, whoever keeps the lock alive until then.
    limit: Option<Validity>,
    margin: Duration,
    /// Whether only its guards give it back.
    kept_when_lost: bool,
    since: Instant,
    /// How many guards there are. Changed under the lock of `local` only.
    pub(crate) guards: AtomicUsize,
    state: Mutex<State>,
    changed: Notify,
    /// Taken by whoever releases it.
    claim: Mutex<Option<Box<dyn Claim>>>,
    /// From the grant until everyone has let go.
    span: tracing::Span,
}

#[derive(Debug)]
pub(crate) struct State {
    /// `None` while the engine holds it without a time limit.
    pub(crate) validity: Option<Validity>,
    pub(crate) over: Option<Loss>,
    /// When the renewals looks at it next.
    due: Option<Instant>,
    /// The task that listens for the engine's own word that it is gone.
    listener: Option<AbortHandle>,
    /// How many renewals are under way.
    asking: u32,
    /// Since when none of those has been answered.
    silence: Option<Silence>,
    pub(crate) trouble: Option<Trouble>,
}

/// Renewals without an answer.
#[derive(Debug)]
struct Silence {
    /// When the first of them left.
    since: Instant,
    /// What is known of the reason.
    cause: Option<String>,
}

impl Silence {
    /// What to tell people about it at this moment.
    fn describe(&self, place: &str) -> String {
        let seconds = self.since.elapsed().as_secs_f64();
        let cause = self.cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"));
        format!("no answer from {place} for {seconds:.1} s{cause}")
    }
}

impl State {
    fn failed(&mut self, error: String) {
        // What led to a loss does not change after it.
        if self.over.is_none() {
            let failures = self.trouble.as_ref().map_or(0, |trouble| trouble.failures);
            self.trouble = Some(Trouble { failures: failures.saturating_add(1), error });
        }
    }
}

impl Hold {
    /// A new hold with its first guard. `asked` was read before the request left.
    pub(crate) fn new(
        inner: &Arc<Inner>,
        terms: &Terms,
        token: Token,
        claim: Box<dyn Claim>,
        grant: Grant,
        asked: Moment,
    ) -> (Arc<Self>, Guard) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Grant { fence, slots, ttl, since, held } = grant;
        let limited = terms.fixed || held.expires();
        // A session or a connection vouches for less than a long fixed lease, again and again.
        let fixed = terms.fixed && ttl >= terms.ttl;
        let margin = terms.margin(ttl);
        let limit = terms.fixed.then(|| Validity::new(asked, terms.ttl, terms.margin(terms.ttl)));
        let span = tracing::debug_span!(
            "hold",
            key = %terms.key,
            mode = %terms.mode,
            fence = fence.get(),
            engine = inner.engine_name()
        );
        let hold = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
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
            },
            fixed,
            limit,
            margin,
            kept_when_lost: terms.kept_when_lost,
            since: asked.runtime(),
            guards: AtomicUsize::new(1),
            state: Mutex::new(State {
                validity: limited.then(|| Validity::new(since, ttl, margin)),
                over: None,
                due: None,
                listener: None,
                asking: 0,
                silence: None,
                trouble: None,
            }),
            changed: Notify::new(),
            claim: Mutex::new(Some(claim)),
            span,
        });
        inner.meters.held(hold.mode);
        if let Some(gone) = held.gone() {
            let listener = Arc::downgrade(&hold);
            let task = inner.runtime.spawn(async move {
                sleep(WATCHED_AFTER).await;
                let loss = gone.await;
                if let Some(hold) = listener.upgrade() {
                    hold.end(loss);
                }
            });
            hold.state().listener = Some(task.abort_handle());
        }
        // After the listener is in its place: whoever ends the hold ends the listener too.
        inner.renewals.watch(&hold, since.runtime() + hold.pace(if fixed { ttl } else { ttl / 3 }));
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

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What the engine knows of it.
    pub(crate) fn held(&self) -> &Arc<dyn Held> {
        &self.lease.held
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.lease.ttl
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Whether a guard is left. The others are on their way out.
    pub(crate) fn is_wanted(&self) -> bool {
        self.guards.load(Ordering::Relaxed) > 0
    }

    /// Whether nobody wants it, and nobody has begun to release it.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.is_wanted() && self.claim().is_some()
    }

    /// Whether exactly one guard is left.
    pub(crate) fn has_one_guard(&self) -> bool {
        self.guards.load(Ordering::Relaxed) == 1
    }

    /// Takes one guard away and says how many are left.
    pub(crate) fn remove_guard(&self) -> usize {
        self.guards.fetch_sub(1, Ordering::Relaxed) - 1
    }

    /// Hands the claim to the first who asks, to release it.
    pub(crate) fn take_claim(&self) -> Option<Box<dyn Claim>> {
        self.claim().take()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state().over.is_some()
    }

    /// What is left before the holder is told to stop; `None` without a limit.
    pub(crate) fn until_signal(&self) -> Option<Duration> {
        let validity = self.state().validity;
        let now = self.inner.clock.now();
        validity.iter().chain(&self.limit).map(|validity| validity.until_signal(&now)).min()
    }

    /// When the renewals looks again: after `usual`, or earlier if a fixed lease ends before.
    pub(crate) fn pace(&self, usual: Duration) -> Duration {
        let Some(limit) = &self.limit else { return usual };
        limit.until_signal(&self.inner.clock.now()).max(Duration::from_millis(1)).min(usual)
    }

    /// Why it is over when the clock says so.
    pub(crate) fn run_out(&self) -> Loss {
        let now = self.inner.clock.now();
        match &self.limit {
            Some(limit) if self.fixed || limit.until_signal(&now).is_zero() => Loss::Ended,
            _ => Loss::Expired,
        }
    }

    /// Moves the renewals's next round, and says when it was before.
    pub(crate) fn set_due(&self, due: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut self.state().due, due)
    }

    /// A renewal leaves. True if another one is still under way, which takes too long then.
    pub(crate) fn asking(&self) -> bool {
        let mut state = self.state();
        state.asking += 1;
        let late = state.asking > 1;
        let silence =
            state.silence.get_or_insert_with(|| Silence { since: Instant::now(), cause: None });
        if late {
            let error = silence.describe(&self.inner.place);
            state.failed(error);
        }
        late
    }

    /// A renewal came back, without an answer if there is an error.
    pub(crate) fn asked(&self, error: Option<String>) {
        let mut state = self.state();
        state.asking -= 1;
        if state.asking == 0 {
            state.silence = None;
        }
        if let Some(error) = error {
            if let Some(silence) = &mut state.silence {
                silence.cause = Some(error.clone());
            }
            state.failed(error);
        }
    }

    /// The engine found out why no answer comes.
    pub(crate) fn silent_because(&self, cause: String) {
        let mut state = self.state();
        let state = &mut *state;
        if let (None, Some(silence)) = (&state.over, &mut state.silence) {
            silence.cause = Some(cause);
            if let Some(trouble) = &mut state.trouble {
                trouble.error = silence.describe(&self.inner.place);
            }
        }
    }

    /// A renewal that was asked for at `asked` was confirmed. False when it came too late to matter.
    pub(crate) fn renewed(&self, asked: Moment) -> bool {
        let now = self.inner.clock.now();
        let mut state = self.state();
        if state.over.is_some() {
            return false;
        }
        state.trouble = None;
        state.silence = None;
        let Some(validity) = state.validity else {
            self.inner.meters.renewed(None);
            return true;
        };
        let slack = validity.until_signal(&now);
        if slack.is_zero() {
            return false;
        }
        self.inner.meters.renewed(Some(slack));
        // Answers may come out of order; a later question is never undone by an earlier one.
        if asked.since(validity.from()) > Duration::ZERO {
            state.validity = Some(Validity::new(asked, self.ttl(), self.margin));
        }
        drop(state);
        self.look_at_the_clock();
        true
    }

    /// Makes everyone who waits for a loss count again.
    pub(crate) fn look_at_the_clock(&self) {
        self.changed.notify_waiters();
    }

    /// It is over, for this reason; the first reason counts.
    pub(crate) fn end(self: &Arc<Self>, loss: Loss) {
        {
            let mut state = self.state();
            if state.over.is_some() {
                return;
            }
            // What led to it, counted to its end.
            if let (Loss::Expired, Some(silence)) = (&loss, &state.silence)
                && (state.asking > 1 || state.trouble.is_none())
            {
                let error = silence.describe(&self.inner.place);
                state.failed(error);
            }
            state.over = Some(loss.clone());
            if let Some(listener) = state.listener.take() {
                listener.abort();
            }
        }
        self.inner.meters.ended(self.mode, &loss, self.since.elapsed());
        self.inner.renewals.forget(self);
        if loss != Loss::Released {
            tracing::warn!(parent: &self.span, key = %self.key, reason = %loss, "lock lost");
            // Others in this process may ask for it again, as others elsewhere may.
            self.inner.local.leave(self);
            if matches!(loss, Loss::Ended | Loss::Expired)
                && self.inner.guarantees.death != Death::Lease
                && !self.kept_when_lost
            {
                // The store does not end it while we live, so we do: when the last of the lease has passed.
                self.inner.in_background(BackgroundWork::ReleaseLater(self.clone()));
            }
        }
        self.changed.notify_waiters();
    }

    /// Why it is not ours any more, by the clock at this moment.
    pub(crate) fn loss(self: &Arc<Self>) -> Option<Loss> {
        if let Err(error) = self.inner.check_process() {
            return Some(Loss::Disconnected(error.to_string()));
        }
        let state = self.state();
        if let Some(loss) = &state.over {
            return Some(loss.clone());
        }
        drop(state);
        if self.until_end()?.is_zero() {
            self.end(self.run_out());
            return self.state().over.clone();
        }
        None
    }

    /// How long it is certainly ours if nothing more is heard; `None` without a limit.
    pub(crate) fn until_end(&self) -> Option<Duration> {
        let validity = self.state().validity;
        let now = self.inner.clock.now();
        validity.iter().chain(&self.limit).map(|validity| validity.until_end(&now)).min()
    }

    pub(crate) async fn lost(self: Arc<Self>) -> Loss {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Listen before looking, or a change in between is missed.
            changed.as_mut().enable();
            if let Some(loss) = self.loss() {
                return loss;
            }
            if self.inner.is_stopping() {
                return Loss::Shutdown;
            }
            match self.until_signal() {
                Some(Duration::ZERO) => {
                    self.end(self.run_out());
                }
                Some(left) => tokio::select! {
                    biased;
                    () = tokio::time::sleep(left) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    pub(crate) fn claim(&self) -> MutexGuard<'_, Option<Box<dyn Claim>>> {
        self.claim.lock().expect("nothing panics under this lock")
    }
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
