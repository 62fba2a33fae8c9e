//! A lock in the user's hands.

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
use crate::engine::{Fence, Mode, Renewal};
use crate::error::{Error, Loss, Result};
use crate::key::Key;

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
    /// Dropped after the release was begun, so that a shutdown finds that begun.
    _mark: Counted,
    // Dropped after the release was begun, and may wait for it.
    _client: Client,
}

/// How a release went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
        self.hold().held().replicas()
    }

    /// Whether the lock is still ours, by the clock at this very moment.
    ///
    /// Also right after the process was stopped or suspended, and with the executor blocked.
    ///
    /// # Errors
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        match self.loss() {
            None => Ok(()),
            Some(reason) => Err(Error::Lost { key: self.key().clone(), reason }),
        }
    }

    /// Why the lock is not ours any more, by the clock at this very moment.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.hold().loss()
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

    /// Asks the engine now whether the lock is still ours, and extends its lease.
    ///
    /// The watchdog does this by itself; call it where the answer matters, for instance before a step that
    /// cannot be taken back.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is not ours any more, [`Error::Engine`] if the engine does not answer (the
    /// lock is ours as long as [`check`](Guard::check) says so), [`Error::Unsupported`] for a
    /// [fixed lease](crate::Lock::lease), which is never extended.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the renewal goes on.
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
            Some(Ok(Renewal::Renewed | Renewal::Gone)) => self.check(),
            Some(Ok(Renewal::Unknown)) => unanswered("nobody could be asked"),
            Some(Err(error)) => Err(error),
            None => unanswered("no answer"),
        }
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
    /// When the client [shuts down](Client::shutdown), it resolves with [`Loss::Shutdown`] although the lock
    /// is still ours: the holder has the grace to stop in.
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
        let asked = self.hold().held().yield_requested();
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
    /// [`Error::Engine`] when the engine refuses for good, for instance because a right was withdrawn.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest of the release to the background.
    pub async fn release(mut self) -> Result<Release> {
        let hold = self.hold.take().expect("only release takes the hold");
        hold.inner.check_process()?;
        let lost = hold.loss().is_some();
        let _pending = hold.inner.pending();
        let Some(claim) = hold.inner.local.take_last_guard(&hold) else {
            return Ok(if lost { Release::AlreadyLost } else { Release::Released });
        };
        hold.end(Loss::Released);
        // That it was lost is what the caller has to know, whether the engine answers or not.
        let outcome = release::release(&hold, claim).await?;
        Ok(if lost { Release::AlreadyLost } else { outcome })
    }

    /// The open file whose kernel lock this guard is, where the engine has one.
    ///
    /// A child process that inherits it keeps the lock alive after this process is gone.
    #[cfg(unix)]
    pub fn bequeath(&self) -> Option<std::os::fd::OwnedFd> {
        self.hold().held().bequeath()
    }

    /// Another guard of the same hold, for a re-entrant owner. Called under the lock of `local`.
    pub(crate) fn another(hold: &Arc<Hold>) -> Self {
        hold.guards.fetch_add(1, Ordering::Relaxed);
        Self::first(hold)
    }

    pub(crate) fn first(hold: &Arc<Hold>) -> Self {
        let mark = hold.inner.guard();
        Self { hold: Some(hold.clone()), _mark: mark, _client: Client::of(&hold.inner) }
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
            hold.inner.in_background(BackgroundWork::Release(hold.clone()));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.hold(), f)
    }
}
