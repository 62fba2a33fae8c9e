//! The same words for code without async.
//!
//! A client has a small runtime of its own, which keeps leases alive while your threads work.
//! Do not use it inside async code: it would block the executor.
//!
//! ```
//! # fn main() -> lockkeeper::Result<()> {
//! let client = lockkeeper::blocking::Client::connect("memory:")?;
//! let guard = client.mutex("orders/42").acquire()?;
//! println!("fence {}", guard.fence());
//! guard.release()?;
//! # Ok(())
//! # }
//! ```

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::backend::{Entry, Guarantees, Snapshot};
use crate::engine::Backoff;
use crate::error::{Error, Loss, Result};
use crate::guard::Release;
use crate::owner::Owner;

/// A connection to one engine; see [`crate::Client`].
#[derive(Debug, Clone)]
pub struct Client {
    room: Arc<Room>,
}

/// A client with the runtime that works for it.
#[derive(Debug)]
struct Room {
    client: crate::Client,
    runtime: Runtime,
}

impl Drop for Room {
    /// The last handle is gone: releases that were begun by dropping guards still go out.
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_err() {
            self.runtime.block_on(self.client.flush());
        }
    }
}

impl Client {
    /// Opens the engine that a URL names.
    ///
    /// # Errors
    /// As [`crate::Client::connect`].
    ///
    /// # Panics
    /// Inside async code.
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockkeeper")
            .enable_all()
            .build()
            .map_err(|e| Error::broken("lockkeeper", "start its background thread", e))?;
        let client = runtime.block_on(crate::Client::connect(url))?;
        Ok(Self { room: Arc::new(Room { client, runtime }) })
    }

    /// See [`crate::Client::mutex`].
    pub fn mutex(&self, key: impl AsRef<str>) -> Lock {
        self.lock(self.room.client.mutex(key))
    }

    /// See [`crate::Client::read`].
    pub fn read(&self, key: impl AsRef<str>) -> Lock {
        self.lock(self.room.client.read(key))
    }

    /// See [`crate::Client::write`].
    pub fn write(&self, key: impl AsRef<str>) -> Lock {
        self.lock(self.room.client.write(key))
    }

    /// See [`crate::Client::semaphore`].
    pub fn semaphore(&self, key: impl AsRef<str>, limit: u32) -> Lock {
        self.lock(self.room.client.semaphore(key, limit))
    }

    /// See [`crate::Client::inspect`].
    ///
    /// # Errors
    /// As there.
    pub fn inspect(&self, key: impl AsRef<str>) -> Result<Option<Snapshot>> {
        self.room.runtime.block_on(self.room.client.inspect(key))
    }

    /// See [`crate::Client::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, prefix: impl Into<String>) -> Result<Vec<Snapshot>> {
        self.room.runtime.block_on(self.room.client.list(prefix))
    }

    /// See [`crate::Client::break_lock`].
    ///
    /// # Errors
    /// As there.
    pub fn break_lock(&self, key: impl AsRef<str>) -> Result<Vec<Entry>> {
        self.room.runtime.block_on(self.room.client.break_lock(key))
    }

    /// What this engine promises.
    pub fn guarantees(&self) -> Guarantees {
        self.room.client.guarantees()
    }

    /// See [`crate::Client::close`].
    pub fn close(self) {
        self.room.runtime.block_on(self.room.client.clone().close());
    }

    fn lock(&self, lock: crate::Lock) -> Lock {
        Lock { lock, room: self.room.clone() }
    }
}

/// A lock that can be acquired; see [`crate::Lock`].
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing before it is acquired"]
pub struct Lock {
    lock: crate::Lock,
    room: Arc<Room>,
}

impl Lock {
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
    /// As there.
    pub fn acquire(self) -> Result<Guard> {
        let guard = self.room.runtime.block_on(self.lock.acquire())?;
        Ok(Guard { guard, room: self.room })
    }

    /// See [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(self) -> Result<Option<Guard>> {
        let guard = self.room.runtime.block_on(self.lock.try_acquire())?;
        Ok(guard.map(|guard| Guard { guard, room: self.room }))
    }

    /// See [`crate::Lock::acquire_within`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire_within(self, limit: Duration) -> Result<Guard> {
        let guard = self.room.runtime.block_on(self.lock.acquire_within(limit))?;
        Ok(Guard { guard, room: self.room })
    }

    /// Does work while holding the lock. A thread cannot be cancelled: the work has to look at
    /// [`Guard::check`](crate::Guard::check) before everything that must not happen twice.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lock was lost before the work was done; otherwise as
    /// [`crate::Lock::acquire`].
    pub fn run<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let done = work(&guard);
        guard.check()?;
        let _ = guard.release();
        Ok(done)
    }
}

/// A lock that is held; see [`crate::Guard`], to which it dereferences.
#[derive(Debug)]
#[must_use = "the lock is given back as soon as the guard is dropped"]
pub struct Guard {
    // Dropped before the runtime that carries out its release.
    guard: crate::Guard,
    room: Arc<Room>,
}

impl Guard {
    /// Blocks until the lock is lost, at most so long; `None` when it was not.
    pub fn lost_within(&self, limit: Duration) -> Option<Loss> {
        let lost = self.guard.lost();
        self.room.runtime.block_on(async { tokio::time::timeout(limit, lost).await.ok() })
    }

    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Release> {
        self.room.runtime.block_on(self.guard.release())
    }
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        &self.guard
    }
}
