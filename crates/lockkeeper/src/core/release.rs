//! The only way claims are released, and the background task that finishes what callers left.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::acquire::{CALL_LIMIT, first_poll};
use super::backoff::RETRIES;
use super::clock::usable;
use super::count::Counted;
use super::hold::Hold;
use super::inner::Inner;
use super::local_queue::Ticket;
use crate::engine::{Claim, Death, Released};
use crate::error::{Error, Result};
use crate::guard::Release;
use crate::key::Key;
use crate::layers::Call;

/// The minimum time for which a release is repeated.
const RELEASE_FOR: Duration = Duration::from_secs(30);

/// How long a release is repeated: no longer than the lock can last without it.
///
/// A lock that is bound to a session lasts as long as the session, which this client keeps alive.
fn repeated_for(inner: &Inner, ttl: Duration) -> Duration {
    match inner.guarantees.death {
        Death::Session => Duration::MAX,
        Death::Lease | Death::AtOnce => ttl.max(RELEASE_FOR),
    }
}

/// Work that outlives the call that started it.
pub(crate) enum BackgroundWork {
    /// A hold whose last guard was dropped.
    Release(Arc<Hold>),
    /// A hold whose time is up by our clock, and which the store keeps as long as we live.
    ReleaseLater(Arc<Hold>),
    /// Anything else that must run to completion.
    Finish(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// The background task of a client. Ends when the client and all its guards are gone.
///
/// Each piece of work is counted as pending until it is done, so that `close` can wait for it.
pub(crate) async fn background(mut queue: mpsc::UnboundedReceiver<(BackgroundWork, Counted)>) {
    while let Some((work, pending)) = queue.recv().await {
        match work {
            BackgroundWork::Release(hold) => begin_release(&hold).await,
            BackgroundWork::ReleaseLater(hold) => {
                tokio::spawn(async move {
                    let tolerance = hold.ttl().saturating_sub(usable(hold.ttl()));
                    sleep(hold.until_end().unwrap_or_default() + tolerance).await;
                    begin_release(&hold).await;
                    drop(pending);
                });
            }
            BackgroundWork::Finish(work) => {
                tokio::spawn(async move {
                    work.await;
                    drop(pending);
                });
            }
        }
    }
}

/// Releases a hold and waits for the engine's answer, for a limited time.
pub(crate) async fn release(hold: &Arc<Hold>, claim: Option<Box<dyn Claim>>) -> Result<Release> {
    let Some(claim) = claim else {
        // Its lease was up, and the background releases it already.
        return Ok(Release::AlreadyLost);
    };
    let mut releasing = Releasing::of(hold, claim);
    match releasing.answer(CALL_LIMIT).await {
        Ok(Released::Yes | Released::Wanted) => Ok(Release::Released),
        Ok(Released::AlreadyGone) => {
            hold.was_gone();
            Ok(Release::AlreadyLost)
        }
        Err(error) if error.is_retryable() => {
            tracing::debug!(%error, "a release is repeated in the background");
            Ok(Release::Unconfirmed)
        }
        Err(error) => Err(error),
    }
}

/// Sends the release of a hold, and leaves waiting for the answer to the background.
pub(crate) async fn begin_release(hold: &Arc<Hold>) {
    let Some(claim) = hold.take_claim() else { return };
    Releasing::of(hold, claim).begin().await;
}

/// A claim that is being released. If it is dropped before the confirmation, the background
/// continues.
pub(crate) struct Releasing {
    inner: Arc<Inner>,
    key: Key,
    /// Keeps the next claim of this process waiting until this one is out of its way.
    barrier: Option<Barrier>,
    step: Step,
    /// How long it is repeated.
    limit: Duration,
    started: Instant,
    /// Whether it runs in a task. If that task is dropped, the runtime is gone, and nothing can
    /// finish it.
    in_task: bool,
}

enum Barrier {
    Hold(Arc<Hold>),
    Ticket(#[expect(dead_code, reason = "dropping it admits the next task")] Ticket),
}

enum Step {
    Idle(Box<dyn Claim>),
    Asking(Asking),
    Done,
}

/// A call in progress, which returns the claim with its answer.
type Asking = Pin<Box<dyn Future<Output = (Box<dyn Claim>, Result<Released>)> + Send>>;

impl Releasing {
    fn of(hold: &Arc<Hold>, claim: Box<dyn Claim>) -> Self {
        let barrier = Some(Barrier::Hold(hold.clone()));
        Self::new(hold.inner().clone(), hold.key().clone(), claim, barrier, hold.ttl())
    }

    /// The release of a claim that its caller abandoned.
    pub(super) fn abandoned(
        inner: Arc<Inner>,
        key: Key,
        claim: Box<dyn Claim>,
        ticket: Option<Ticket>,
        ttl: Duration,
    ) -> Self {
        Self::new(inner, key, claim, ticket.map(Barrier::Ticket), ttl)
    }

    fn new(
        inner: Arc<Inner>,
        key: Key,
        claim: Box<dyn Claim>,
        barrier: Option<Barrier>,
        ttl: Duration,
    ) -> Self {
        let (step, limit) = (Step::Idle(claim), repeated_for(&inner, ttl));
        Self { inner, key, barrier, step, limit, started: Instant::now(), in_task: false }
    }

    /// Sends the request, and leaves waiting for the answer to a task.
    pub(super) async fn begin(mut self) {
        match self.send().await {
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(error)) if !error.is_retryable() => unconfirmed(&error),
            _ => {
                let inner = self.inner.clone();
                self.in_task = true;
                inner.finish(self.confirm());
            }
        }
    }

    /// Repeats the request until the engine confirms it, or the lock must have expired.
    pub(super) async fn confirm(mut self) {
        let mut tries = 0;
        loop {
            match self.answer(CALL_LIMIT).await {
                Ok(_) => return,
                Err(error) if error.is_retryable() && self.started.elapsed() < self.limit => {
                    sleep(RETRIES.delay(tries)).await;
                    tries = tries.saturating_add(1);
                }
                Err(error) => {
                    self.step = Step::Done;
                    return unconfirmed(&error);
                }
            }
        }
    }

    /// Sends one request and returns its answer, if it comes within the limit.
    async fn answer(&mut self, limit: Duration) -> Result<Released> {
        if let Poll::Ready(answer) = self.send().await {
            return answer;
        }
        let Step::Asking(asking) = &mut self.step else { unreachable!("it was just sent") };
        match timeout(limit, asking).await {
            Ok((claim, answer)) => self.answered(claim, answer),
            Err(_) => {
                // If the core keeps the order, other tasks of this process do not wait any longer.
                self.barrier = None;
                let silence = format!("no answer within {}", humantime::format_duration(limit));
                Err(Error::unreachable(self.inner.engine_name(), "release a lock", silence))
            }
        }
    }

    /// Polls the request once, so that it is sent. Other tasks of this process may ask from then
    /// on, if their requests cannot overtake it.
    async fn send(&mut self) -> Poll<Result<Released>> {
        self.step = match std::mem::replace(&mut self.step, Step::Done) {
            Step::Idle(mut claim) => {
                let meters = self.inner.meters.clone();
                Step::Asking(Box::pin(async move {
                    let answer = meters.call(Call::Release, claim.release()).await;
                    (claim, answer)
                }))
            }
            // An earlier request is still unanswered.
            step => step,
        };
        let Step::Asking(asking) = &mut self.step else {
            unreachable!("a release that is done is not sent again")
        };
        match first_poll(asking).await {
            Poll::Ready((claim, answer)) => Poll::Ready(self.answered(claim, answer)),
            Poll::Pending => {
                if self.inner.engine.ordered() {
                    self.barrier = None;
                }
                Poll::Pending
            }
        }
    }

    fn answered(&mut self, claim: Box<dyn Claim>, answer: Result<Released>) -> Result<Released> {
        self.barrier = None;
        self.step = match &answer {
            Err(error) if error.is_retryable() => Step::Idle(claim),
            _ => Step::Done,
        };
        if let Ok(Released::Wanted) = answer {
            self.inner.local.wanted(&self.key);
        }
        answer
    }
}

fn unconfirmed(error: &Error) {
    tracing::warn!(%error, "a release could not be confirmed; the lease ends by itself");
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let step = std::mem::replace(&mut self.step, Step::Done);
        if !self.in_task && !matches!(step, Step::Done) {
            let rest = Releasing {
                inner: self.inner.clone(),
                key: self.key.clone(),
                barrier: self.barrier.take(),
                step,
                limit: self.limit,
                started: self.started,
                in_task: true,
            };
            self.inner.in_background(BackgroundWork::Finish(Box::pin(rest.confirm())));
        }
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        if let Barrier::Hold(hold) = self {
            hold.inner().local.leave(hold);
        }
    }
}
