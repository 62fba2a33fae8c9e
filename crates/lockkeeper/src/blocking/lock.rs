//! A lock and its guard for code without async.

use std::sync::Arc;
use std::time::Duration;

use super::Room;
use crate::core::Backoff;
use crate::engine::{Fence, Mode, YieldRequest};
use crate::error::{Error, Loss, Result};
use crate::guard::{Release, Trouble};
use crate::key::Key;
use crate::owner::Owner;

/// A lock that you can configure and then acquire; see [`crate::Lock`].
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing before it is acquired"]
pub struct Lock {
    lock: crate::Lock,
    room: Arc<Room>,
}

impl Lock {
    pub(super) fn new(lock: crate::Lock, room: &Arc<Room>) -> Self {
        Self { lock, room: room.clone() }
    }

    pub(super) fn into_parts(self) -> (crate::Lock, Arc<Room>) {
        (self.lock, self.room)
    }

    /// See [`crate::Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// See [`crate::Lock::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lock = self.lock.lease(lease);
        self
    }

    /// See [`crate::Lock::margin`].
    pub fn margin(mut self, margin: Duration) -> Self {
        self.lock = self.lock.margin(margin);
        self
    }

    /// See [`crate::Lock::keep_when_lost`].
    pub fn keep_when_lost(mut self) -> Self {
        self.lock = self.lock.keep_when_lost();
        self
    }

    /// See [`crate::Lock::fair`].
    pub fn fair(mut self) -> Self {
        self.lock = self.lock.fair();
        self
    }

    /// See [`crate::Lock::spin`].
    pub fn spin(mut self, backoff: Backoff) -> Self {
        self.lock = self.lock.spin(backoff);
        self
    }

    /// See [`crate::Lock::owner`].
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.lock = self.lock.owner(owner);
        self
    }

    /// See [`crate::Lock::hand_over`].
    pub fn hand_over(mut self, on: bool) -> Self {
        self.lock = self.lock.hand_over(on);
        self
    }

    /// See [`crate::Lock::keep`].
    pub fn keep(mut self, keep: Duration) -> Self {
        self.lock = self.lock.keep(keep);
        self
    }

    /// See [`crate::Lock::note`].
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        self.lock = self.lock.note(note);
        self
    }

    /// See [`crate::Lock::permits`].
    pub fn permits(mut self, take: u32) -> Self {
        self.lock = self.lock.permits(take);
        self
    }

    /// See [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// Same as there.
    pub fn acquire(self) -> Result<Guard> {
        let guard = self.room.wait(self.lock.acquire())?;
        Ok(Guard::new(guard, &self.room))
    }

    /// See [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// Same as there.
    pub fn try_acquire(self) -> Result<Option<Guard>> {
        let guard = self.room.wait(self.lock.try_acquire())?;
        Ok(guard.map(|guard| Guard::new(guard, &self.room)))
    }

    /// See [`crate::Lock::acquire_within`].
    ///
    /// # Errors
    /// Same as there.
    pub fn acquire_within(self, limit: Duration) -> Result<Guard> {
        let guard = self.room.wait(self.lock.acquire_within(limit))?;
        Ok(Guard::new(guard, &self.room))
    }

    /// Runs work while holding the lock. A thread cannot be cancelled: call [`Guard::check`] before
    /// every step that must not happen twice.
    ///
    /// # Errors
    /// [`Error::Late`] if the lock was lost before the work was done; otherwise the same as
    /// [`crate::Lock::acquire`].
    pub fn run<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        run_with(self.acquire()?, work)
    }

    /// Like [`run`](Lock::run) if the lock is free now. Returns `None`, without running the work,
    /// if it is busy.
    ///
    /// # Errors
    /// Same as [`run`](Lock::run).
    pub fn try_run<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<Option<T>> {
        self.try_acquire()?.map(|guard| run_with(guard, work)).transpose()
    }

    /// Like [`run`](Lock::run), but waits for the lock for at most `limit`. The work itself has no
    /// limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock was busy all the time; otherwise the same as
    /// [`run`](Lock::run).
    pub fn run_within<T>(self, limit: Duration, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        run_with(self.acquire_within(limit)?, work)
    }
}

fn run_with<T>(guard: Guard, work: impl FnOnce(&Guard) -> T) -> Result<T> {
    let done = work(&guard);
    if let Some(reason) = guard.guard().loss() {
        return Err(Error::Late { key: guard.key().clone(), reason });
    }
    let _ = guard.release();
    Ok(done)
}

/// A lock that you hold; see [`crate::Guard`].
///
/// Dropping it releases the lock, and waits up to two seconds for the engine to confirm that.
#[derive(Debug)]
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    /// Taken by `release` and by `drop`.
    guard: Option<crate::Guard>,
    room: Arc<Room>,
}

impl Guard {
    pub(super) fn new(guard: crate::Guard, room: &Arc<Room>) -> Self {
        Self { guard: Some(guard), room: room.clone() }
    }

    /// See [`crate::Guard::fence`].
    pub fn fence(&self) -> Fence {
        self.guard().fence()
    }

    /// The key of the lock.
    pub fn key(&self) -> &Key {
        self.guard().key()
    }

    /// See [`crate::Guard::mode`].
    pub fn mode(&self) -> Mode {
        self.guard().mode()
    }

    /// See [`crate::Guard::slots`].
    pub fn slots(&self) -> &[u32] {
        self.guard().slots()
    }

    /// See [`crate::Guard::replicas`].
    pub fn replicas(&self) -> Option<u32> {
        self.guard().replicas()
    }

    /// See [`crate::Guard::check`].
    ///
    /// # Errors
    /// Same as there.
    pub fn check(&self) -> Result<()> {
        self.guard().check()
    }

    /// See [`crate::Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard().remaining()
    }

    /// See [`crate::Guard::lease`].
    pub fn lease(&self) -> Option<Duration> {
        self.guard().lease()
    }

    /// See [`crate::Guard::trouble`].
    pub fn trouble(&self) -> Option<Trouble> {
        self.guard().trouble()
    }

    /// Blocks until the lock is lost, for at most `limit`. Returns `None` if it was not lost. See
    /// [`crate::Guard::lost`].
    pub fn lost_within(&self, limit: Duration) -> Option<Loss> {
        let lost = self.guard().lost();
        self.room.wait(async { tokio::time::timeout(limit, lost).await.ok() })
    }

    /// Blocks until the holder is asked to release the lock, for at most `limit`. Returns `None` if
    /// it was not asked. See [`crate::Guard::yield_requested`].
    pub fn yield_requested_within(&self, limit: Duration) -> Option<YieldRequest> {
        let asked = self.guard().yield_requested();
        self.room.wait(async { tokio::time::timeout(limit, asked).await.ok() })
    }

    /// See [`crate::Guard::renew`].
    ///
    /// # Errors
    /// Same as there.
    pub fn renew(&self) -> Result<()> {
        self.room.wait(self.guard().renew())
    }

    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    /// Same as there.
    pub fn release(mut self) -> Result<Release> {
        let guard = self.guard.take().expect("only release and dropping take it");
        self.room.wait(guard.release())
    }

    /// See [`crate::Guard::bequeath`].
    #[cfg(unix)]
    pub fn bequeath(&self) -> Option<std::os::fd::OwnedFd> {
        self.guard().bequeath()
    }

    fn guard(&self) -> &crate::Guard {
        self.guard.as_ref().expect("only release and dropping take it")
    }
}

impl Drop for Guard {
    /// Like `release`, but safe in async code: it blocks, but it does not panic.
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.room.let_go(async { drop(guard.release().await) });
        }
    }
}
