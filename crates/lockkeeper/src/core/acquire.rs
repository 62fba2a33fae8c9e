//! The only wait loop: asks an engine until a claim is granted.
//!
//! A caller may drop its future at any await. Whatever it leaves unfinished, an attempt on the wire
//! or a claim in a queue, goes to the client's background task, which completes it and undoes it.
//! So dropping never blocks, and nothing is left behind.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::Instrument;

use super::backoff::RETRIES;
use super::clock::Moment;
use super::hold::Hold;
use super::inner::Inner;
use super::local_queue::{Enter, Ticket, Wake};
use super::release::{BackgroundWork, Releasing, begin_release};
use super::telemetry::Outcome;
use super::terms::Terms;
use crate::engine::{Claim, Grant, Mode, Request};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::key::Key;
use crate::layers::Call;
use crate::owner::Token;

/// The longest time a single call to an engine may take before it counts as unanswered.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(10);

/// How long an acquire keeps retrying a failing engine, with the same token.
const RETRY_FOR: Duration = Duration::from_secs(3);

/// The longest time a waiter relies on the engine's wake-up before it checks again.
const RECHECK: Duration = Duration::from_secs(5);

/// Acquires a lock, within a limit or at once. `None` means that it was busy all the time.
///
/// # Cancel safety
/// May be dropped at any await.
pub(crate) async fn acquire(
    inner: &Arc<Inner>,
    terms: &Terms,
    once: bool,
    limit: Option<Duration>,
) -> Result<Option<Guard>> {
    let mut watch = Watch::new(inner, terms.mode);
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let span = tracing::debug_span!("acquire", key = %terms.key, mode = %terms.mode, engine = inner.engine_name());
    let limit = async {
        match deadline {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    // Pinned once: a future is copied each time it is moved into another, and this one is large.
    let acquisition = pin!(acquire_in_turn(inner, terms, once).instrument(span));
    let result = tokio::select! {
        biased;
        result = acquisition => result,
        () = inner.stopped() => Err(Error::Shutdown),
        () = limit => Ok(None),
    };
    watch.outcome = match &result {
        Ok(Some(_)) => Outcome::Acquired,
        Ok(None) if once => Outcome::Busy,
        Ok(None) => Outcome::Timeout,
        Err(_) => Outcome::Error,
    };
    result
}

/// Waits for its turn in the queue of this process, then asks the engine.
async fn acquire_in_turn(inner: &Arc<Inner>, terms: &Terms, once: bool) -> Result<Option<Guard>> {
    let (ticket, contended) = loop {
        match inner.local.enter(inner, terms, once) {
            Enter::Gate(ticket) => break (ticket, false),
            Enter::Wait(ticket, woken) => match woken.await {
                Ok(Wake::Gate) => break (ticket, true),
                Ok(Wake::Granted(guard)) => {
                    ticket.served();
                    return Ok(Some(guard));
                }
                Err(_) => unreachable!("a ticket is kept as long as its owner waits"),
            },
            Enter::Again(guard) => return Ok(Some(guard)),
            Enter::Leaving(hold) => begin_release(&hold).await,
            Enter::LetGo(hold) => {
                if hold.let_go() {
                    begin_release(&hold).await;
                }
            }
            Enter::Busy => return Ok(None),
            Enter::Upgrade => {
                return Err(Error::Unsupported {
                    engine: inner.engine_name(),
                    what: format!(
                        "turn the read lock {:?} into a write lock: two owners that both try would wait \
                         for each other forever; release it first, or take the write lock from the start",
                        terms.key
                    ),
                });
            }
        }
    };
    ask(inner, terms, ticket, contended, once).await
}

/// Asks the engine until the lock is granted, or once. `contended` means that tasks of this client
/// queue for the lock.
async fn ask(
    inner: &Arc<Inner>,
    terms: &Terms,
    ticket: Ticket,
    contended: bool,
    once: bool,
) -> Result<Option<Guard>> {
    if !once && let Some(pause) = ticket.gives_way() {
        sleep(pause).await;
    }
    let request = terms.request(inner.tokens.next(), !once, contended, inner.who());
    let mut acquisition = Acquisition::new(inner, request, ticket);
    let mut trouble: Option<Instant> = None;
    let mut tries = 0;
    loop {
        let error = match acquisition.attempt().await {
            Ok(Some((grant, asked))) => {
                let old = inner.clock.since(&grant.since);
                let probation = grant.held.probation();
                let lasts = terms.signal_after(probation.unwrap_or(grant.ttl));
                if !grant.held.expires() || old < lasts {
                    return Ok(Some(acquisition.admit(terms, grant, asked)));
                }
                if probation.is_some() {
                    // Too short for these terms: another attempt confirms it for the whole lease.
                    continue;
                }
                // The holder would have to stop before it starts. The next answer may be faster.
                let late = "its answers take longer than the lease";
                Error::unreachable(
                    inner.engine_name(),
                    format!("acquire the lock {:?}", terms.key),
                    late,
                )
            }
            Ok(None) if once => {
                acquisition.give_up().await;
                return Ok(None);
            }
            Ok(None) => {
                trouble = None;
                tracing::debug!("busy, waiting");
                acquisition.wait(terms.spin.map(|backoff| backoff.delay(tries))).await;
                tracing::debug!("woken");
                tries = tries.saturating_add(1);
                continue;
            }
            Err(error) => error,
        };
        let since = *trouble.get_or_insert_with(Instant::now);
        if acquisition.is_unanswered() || !error.is_retryable() || since.elapsed() >= RETRY_FOR {
            return Err(error);
        }
        tracing::debug!(%error, "asking again with the same token");
        sleep(RETRIES.delay(tries)).await;
        tries = tries.saturating_add(1);
    }
}

/// A claim on its way to a grant. If dropped before that, it is undone in the background.
struct Acquisition {
    inner: Arc<Inner>,
    step: Step,
    /// Dropped only once the request that undoes the claim is on the wire.
    ticket: Option<Ticket>,
    key: Key,
    token: Token,
    ttl: Duration,
}

enum Step {
    Idle(Box<dyn Claim>),
    Asking(Asking),
    Done,
}

/// A call in progress, which returns the claim with its answer.
type Asking = Pin<Box<dyn Future<Output = (Box<dyn Claim>, Result<Option<Grant>>)> + Send>>;

impl Acquisition {
    fn new(inner: &Arc<Inner>, request: Request, ticket: Ticket) -> Self {
        let (key, token, ttl) = (request.key.clone(), request.token, request.ttl);
        let step = Step::Idle(inner.engine.claim(request));
        Self { inner: inner.clone(), step, ticket: Some(ticket), key, token, ttl }
    }

    /// Makes one attempt, and returns the time from before it was sent.
    async fn attempt(&mut self) -> Result<Option<(Grant, Moment)>> {
        let engine = self.inner.engine_name();
        let asked = self.inner.clock.now();
        if let Step::Idle(mut claim) = std::mem::replace(&mut self.step, Step::Done) {
            // The claim moves into the future, so that both can be handed to the background
            // together.
            self.step = Step::Asking(Box::pin(async move {
                let answer = claim.attempt(asked).await;
                (claim, answer)
            }));
        }
        let Step::Asking(asking) = &mut self.step else {
            unreachable!("an acquisition that is done is not asked again")
        };
        // Most answers of embedded engines are ready at once and need no timer.
        let answered = match first_poll(asking).await {
            Poll::Ready(answered) => Some(answered),
            Poll::Pending => timeout(CALL_LIMIT, asking).await.ok(),
        };
        let Some((claim, answer)) = answered else {
            let silence = format!("no answer within {}", humantime::format_duration(CALL_LIMIT));
            let error = Error::unreachable(engine, "acquire a lock", silence);
            self.inner.reachability.failed(&error);
            return Err(error);
        };
        self.step = Step::Idle(claim);
        let took = self.inner.clock.since(&asked);
        self.inner.meters.called(Call::Attempt, took, answer.is_ok());
        self.inner.reachability.outcome(&answer);
        answer.map(|grant| grant.map(|grant| (grant, asked)))
    }

    /// Whether a call is still in progress. It is undone when it ends; only a new claim can be
    /// tried.
    fn is_unanswered(&self) -> bool {
        matches!(self.step, Step::Asking(_))
    }

    /// Waits for a reason to ask again. A failed wait is one too: the next attempt will report the
    /// error.
    async fn wait(&mut self, spin: Option<Duration>) {
        if let Some(ticket) = &self.ticket {
            ticket.waiting();
        }
        let Step::Idle(claim) = &mut self.step else { return };
        let waited = async {
            match spin {
                Some(delay) => sleep(delay).await,
                None => {
                    if let Ok(Err(error)) = timeout(RECHECK, claim.wait()).await {
                        tracing::debug!(%error, "cannot wait to be woken; asking again instead");
                        sleep(RETRIES.delay(0)).await;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = waited => {}
            () = self.inner.reachability.broken() => {}
        }
    }

    fn admit(mut self, terms: &Terms, grant: Grant, asked: Moment) -> Guard {
        let Step::Idle(claim) = std::mem::replace(&mut self.step, Step::Done) else {
            unreachable!("an attempt that answered left the claim here")
        };
        let (hold, guard) = Hold::new(&self.inner, terms, self.token, claim, grant, asked);
        if let Some(ticket) = self.ticket.take() {
            ticket.admit(&hold);
        }
        guard
    }

    /// Undoes the claim. Usually there is nothing to undo, and this returns at once.
    async fn give_up(mut self) {
        if let Step::Idle(claim) = std::mem::replace(&mut self.step, Step::Done) {
            self.releasing(claim).begin().await;
        }
    }

    /// The release of a claim that is no longer wanted.
    fn releasing(&mut self, claim: Box<dyn Claim>) -> Releasing {
        let (inner, key) = (self.inner.clone(), self.key.clone());
        Releasing::abandoned(inner, key, claim, self.ticket.take(), self.ttl)
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            ticket.leaving();
        }
        match std::mem::replace(&mut self.step, Step::Done) {
            // If it is dropped here, it continues in the background.
            Step::Idle(claim) => drop(self.releasing(claim)),
            Step::Asking(asking) => {
                let (inner, key) = (self.inner.clone(), self.key.clone());
                let (ticket, ttl) = (self.ticket.take(), self.ttl);
                self.inner.in_background(BackgroundWork::Finish(Box::pin(async move {
                    let mut asking = asking;
                    let (claim, ticket) = match timeout(CALL_LIMIT, &mut asking).await {
                        Ok((claim, _)) => (claim, ticket),
                        Err(_) => {
                            // Other tasks of this process need not wait for an engine that does not
                            // answer.
                            drop(ticket);
                            (asking.await.0, None)
                        }
                    };
                    Releasing::abandoned(inner, key, claim, ticket, ttl).confirm().await;
                })));
            }
            Step::Done => {}
        }
    }
}

/// Polls a future once: its request is sent, or its answer is ready at once.
///
/// The runtime's cooperative budget does not apply: for a task that has used it up, every channel
/// on the way to the wire would be pending in this poll.
pub(crate) async fn first_poll<F: Future + Unpin>(work: &mut F) -> Poll<F::Output> {
    let mut work = tokio::task::unconstrained(work);
    poll_fn(|cx| Poll::Ready(Pin::new(&mut work).poll(cx))).await
}

/// Reports the outcome of an acquire, even if it is dropped before its end.
struct Watch<'a> {
    inner: &'a Inner,
    mode: Mode,
    started: Instant,
    outcome: Outcome,
}

impl<'a> Watch<'a> {
    fn new(inner: &'a Inner, mode: Mode) -> Self {
        inner.meters.waiting(mode);
        Self { inner, mode, started: Instant::now(), outcome: Outcome::Cancelled }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.inner.meters.acquire(self.mode, self.outcome, self.started.elapsed());
    }
}
