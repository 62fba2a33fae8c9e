//! The same API for code without async.
//!
//! A client has a small runtime of its own, which renews leases while your threads work. Do not use
//! it inside async code: it would block the executor. There, acquiring a lock panics; dropping a
//! guard or a client does not.
//!
//! A thread cannot be cancelled. In long work, call [`Guard::check`] before every step that must
//! not happen twice, and [`Guard::lost_within`] to learn whether to stop.
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

mod election;
mod lock;
mod multi;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::core::inner::LINGER;
use crate::core::outage::Outage;
use crate::engine::{Break, Entry, Finding, Guarantees, Snapshot};
use crate::error::{Error, Result};
use crate::key::Key;

pub use election::{Election, Observer, Term};
pub use lock::{Guard, Lock};
pub use multi::{Multi, MultiGuard};

/// A connection to one engine; see [`crate::Client`].
#[derive(Debug, Clone)]
pub struct Client {
    room: Arc<Room>,
}

/// A client with its runtime.
#[derive(Debug)]
struct Room {
    // Dropped before the runtime: it waits for the releases of dropped guards.
    client: crate::Client,
    runtime: Own,
}

/// A runtime that shuts down without waiting, wherever it is dropped.
#[derive(Debug)]
struct Own {
    runtime: Option<Runtime>,
    /// The process that started it.
    process: u32,
}

impl Drop for Own {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        match self.process == std::process::id() {
            true => runtime.shutdown_background(),
            // A forked process has the parent's memory, but not its threads.
            false => std::mem::forget(runtime),
        }
    }
}

impl Room {
    /// Blocks on a future of the client.
    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime().block_on(work)
    }

    /// Waits for a release to be confirmed, for a short time, and in a way that is safe in async
    /// code.
    fn let_go(&self, release: impl Future<Output = ()> + Send + 'static) {
        if self.client.inner().is_inherited() {
            return;
        }
        let (done, told) = mpsc::channel();
        self.runtime().spawn(async move {
            release.await;
            let _ = done.send(());
        });
        let _ = told.recv_timeout(LINGER);
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.runtime.as_ref().expect("only dropping takes it")
    }
}

impl Client {
    /// Connects to the engine that a URL names.
    ///
    /// # Errors
    /// Same as [`crate::Client::connect`].
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

    /// See [`crate::Client::election`].
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.room.client.election(name), &self.room)
    }

    /// See [`crate::Client::inspect`].
    ///
    /// # Errors
    /// Same as there.
    pub fn inspect(&self, key: impl AsRef<str>) -> Result<Option<Snapshot>> {
        self.room.wait(self.room.client.inspect(key))
    }

    /// See [`crate::Client::list`].
    ///
    /// # Errors
    /// Same as there.
    pub fn list(&self, prefix: impl Into<String>) -> Result<Vec<Snapshot>> {
        self.room.wait(self.room.client.list(prefix))
    }

    /// See [`crate::Client::break_lock`].
    ///
    /// # Errors
    /// Same as there.
    pub fn break_lock(&self, key: impl AsRef<str>) -> Result<Vec<Entry>> {
        self.room.wait(self.room.client.break_lock(key))
    }

    /// See [`crate::Client::break_lock_because`].
    ///
    /// # Errors
    /// Same as there.
    pub fn break_lock_because(
        &self,
        key: impl AsRef<str>,
        why: impl AsRef<str>,
    ) -> Result<Vec<Entry>> {
        self.room.wait(self.room.client.break_lock_because(key, why))
    }

    /// See [`crate::Client::broken`].
    ///
    /// # Errors
    /// Same as there.
    pub fn broken(&self, prefix: impl AsRef<str>) -> Result<Vec<Break>> {
        self.room.wait(self.room.client.broken(prefix))
    }

    /// See [`crate::Client::request_yield`].
    ///
    /// # Errors
    /// Same as there.
    pub fn request_yield(&self, key: impl AsRef<str>) -> Result<Vec<Entry>> {
        self.room.wait(self.room.client.request_yield(key))
    }

    /// See [`crate::Client::request_yield_because`].
    ///
    /// # Errors
    /// Same as there.
    pub fn request_yield_because(
        &self,
        key: impl AsRef<str>,
        why: impl AsRef<str>,
    ) -> Result<Vec<Entry>> {
        self.room.wait(self.room.client.request_yield_because(key, why))
    }

    /// See [`crate::Client::set_command`].
    pub fn set_command(&self, command: Option<&str>) {
        self.room.client.set_command(command);
    }

    /// See [`crate::Client::outages`].
    pub fn outages(&self) -> Outages {
        Outages { outages: self.room.client.outages(), room: self.room.clone() }
    }

    /// See [`crate::Client::doctor`].
    ///
    /// # Errors
    /// Same as there.
    pub fn doctor(&self) -> Result<Vec<Finding>> {
        self.room.wait(self.room.client.doctor())
    }

    /// See [`crate::Client::lease_of`].
    pub fn lease_of(&self, ttl: Duration) -> Duration {
        self.room.client.lease_of(ttl)
    }

    /// Returns the engine's URL without secrets.
    pub fn place(&self) -> &str {
        self.room.client.place()
    }

    /// Returns what this engine promises.
    pub fn guarantees(&self) -> Guarantees {
        self.room.client.guarantees()
    }

    /// See [`crate::Client::close`].
    pub fn close(self) {
        self.room.wait(self.room.client.clone().close());
    }

    /// See [`crate::Client::shutdown`]. Holders learn of it through [`Guard::lost_within`].
    pub fn shutdown(self, grace: Duration) -> Vec<Key> {
        self.room.wait(self.room.client.clone().shutdown(grace))
    }

    fn lock(&self, lock: crate::Lock) -> Lock {
        Lock::new(lock, &self.room)
    }
}

/// The outages of a client, as they begin and end; see [`crate::Outages`].
#[derive(Debug)]
pub struct Outages {
    outages: crate::Outages,
    room: Arc<Room>,
}

impl Outages {
    /// The outage at this moment, if there is one.
    pub fn current(&self) -> Option<Outage> {
        self.outages.current()
    }

    /// Blocks until an outage begins, which it returns, or ends (`None`).
    pub fn changed(&mut self) -> Option<Outage> {
        self.room.wait(self.outages.changed())
    }
}
