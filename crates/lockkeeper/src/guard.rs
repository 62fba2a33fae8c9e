//! A lock that is held: the guard in the user's hands, and the hold that it shares with the keeper.
//!
//! Easy to get wrong: whether a lock is still ours is computed from the clock at the moment of the
//! question. A flag that a task sets would say "yes" as long as that task does not run.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::backend::{Claim, Death, Fence, Grant, Lease, Mode};
use crate::client::{Client, Inner};
use crate::clock::{Moment, Validity};
use crate::engine::{self, Chore};
use crate::error::{Error, Loss, Result};
use crate::key::Key;
use crate::lock::Terms;
use crate::owner::Owner;

/// A lock that is held until the guard is released or dropped, or the lock is lost.
///
/// Every kind of lock on every engine gives this one type. It is owned and `Send`: keep it in a
/// struct, move it between tasks.
///
/// Dropping it gives the lock back in the background, without blocking; only the last handle of a
/// [client](crate::Client) waits for that. [`release`](Guard::release) does the same and tells how it went.
#[must_use = "the lock is given back as soon as the guard is dropped"]
pub struct Guard {
    /// Taken out by `release`, so that the drop after it does nothing.
    hold: Option<Arc<Hold>>,
    // Dropped after the release was begun, and may wait for it.
    _client: Client,
}

/// How a release went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// It was ours until now, and the engine confirmed that it is free
    /// (or another guard of the same owner still holds it).
    Released,
    /// It was lost before it was released. Somebody else may have been in meanwhile.
    AlreadyLost,
    /// The engine did not answer. We are out; the release is repeated in the background until it is
    /// confirmed or the lease has run out by itself.
    Unconfirmed,
}

/// Renewals that failed since the engine confirmed one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trouble {
    /// How many failed in a row.
    pub failures: u32,
    /// What the last one failed with.
    pub error: String,
}

impl Guard {
    /// The number to send along with every access to the protected resource, which refuses lower ones.
    pub fn fence(&self) -> Fence {
        self.hold().fence
    }

    /// The lock.
    pub fn key(&self) -> &Key {
        self.hold().key()
    }

    /// How it is held. A re-entrant reader inside its own write lock holds by that.
    pub fn mode(&self) -> Mode {
        self.hold().mode
    }

    /// Which permits of a semaphore this is, numbered from 0; empty for other kinds.
    ///
    /// A resource keeps one fence per slot.
    pub fn slots(&self) -> &[u32] {
        &self.hold().slots
    }

    /// How many replicas of the store had the lock when it was granted; `None` where nobody asked them.
    pub fn replicas(&self) -> Option<u32> {
        self.hold().claim().as_ref().and_then(|claim| claim.replicas())
    }

    /// Whether the lock is still ours, by the clock at this very moment.
    ///
    /// Also right after the process was stopped or suspended, and with the executor blocked.
    ///
    /// # Errors
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        let hold = self.hold();
        match hold.loss() {
            None => Ok(()),
            Some(reason) => Err(Error::Lost { key: hold.key.clone(), reason }),
        }
    }

    /// How long the lock is certainly ours if no renewal succeeds from now on.
    ///
    /// [`Duration::MAX`] when there is no lease, because the kernel or a connection holds the lock.
    pub fn remaining(&self) -> Duration {
        let hold = self.hold();
        if hold.loss().is_some() {
            return Duration::ZERO;
        }
        hold.until_end().unwrap_or(Duration::MAX)
    }

    /// How long the lock lasts without a renewal: what the store granted, which may be less than the
    /// `ttl` that was asked for.
    ///
    /// `None` when there is no lease, because the kernel or a connection holds the lock.
    pub fn lease(&self) -> Option<Duration> {
        let hold = self.hold();
        hold.state().validity.map(|_| hold.ttl())
    }

    /// The renewals that failed since the engine confirmed one; `None` while all is well.
    ///
    /// The lock is still ours until [`check`](Guard::check) says otherwise. After a loss this tells what
    /// led to it.
    pub fn trouble(&self) -> Option<Trouble> {
        self.hold().state().trouble.clone()
    }

    /// Resolves when the lock is lost, with the reason.
    ///
    /// It fires a margin (a third of the lease, unless [set](crate::Lock::margin)) before the lock
    /// can pass on, and also when nobody answers at all: work that stops then has stopped in time.
    /// The future is independent of the guard; it resolves with [`Loss::Released`] after a release.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static {
        let hold = self.hold().clone();
        async move { hold.lost().await }
    }

    /// Resolves when somebody asked the holder to give way, by [`Client::request_yield`](crate::Client::request_yield).
    ///
    /// Nothing is taken away: it is for the holder to come to a good place and release.
    /// It never resolves where the engine cannot carry the question, nor after a release.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub fn yield_requested(&self) -> impl Future<Output = ()> + Send + 'static {
        let asked = self.hold().claim().as_ref().and_then(|claim| claim.yield_requested());
        async move {
            match asked {
                Some(asked) => asked.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Gives the lock back and tells how that went.
    ///
    /// An answer that does not come within ten seconds is [`Release::Unconfirmed`].
    ///
    /// # Errors
    /// [`Error::Backend`] when the engine refuses for good, for instance because a right was withdrawn.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest of the release to the background.
    pub async fn release(mut self) -> Result<Release> {
        let hold = self.hold.take().expect("only release takes the hold");
        hold.inner.check_process()?;
        let lost = hold.loss().is_some();
        let Some(claim) = hold.inner.local.take_last_guard(&hold) else {
            return Ok(if lost { Release::AlreadyLost } else { Release::Released });
        };
        hold.end(Loss::Released);
        // That it was lost is what the caller has to know, whether the engine answers or not.
        let outcome = engine::release(&hold, claim).await?;
        Ok(if lost { Release::AlreadyLost } else { outcome })
    }

    /// The open file whose kernel lock this guard is, where the engine has one.
    ///
    /// A child process that inherits it keeps the lock alive after this process is gone.
    #[cfg(unix)]
    pub fn bequeath(&self) -> Option<std::os::fd::OwnedFd> {
        self.hold().claim().as_ref().and_then(|claim| claim.bequeath())
    }

    /// Another guard of the same hold, for a re-entrant owner. Called under the lock of `local`.
    pub(crate) fn another(hold: &Arc<Hold>) -> Self {
        hold.guards.fetch_add(1, Ordering::Relaxed);
        Self::first(hold)
    }

    fn first(hold: &Arc<Hold>) -> Self {
        Self { hold: Some(hold.clone()), _client: Client::of(&hold.inner) }
    }

    fn hold(&self) -> &Arc<Hold> {
        self.hold.as_ref().expect("only release takes the hold, and it takes the guard too")
    }
}

impl Drop for Guard {
    /// Sends a message: it does not block, spawn or panic.
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take()
            && !hold.inner.is_inherited()
            && hold.inner.local.drop_guard(&hold)
        {
            hold.end(Loss::Released);
            hold.inner.chore(Chore::Release(hold.clone()));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.hold(), f)
    }
}

