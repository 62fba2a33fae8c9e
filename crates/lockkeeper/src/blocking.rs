//! The same words for code without async.
//!
//! A client has a small runtime of its own, which keeps leases alive while your threads work.
//! Do not use it inside async code: it would block the executor. There, taking a lock panics;
//! dropping a guard or a client does not.
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
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::client::LINGER;
use crate::core::Backoff;
use crate::engine::{Entry, Guarantees, Snapshot};
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
    // Dropped before the runtime: it waits for releases that were begun by dropping guards.
    client: crate::Client,
    runtime: Own,
}

/// A runtime that ends without waiting, wherever it is dropped.
#[derive(Debug)]
struct Own {
    runtime: Option<Runtime>,
    /// Who started it.
    process: u32,
}

impl Drop for Own {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        match self.process == std::process::id() {
            true => runtime.shutdown_background(),
            // A forked process has its memory, but not its threads.
            false => std::mem::forget(runtime),
        }
    }
}

impl Deref for Own {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.runtime.as_ref().expect("only dropping takes it")
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
        let runtime = Own { runtime: Some(runtime), process: std::process::id() };
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
        Ok(Guard { guard: Some(guard), room: self.room })
    }

    /// See [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(self) -> Result<Option<Guard>> {
        let guard = self.room.runtime.block_on(self.lock.try_acquire())?;
        Ok(guard.map(|guard| Guard { guard: Some(guard), room: self.room }))
    }

    /// See [`crate::Lock::acquire_within`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire_within(self, limit: Duration) -> Result<Guard> {
        let guard = self.room.runtime.block_on(self.lock.acquire_within(limit))?;
        Ok(Guard { guard: Some(guard), room: self.room })
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
///
/// Dropping it gives the lock back, and waits up to two seconds until the engine has confirmed that.
#[derive(Debug)]
#[must_use = "the lock is given back as soon as the guard is dropped"]
pub struct Guard {
    /// Taken out by `release` and by dropping.
    guard: Option<crate::Guard>,
    room: Arc<Room>,
}

impl Guard {
    /// Blocks until the lock is lost, at most so long; `None` when it was not.
    pub fn lost_within(&self, limit: Duration) -> Option<Loss> {
        let lost = self.lost();
        self.room.runtime.block_on(async { tokio::time::timeout(limit, lost).await.ok() })
    }

    /// See [`crate::Guard::renew`].
    ///
    /// # Errors
    /// As there.
    pub fn renew(&self) -> Result<()> {
        self.room.runtime.block_on(crate::Guard::renew(self))
    }

    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(mut self) -> Result<Release> {
        let guard = self.guard.take().expect("only release and dropping take it");
        self.room.runtime.block_on(guard.release())
    }
}

impl Drop for Guard {
    /// Like `release`, in a way that async code may use too: it blocks, but it does not panic.
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        if self.room.client.inner().is_inherited() {
            return;
        }
        let (done, told) = mpsc::channel();
        self.room.runtime.spawn(async move {
            let _ = guard.release().await;
            let _ = done.send(());
        });
        let _ = told.recv_timeout(LINGER);
    }
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        self.guard.as_ref().expect("only release and dropping take it")
    }
}
