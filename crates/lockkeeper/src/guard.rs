//! A lock that is held.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::client::Client;
use crate::core::count::Counted;
use crate::core::hold::Hold;
use crate::core::release::{self, BackgroundWork};
use crate::core::renewal;
use crate::engine::{Fence, Mode, Renewal, YieldRequest};
use crate::error::{Error, Loss, Result};
use crate::key::Key;

/// A lock that you hold until the guard is released or dropped, or the lock is lost.
///
/// Every kind of lock on every engine returns this type. It is owned and `Send`: keep it in a
/// struct, move it between tasks.
///
/// Dropping the guard releases the lock in the background, without blocking; only the last handle
/// of a [client](crate::Client) waits for it. [`release`](Guard::release) waits and reports the
/// outcome.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    /// Taken out by `release`, so that the drop after it does nothing.
    hold: Option<Arc<Hold>>,
    /// Dropped after the release has begun, so that a shutdown counts the release.
    _mark: Counted,
    // Dropped after the release has begun; it may wait for it.
    _client: Client,
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// The lock was held until now, and the engine confirmed the release (or another guard of the
    /// same owner still holds the lock).
    Released,
    /// The lock was lost before it was released. Another client may have held it meanwhile.
    ///
    /// A future of [`Guard::lost`] that was created before the release resolves with the reason.
    AlreadyLost,
    /// The engine did not answer. The lock no longer counts as held; the release is repeated in the
    /// background until it is confirmed or the lease has expired.
    Unconfirmed,
}

/// The renewals that failed since the last confirmed one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trouble {
    /// How many failed in a row.
    pub failures: u32,
    /// The error of the last one.
    pub error: String,
}

impl Guard {
    /// The fencing token: send it with every access to the protected resource, which rejects lower
    /// ones.
    pub fn fence(&self) -> Fence {
        self.hold().fence
    }

    /// The key of the lock.
    pub fn key(&self) -> &Key {
        self.hold().key()
    }

    /// How the lock is held. A re-entrant reader inside its own write lock has the mode of that
    /// write lock.
    pub fn mode(&self) -> Mode {
        self.hold().mode
    }

    /// Which permits of a semaphore are held, numbered from 0; empty for other kinds.
    ///
    /// A resource keeps one fence per slot.
    pub fn slots(&self) -> &[u32] {
        &self.hold().slots
    }

    /// How many replicas of the store had the lock when it was granted; `None` if the engine did
    /// not ask them.
    pub fn replicas(&self) -> Option<u32> {
        self.hold().held().replicas()
    }

