//! The only place where claims are released, and the background task that finishes what callers left.

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
use super::hold::Hold;
use crate::client::{Inner, Pending};
use crate::engine::{Claim, Released};
use crate::error::{Error, Result};
use crate::guard::Release;
use crate::layers::Call;

/// How long a release without a lease to bound it is repeated.
const RELEASE_FOR: Duration = Duration::from_secs(30);

/// Work that outlives the call that began it.
pub(crate) enum BackgroundWork {
    /// A hold whose last guard was dropped.
    Release(Arc<Hold>),
    /// A hold whose time is up by our clock, and which the store keeps as long as we live.
    ReleaseLater(Arc<Hold>),
    /// Anything else that must run to its end.
    Finish(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// The background task of a client. Ends when the client and all its guards are gone.
///
/// Every work comes with a mark that it is not done yet, for `close` to wait for.
pub(crate) async fn background(mut background: mpsc::UnboundedReceiver<(BackgroundWork, Pending)>) {
    while let Some((work, pending)) = background.recv().await {
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
            inner.in_background(BackgroundWork::Finish(Box::pin(async move {
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
        self.hold.inner().in_background(BackgroundWork::Finish(Box::pin(async move {
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
pub(super) async fn release_until_confirmed(
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
                    inner.engine_name(),
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
