//! Several locks at once for code without async.

use std::sync::Arc;
use std::time::Duration;

use super::{Lock, Room};
use crate::engine::Fence;
use crate::error::{Error, Loss, Result};
use crate::guard::Release;
use crate::key::Key;

/// Several locks that are acquired together or not at all; see [`crate::Multi`].
#[derive(Debug, Clone)]
#[must_use = "locks do nothing before they are acquired"]
pub struct Multi {
    multi: crate::Multi,
    /// Of all the clients that these locks belong to.
    rooms: Vec<Arc<Room>>,
}

impl Multi {
    /// Combines locks of any kind, of any clients.
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> Self {
        let (locks, rooms): (Vec<_>, _) = locks.into_iter().map(Lock::into_parts).unzip();
        Self { multi: crate::Multi::new(locks), rooms }
    }

    /// See [`crate::Multi::acquire`].
    ///
    /// # Errors
    /// Same as there.
    pub fn acquire(self) -> Result<MultiGuard> {
        let guard = room(&self.rooms)?.wait(self.multi.acquire())?;
        Ok(MultiGuard { guard: Some(guard), rooms: self.rooms })
    }

    /// See [`crate::Multi::try_acquire`].
    ///
    /// # Errors
    /// Same as there.
    pub fn try_acquire(self) -> Result<Option<MultiGuard>> {
        let guard = room(&self.rooms)?.wait(self.multi.try_acquire())?;
        Ok(guard.map(|guard| MultiGuard { guard: Some(guard), rooms: self.rooms }))
    }

    /// See [`crate::Multi::acquire_within`].
    ///
    /// # Errors
    /// Same as there.
    pub fn acquire_within(self, limit: Duration) -> Result<MultiGuard> {
        let guard = room(&self.rooms)?.wait(self.multi.acquire_within(limit))?;
        Ok(MultiGuard { guard: Some(guard), rooms: self.rooms })
    }
}

/// The runtime that waits for all of them.
fn room(rooms: &[Arc<Room>]) -> Result<&Room> {
    let none = || Error::Config("a multi-lock needs at least one lock".to_owned());
    rooms.first().map(|room| &**room).ok_or_else(none)
}

/// All locks of a [`Multi`], held; see [`crate::MultiGuard`].
///
/// Dropping it releases the locks, and waits up to two seconds for the engines to confirm that.
#[derive(Debug)]
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard {
    /// Taken by `release` and by `drop`.
    guard: Option<crate::MultiGuard>,
    rooms: Vec<Arc<Room>>,
}

impl MultiGuard {
    /// The keys that are held, in order, each with its fence.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        self.guard().guards().iter().map(|guard| (guard.key(), guard.fence()))
    }

    /// See [`crate::MultiGuard::check`].
    ///
    /// # Errors
    /// Same as there.
    pub fn check(&self) -> Result<()> {
        self.guard().check()
    }

    /// See [`crate::MultiGuard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard().remaining()
    }

    /// Blocks until one of the locks is lost, for at most `limit`. Returns `None` if none was lost.
    pub fn lost_within(&self, limit: Duration) -> Option<(Key, Loss)> {
        let lost = self.guard().lost();
        self.room().wait(async { tokio::time::timeout(limit, lost).await.ok() })
    }

    /// See [`crate::MultiGuard::release`].
    ///
    /// # Errors
    /// Same as there.
    pub fn release(mut self) -> Result<Release> {
        let guard = self.guard.take().expect("only release and dropping take it");
        self.room().wait(guard.release())
    }

    fn guard(&self) -> &crate::MultiGuard {
        self.guard.as_ref().expect("only release and dropping take it")
    }

    fn room(&self) -> &Room {
        self.rooms.first().expect("a multi-lock has at least one lock")
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.room().let_go(async { drop(guard.release().await) });
        }
    }
}