    /// Checks whether the lock is still held, by the clock at this very moment.
    ///
    /// The answer is right even after the process was stopped or suspended, and while the executor
    /// is blocked.
    ///
    /// # Errors
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        match self.loss() {
            None => Ok(()),
            Some(reason) => Err(Error::Lost { key: self.key().clone(), reason }),
        }
    }

    /// Why the lock is no longer held, by the clock at this very moment.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.hold().loss()
    }

    /// How long the lock is certainly held if no further renewal succeeds.
    ///
    /// [`Duration::MAX`] if there is no lease because the kernel or a connection holds the lock.
    pub fn remaining(&self) -> Duration {
        let hold = self.hold();
        if hold.loss().is_some() {
            return Duration::ZERO;
        }
        hold.until_end().unwrap_or(Duration::MAX)
    }

    /// How long the lock lasts without a renewal. This is what the store granted, which may be less
    /// than the requested `ttl`.
    ///
    /// `None` if there is no lease because the kernel or a connection holds the lock.
    pub fn lease(&self) -> Option<Duration> {
        let hold = self.hold();
        hold.state().validity.map(|_| hold.ttl())
    }

    /// Asks the engine now whether the lock is still held, and extends its lease.
    ///
    /// The watchdog does this by itself. Call it where the answer matters, for instance before a
    /// step that cannot be undone.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is no longer held, [`Error::Engine`] if the engine does not
    /// answer (the lock is still held as long as [`check`](Guard::check) succeeds),
    /// [`Error::Unsupported`] for a [fixed lease](crate::Lock::lease), which is never extended.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the renewal continues.
    pub async fn renew(&self) -> Result<()> {
        self.check()?;
        let hold = self.hold();
        let engine = hold.inner().engine_name();
        if hold.is_fixed() {
            let what = "renew a fixed lease, which ends by itself; take the lock with ttl instead";
            return Err(Error::Unsupported { engine, what: what.to_owned() });
        }
        let unanswered = |why: &str| {
            Err(Error::unreachable(engine, format!("renew the lock {:?}", hold.key()), why))
        };
        match renewal::renew_now(hold).await {
            Some(Ok(Renewal::Renewed)) => self.check(),
            Some(Ok(Renewal::Gone)) => {
                Err(Error::Lost { key: self.key().clone(), reason: self.lost().await })
            }
            Some(Ok(Renewal::Unknown)) => unanswered("the engine could not be asked"),
            Some(Err(error)) => Err(error),
            None => unanswered("no answer"),
        }
    }

    /// The renewals that failed since the last confirmed one; `None` if there are none.
    ///
    /// The lock is still held until [`check`](Guard::check) fails. After a loss, this shows what
    /// led to it.
    pub fn trouble(&self) -> Option<Trouble> {
        self.hold().state().answers.trouble().cloned()
    }

    /// Resolves with the reason when the lock is lost.
    ///
    /// It resolves a margin (a third of the lease, unless [set](crate::Lock::margin)) before
    /// another client can acquire the lock, even if the store does not answer at all: work that
    /// stops on this signal stops in time. The future is independent of the guard, and resolves
    /// with [`Loss::Released`] after a release. When the client [shuts down](Client::shutdown), it
    /// resolves with [`Loss::Shutdown`] while the lock is still held: the holder then has the grace
    /// period to stop.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static {
        let hold = self.hold().clone();
        async move { hold.lost().await }
    }

    /// Resolves when an operator or another client asks the holder to release the lock, by
    /// [`Client::request_yield`](crate::Client::request_yield), with who asks and why.
    ///
    /// Nothing is taken away: finish what must be finished, then release. It never resolves after a
    /// release, nor on an engine that cannot deliver the request.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub fn yield_requested(&self) -> impl Future<Output = YieldRequest> + Send + 'static {
        let asked = self.hold().held().yield_requested();
        let hold = self.hold().clone();
        async move {
            if let Some(asked) = asked {
                tokio::select! {
                    biased;
                    asked = asked => return asked,
                    // Some engines poll, which has to end with the hold.
                    _ = hold.lost() => {}
                }
            }
            std::future::pending().await
        }
    }

    /// Releases the lock and reports the outcome.
    ///
    /// If the engine does not answer within ten seconds, the outcome is [`Release::Unconfirmed`].
    ///
    /// # Errors
    /// [`Error::Engine`] if the engine refuses permanently, for instance because a permission was
    /// revoked.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest of the release to the background.
    pub async fn release(mut self) -> Result<Release> {
        let hold = self.hold.take().expect("only release takes the hold");
        hold.inner.check_process()?;
        if hold.inner.local.hand_over(&hold) {
            return Ok(Release::Released);
        }
        let lost = hold.loss_here().is_some();
        let _pending = hold.inner.pending();
        let Some(claim) = hold.inner.local.take_last_guard(&hold) else {
            return Ok(if lost { Release::AlreadyLost } else { Release::Released });
        };
        hold.end(Loss::Released);
        // The caller has to know of the loss, whether the engine answers or not.
        let outcome = release::release(&hold, claim).await?;
        Ok(if lost { Release::AlreadyLost } else { outcome })
    }

    /// The open file that carries the kernel lock of this guard, on engines that have one.
    ///
    /// A child process that inherits it keeps the lock after this process has ended.
    #[cfg(unix)]
    pub fn bequeath(&self) -> Option<std::os::fd::OwnedFd> {
        self.hold().held().bequeath()
    }

    /// Another guard of the same hold, for a re-entrant owner. Called with `local` locked.
    pub(crate) fn another(hold: &Arc<Hold>) -> Self {
        hold.guards.fetch_add(1, Ordering::Relaxed);
        Self::first(hold)
    }

    pub(crate) fn first(hold: &Arc<Hold>) -> Self {
        let mark = hold.inner.guard();
        Self { hold: Some(hold.clone()), _mark: mark, _client: Client::of(&hold.inner) }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        self.hold.as_ref().expect("only release takes the hold, and it takes the guard too")
    }
}

impl Drop for Guard {
    /// Sends a message: it does not block, spawn or panic.
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take()
            && !hold.inner.is_inherited()
            && !hold.inner.local.hand_over(&hold)
            && hold.inner.local.drop_guard(&hold)
        {
            hold.end(Loss::Released);
            hold.inner.in_background(BackgroundWork::Release(hold.clone()));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.hold(), f)
    }
}
