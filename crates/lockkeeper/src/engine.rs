//! The engine room: the only wait loop, the only place where claims are released.
//!
//! A caller may drop its future at any await. What it leaves unfinished, an attempt on the wire or a
//! claim in a queue, is sent as a [`Chore`] to the client's background task, which runs it to its end
//! and undoes it. Dropping therefore never blocks, and nothing is left behind.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Claim, Grant, Released};
use crate::client::{Inner, Pending};
use crate::clock::{Moment, usable};
use crate::error::{Error, Result};
use crate::guard::{Guard, Hold, Release};
use crate::local::Place;
use crate::lock::Terms;
use crate::telemetry::Call;

/// How long a single call to an engine may take before its caller is told that there is no answer.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(10);

/// How long an acquire goes on asking an engine that fails, with the same token.
const RETRY_FOR: Duration = Duration::from_secs(3);

/// The longest time that a waiter trusts the engine to wake it.
const RECHECK: Duration = Duration::from_secs(5);

/// How long a release without a lease to bound it is repeated.
const RELEASE_FOR: Duration = Duration::from_secs(30);

/// Delays that double, with jitter, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Delays from `first` to `longest`; each is cut by a random part of up to a half.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self::between(first, longest.max(first))
    }

    /// As `new`, for constants whose author put them in order.
    pub(crate) const fn between(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The n-th delay, from 0.
    pub fn delay(&self, n: u32) -> Duration {
        let full = self.first.saturating_mul(1 << n.min(20)).min(self.longest);
        full.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

impl Default for Backoff {
    /// From one millisecond to a tenth of a second.
    fn default() -> Self {
        Self::new(Duration::from_millis(1), Duration::from_millis(100))
    }
}

const RETRIES: Backoff = Backoff::between(Duration::from_millis(25), Duration::from_secs(1));

/// Work that outlives the call that began it.
pub(crate) enum Chore {
    /// A hold whose last guard was dropped.
    Release(Arc<Hold>),
    /// A hold whose time is up by our clock, and which the store keeps as long as we live.
    ReleaseLater(Arc<Hold>),
    /// Anything else that must run to its end.
    Finish(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// The background task of a client. Ends when the client and all its guards are gone.
///
/// Every chore comes with a mark that it is not done yet, for `close` to wait for.
pub(crate) async fn background(mut chores: mpsc::UnboundedReceiver<(Chore, Pending)>) {
    while let Some((chore, pending)) = chores.recv().await {
        match chore {
            Chore::Release(hold) => begin_release(&hold).await,
            Chore::ReleaseLater(hold) => {
                tokio::spawn(async move {
                    let tolerance = hold.ttl().saturating_sub(usable(hold.ttl()));
                    sleep(hold.until_end().unwrap_or_default() + tolerance).await;
                    begin_release(&hold).await;
                    drop(pending);
                });
            }
            Chore::Finish(work) => {
                tokio::spawn(async move {
                    work.await;
                    drop(pending);
                });
            }
        }
    }
}

/// Asks for a lock until it is granted, or once.
///
/// # Cancel safety
/// May be dropped at any await.
pub(crate) async fn pursue(
    inner: &Arc<Inner>,
    terms: &Terms,
    place: Place,
    once: bool,
) -> Result<Option<Guard>> {
    if !once && let Some(pause) = place.gives_way() {
        sleep(pause).await;
    }
    let mut pursuit = Pursuit::new(inner, terms, place, once);
    let mut trouble: Option<Instant> = None;
    let mut tries = 0;
    loop {
        let error = match pursuit.attempt().await {
            Ok(Some((grant, asked, took))) => {
                if grant.bound || took < terms.signal_after(grant.lease.ttl) {
                    return Ok(Some(pursuit.admit(terms, grant, asked)));
                }
                // The holder would have to stop before it began. The next answer may be faster.
                let late = "its answers take longer than the lease";
                Error::unreachable(
                    inner.engine(),
                    format!("acquire the lock {:?}", terms.key),
                    late,
                )
            }
            Ok(None) if once => {
                pursuit.give_up().await;
                return Ok(None);
            }
            Ok(None) => {
                trouble = None;
                tracing::debug!("busy, waiting");
                pursuit.wait(terms.spin.map(|backoff| backoff.delay(tries))).await;
                tracing::debug!("woken");
                tries = tries.saturating_add(1);
                continue;
            }
            Err(error) => error,
        };
        let since = *trouble.get_or_insert_with(Instant::now);
        if pursuit.is_unanswered() || !error.is_retryable() || since.elapsed() >= RETRY_FOR {
            return Err(error);
        }
        tracing::debug!(%error, "asking again with the same token");
        sleep(RETRIES.delay(tries)).await;
        tries = tries.saturating_add(1);
    }
}

/// A claim on its way to a grant. Dropped before that, it is undone in the background.
struct Pursuit {
    inner: Arc<Inner>,
    step: Step,
    /// Given up only after the undoing is on the wire.
    place: Option<Place>,
    ttl: Duration,
}

enum Step {
    Idle(Box<dyn Claim>),
    Asking(Asking),
    Done,
}

/// A call under way, which gives the claim back with its answer.
type Asking = Pin<Box<dyn Future<Output = (Box<dyn Claim>, Result<Option<Grant>>)> + Send>>;

impl Pursuit {
    fn new(inner: &Arc<Inner>, terms: &Terms, place: Place, once: bool) -> Self {
        let claim = inner.backend.claim(terms.request(inner.tokens.next(), !once));
        let step = Step::Idle(claim);
        Self { inner: inner.clone(), step, place: Some(place), ttl: terms.ttl }
    }

    /// One attempt, the moment before it left, and how long it took.
    async fn attempt(&mut self) -> Result<Option<(Grant, Moment, Duration)>> {
        let engine = self.inner.engine();
        let asked = self.inner.clock.now();
        if let Step::Idle(mut claim) = std::mem::replace(&mut self.step, Step::Done) {
            // The claim moves into the future, so that the two can be left to the background as one.
            self.step = Step::Asking(Box::pin(async move {
                let answer = claim.attempt().await;
                (claim, answer)
            }));
        }
        let Step::Asking(asking) = &mut self.step else {
            unreachable!("a pursuit that is done is not asked again")
        };
        // Most answers of embedded engines are there at once, and need no timer.
        let answered = match first_poll(asking).await {
            Poll::Ready(answered) => Some(answered),
            Poll::Pending => timeout(CALL_LIMIT, asking).await.ok(),
        };
        let Some((claim, answer)) = answered else {
            let silence = format!("no answer within {}", humantime::format_duration(CALL_LIMIT));
            return Err(Error::unreachable(engine, "acquire a lock", silence));
        };
        self.step = Step::Idle(claim);
        let took = self.inner.clock.since(&asked);
        self.inner.meters.called(Call::Attempt, took, answer.is_ok());
        answer.map(|grant| grant.map(|grant| (grant, asked, took)))
    }

    /// Whether a call is still under way. It is undone when it ends, and only another claim can be tried.
    fn is_unanswered(&self) -> bool {
        matches!(self.step, Step::Asking(_))
    }

    /// Waits for a reason to ask again. A failure to wait is one as well: the next attempt tells.
    async fn wait(&mut self, spin: Option<Duration>) {
        if let Some(place) = &self.place {
            place.waiting();
        }
        let Step::Idle(claim) = &mut self.step else { return };
        match spin {
            Some(delay) => sleep(delay).await,
            None => {
                if let Ok(Err(error)) = timeout(RECHECK, claim.wait()).await {
                    tracing::debug!(%error, "cannot wait to be woken; asking again instead");
                    sleep(RETRIES.delay(0)).await;
                }
            }
        }
    }

    fn admit(mut self, terms: &Terms, grant: Grant, asked: Moment) -> Guard {
        let Step::Idle(claim) = std::mem::replace(&mut self.step, Step::Done) else {
            unreachable!("an attempt that answered left the claim here")
        };
        let (hold, guard) = Hold::new(&self.inner, terms, claim, grant, asked);
        if let Some(place) = self.place.take() {
            place.admit(&hold);
        }
        guard
    }

    /// Undoes the claim; mostly there is nothing to undo, and this is done at once.
    async fn give_up(mut self) {
        if let Some(mut work) = self.undo()
            && first_poll(&mut work).await.is_pending()
        {
            self.inner.chore(Chore::Finish(work));
        }
    }

    fn undo(&mut self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let claim: Pin<Box<dyn Future<Output = Box<dyn Claim>> + Send>> =
            match std::mem::replace(&mut self.step, Step::Done) {
                Step::Idle(claim) => Box::pin(std::future::ready(claim)),
                Step::Asking(asking) => Box::pin(async move { asking.await.0 }),
                Step::Done => return None,
            };
        let (inner, place, ttl) = (self.inner.clone(), self.place.take(), self.ttl);
        Some(Box::pin(async move {
            let mut work = Box::pin(release_until_confirmed(inner, claim.await, ttl));
            let first = first_poll(&mut work).await;
            drop(place);
            if first.is_pending() {
                let _ = work.await;
            }
        }))
    }
}

impl Drop for Pursuit {
    fn drop(&mut self) {
        if let Some(work) = self.undo() {
            self.inner.chore(Chore::Finish(work));
        }
    }
}

/// Releases a hold and waits for the engine's answer, if it comes in time.
pub(crate) async fn release(hold: &Arc<Hold>, claim: Option<Box<dyn Claim>>) -> Result<Release> {
    let inner = hold.inner();
    let Some(mut claim) = claim else {
        // Its fixed time was up, and the background releases it already.
        return Ok(Release::AlreadyLost);
    };
    let meters = inner.meters.clone();
    let work = async move {
        let answer = meters.call(Call::Release, claim.release()).await;
        (claim, answer)
    };
    let mut departure = Departure { hold: hold.clone(), work: Some(Box::pin(work)) };
    let work = departure.work.as_mut().expect("it was just put there");
    let first = first_poll(work).await;
    inner.local.leave(hold);
    let answered = match first {
        Poll::Ready(answered) => Some(answered),
        Poll::Pending => timeout(CALL_LIMIT, work).await.ok(),
    };
    let Some((claim, answer)) = answered else { return Ok(Release::Unconfirmed) };
    departure.work = None;
    match answer {
        Ok(Released::Yes) => Ok(Release::Released),
        Ok(Released::Wanted) => {
            inner.local.wanted(hold.key());
            Ok(Release::Released)
        }
        Ok(Released::AlreadyGone) => Ok(Release::AlreadyLost),
        Err(error) if error.is_retryable() => {
            tracing::debug!(%error, "a release is repeated in the background");
            let again = release_until_confirmed(inner.clone(), claim, hold.ttl());
            inner.chore(Chore::Finish(Box::pin(async move {
                let _ = again.await;
            })));
            Ok(Release::Unconfirmed)
        }
        Err(error) => Err(error),
    }
}

type Departing = Pin<Box<dyn Future<Output = (Box<dyn Claim>, Result<Released>)> + Send>>;

/// A release under way, which the background finishes if its caller does not.
struct Departure {
    hold: Arc<Hold>,
    work: Option<Departing>,
}

impl Drop for Departure {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        let hold = self.hold.clone();
        self.hold.inner().chore(Chore::Finish(Box::pin(async move {
            let answered = timeout(RELEASE_FOR.max(hold.ttl()), work).await;
            hold.inner().local.leave(&hold);
            if let Ok((claim, Err(error))) = answered
                && error.is_retryable()
            {
                let _ = release_until_confirmed(hold.inner().clone(), claim, hold.ttl()).await;
            }
        })));
    }
}

/// Puts the release of a hold on the wire, and leaves waiting for the answer to the background.
pub(crate) async fn begin_release(hold: &Arc<Hold>) {
    let Some(claim) = hold.take_claim() else { return };
    let inner = hold.inner();
    let release = release_until_confirmed(inner.clone(), claim, hold.ttl());
    let released = hold.clone();
    let mut release = Box::pin(async move {
        if let Ok(Released::Wanted) = release.await {
            released.inner().local.wanted(released.key());
        }
    });
    let first = first_poll(&mut release).await;
    inner.local.leave(hold);
    if first.is_pending() {
        inner.finish(release);
    }
}

/// Repeats a release until the engine confirms it, or the lease must have run out by itself.
async fn release_until_confirmed(
    inner: Arc<Inner>,
    mut claim: Box<dyn Claim>,
    ttl: Duration,
) -> Result<Released> {
    let started = Instant::now();
    let limit = ttl.max(RELEASE_FOR);
    let mut tries = 0;
    loop {
        let answer = inner.meters.call(Call::Release, claim.release());
        let mut answer = Box::pin(answer);
        let answer = match first_poll(&mut answer).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => timeout(limit, answer).await.unwrap_or_else(|_| {
                Err(Error::broken(
                    inner.engine(),
                    "release a lock",
                    "no answer for as long as its lease",
                ))
            }),
        };
        match answer {
            Err(error) if error.is_retryable() && started.elapsed() < limit => {
                sleep(RETRIES.delay(tries)).await;
                tries = tries.saturating_add(1);
            }
            Err(error) => {
                tracing::warn!(%error, "a release could not be confirmed; the lease ends by itself");
                return Err(error);
            }
            answer => return answer,
        }
    }
}

/// Polls a future once: its request leaves, or its answer is there at once.
///
/// The runtime's budget does not count: a task that has used it up would find every channel on the
/// way to the wire closed for this poll.
pub(crate) async fn first_poll<F: Future + Unpin>(work: &mut F) -> Poll<F::Output> {
    let mut work = tokio::task::unconstrained(work);
    poll_fn(|cx| Poll::Ready(Pin::new(&mut work).poll(cx))).await
}