/// What all guards of one grant share with the keeper and the queue.
pub(crate) struct Hold {
    /// Later holds have higher ones.
    id: u64,
    inner: Arc<Inner>,
    key: Key,
    mode: Mode,
    owner: Option<Owner>,
    fence: Fence,
    slots: Vec<u32>,
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
    guards: AtomicUsize,
    state: Mutex<State>,
    changed: Notify,
    /// Taken by whoever releases it.
    claim: Mutex<Option<Box<dyn Claim>>>,
    /// From the grant until everyone has let go.
    span: tracing::Span,
}

#[derive(Debug)]
struct State {
    /// `None` while the engine holds it without a time limit.
    validity: Option<Validity>,
    over: Option<Loss>,
    /// When the keeper looks at it next.
    due: Option<Instant>,
    /// The task that listens for the engine's own word that it is gone.
    listener: Option<AbortHandle>,
    /// How many renewals are under way.
    asking: u32,
    /// Since when none of those has been answered.
    silence: Option<Silence>,
    trouble: Option<Trouble>,
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
        claim: Box<dyn Claim>,
        grant: Grant,
        asked: Moment,
    ) -> (Arc<Self>, Guard) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let ttl = grant.lease.ttl;
        let limited = terms.fixed || !grant.bound;
        // A session or a connection vouches for less than a long fixed lease, again and again.
        let fixed = terms.fixed && ttl >= terms.ttl;
        let margin = terms.margin(ttl);
        let limit = terms.fixed.then(|| Validity::new(asked, terms.ttl, terms.margin(terms.ttl)));
        let span = tracing::debug_span!(
            "hold",
            key = %terms.key,
            mode = %terms.mode,
            fence = grant.fence.get(),
            engine = inner.engine()
        );
        let hold = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            inner: inner.clone(),
            key: terms.key.clone(),
            mode: terms.mode,
            owner: terms.owner.clone(),
            fence: grant.fence,
            slots: grant.slots,
            lease: grant.lease,
            fixed,
            limit,
            margin,
            kept_when_lost: terms.kept_when_lost,
            since: asked.runtime(),
            guards: AtomicUsize::new(1),
            state: Mutex::new(State {
                validity: limited.then(|| Validity::new(asked, ttl, margin)),
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
        inner.keeper.watch(&hold, asked.runtime() + hold.pace(if fixed { ttl } else { ttl / 3 }));
        if let Some(gone) = grant.gone {
            let listener = Arc::downgrade(&hold);
            let task = inner.runtime.spawn(async move {
                let loss = gone.await;
                if let Some(hold) = listener.upgrade() {
                    hold.end(loss);
                }
            });
            hold.state().listener = Some(task.abort_handle());
        }
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

    /// When the keeper looks again: after `usual`, or earlier if a fixed lease ends before.
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

    /// Moves the keeper's next round, and says when it was before.
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
        self.inner.keeper.forget(self);
        if loss != Loss::Released {
            tracing::warn!(parent: &self.span, key = %self.key, reason = %loss, "lock lost");
            // Others in this process may ask for it again, as others elsewhere may.
            self.inner.local.leave(self);
            if matches!(loss, Loss::Ended | Loss::Expired)
                && self.inner.guarantees.death != Death::Lease
                && !self.kept_when_lost
            {
                // The store does not end it while we live, so we do: when the last of the lease has passed.
                self.inner.chore(Chore::ReleaseLater(self.clone()));
            }
        }
        self.changed.notify_waiters();
    }

    /// Why it is not ours any more, by the clock at this moment.
    fn loss(self: &Arc<Self>) -> Option<Loss> {
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

    async fn lost(self: Arc<Self>) -> Loss {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Listen before looking, or a change in between is missed.
            changed.as_mut().enable();
            if let Some(loss) = self.loss() {
                return loss;
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    fn claim(&self) -> MutexGuard<'_, Option<Box<dyn Claim>>> {
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
