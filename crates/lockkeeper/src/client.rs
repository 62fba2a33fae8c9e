//! The client: one engine, and everything its locks share.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::core::acquire::CALL_LIMIT;
use crate::core::inner::Inner;
use crate::core::outage::Outages;
use crate::core::release::BackgroundWork;
use crate::election::Election;
use crate::engine::{
    Break, Breaker, Engine, Entry, Finding, Guarantees, Mode, Query, Snapshot, YieldRequest,
};
use crate::engines;
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Loss, Result};
use crate::key::Key;
use crate::lock::Lock;

/// A connection to one engine, from which you create locks. Cheap to clone; clones share
/// everything.
///
/// When the last handle of a client (a client, lock or guard) is dropped, the drop waits up to two
/// seconds for pending releases, so that a program that ends does not leave its locks to expire.
/// This needs a runtime thread that can make progress meanwhile: a current-thread runtime has none,
/// and a runtime with one worker has none while that worker drops the handle. There, and if the
/// client is in a `static`, which is never dropped, end with
/// [`Guard::release`](crate::Guard::release) or [`close`](Client::close).
///
/// A client does not survive `fork`: the child process must connect its own. In the child, calls on
/// the inherited client fail and inherited guards do nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::connect("memory:").await?;
/// let guard = client.mutex("orders/42").acquire().await?;
/// println!("fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self::of(&self.inner)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.inner.remove_handle();
    }
}

impl Client {
    /// Connects to the engine that a URL names: `file:`, `file:///dir`, `redis://host`,
    /// `postgres://host/db`, …
    ///
    /// Every engine but `memory:` and `file:` needs its cargo feature.
    ///
    /// # Errors
    /// [`Error::Url`] for an unknown URL scheme or option; the message lists the accepted ones.
    /// [`Error::Engine`] if the engine cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the engine.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        let endpoint = Endpoint::parse(url.as_ref())?;
        let place = endpoint.to_string();
        let runtime = Handle::try_current().map_err(|_| {
            Error::Config(
                "a client needs a tokio runtime; without one, use lockkeeper::blocking".to_owned(),
            )
        })?;
        let engine = engines::open(endpoint).await?;
        Ok(Self::start(engine, place, runtime))
    }

    /// Creates a client for an engine of your own, or for one that you configured in code.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(engine: impl Engine) -> Self {
        Self::shared(Arc::new(engine))
    }

    /// Like [`new`](Client::new), for an engine that is shared with other clients.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn shared(engine: Arc<dyn Engine>) -> Self {
        let place = format!("{}:", engine.guarantees().engine);
        Self::start(engine, place, Handle::current())
    }

    fn start(engine: Arc<dyn Engine>, place: String, runtime: Handle) -> Self {
        Self::of(&Inner::start(engine, place, runtime))
    }

    /// Another handle of the same client.
    pub(crate) fn of(inner: &Arc<Inner>) -> Self {
        inner.add_handle();
        Self { inner: inner.clone() }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// A lock with one holder at a time.
    pub fn mutex(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(self, key.as_ref(), Mode::Mutex)
    }

    /// The shared side of a read-write lock: any number of readers, but never together with a
    /// writer.
    ///
    /// A waiting writer blocks readers that arrive after it.
    pub fn read(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(self, key.as_ref(), Mode::Read)
    }

    /// The exclusive side of a read-write lock.
    pub fn write(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(self, key.as_ref(), Mode::Write)
    }

    /// One of `limit` permits. All clients must use the same limit; a different one is refused.
    pub fn semaphore(&self, key: impl AsRef<str>, limit: u32) -> Lock {
        Lock::new(self, key.as_ref(), Mode::Permits { take: 1, limit })
    }

    /// A leader election: a mutex that the leader keeps as long as it can.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.clone(), name.as_ref())
    }

    /// Returns the holders and waiters of a lock, or `None` if it has neither.
    ///
    /// # Errors
    /// [`Error::Key`] for an invalid key, [`Error::Engine`] if the engine cannot be queried.
    ///
    /// # Cancel safety
    /// Read-only, so it may be dropped at any time.
    pub async fn inspect(&self, key: impl AsRef<str>) -> Result<Option<Snapshot>> {
        let query = Query::Key(Key::new(key)?);
        Ok(self.inner.engine.inspect(&query).await?.into_iter().next())
    }

    /// Returns all locks in use whose key starts with `prefix`, ordered by key; an empty prefix
    /// means all.
    ///
    /// # Errors
    /// [`Error::Engine`] if the engine cannot be queried.
    ///
    /// # Cancel safety
    /// Read-only, so it may be dropped at any time.
    pub async fn list(&self, prefix: impl Into<String>) -> Result<Vec<Snapshot>> {
        self.inner.engine.inspect(&Query::Prefix(prefix.into())).await
    }

    /// Takes a lock away from its holders and returns them. For operators.
    ///
    /// The holder may still be working: its guard detects the loss at its next renewal. The next
    /// grant has a higher fence, so a resource that checks fences rejects the old holder.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if only the holder can end a hold on this engine.
    ///
    /// # Cancel safety
    /// If it is dropped, the lock may or may not have been broken.
    pub async fn break_lock(&self, key: impl AsRef<str>) -> Result<Vec<Entry>> {
        self.break_for(key.as_ref(), None).await
    }

    /// Like [`break_lock`](Client::break_lock), with a reason.
    ///
    /// The engine records who broke the lock, when and why. [`broken`](Client::broken) lists it, and
    /// the former holder is told: [`Loss::Broken`]. The reason is reduced to one line of at most 200
    /// characters, with passwords and tokens masked where they can be recognised.
    ///
    /// # Errors
    /// As for `break_lock`. A break that the engine cannot record, for lack of a permission for
    /// instance, is carried out nevertheless, and logged as a warning.
    ///
    /// # Cancel safety
    /// If it is dropped, the lock may or may not have been broken.
    pub async fn break_lock_because(
        &self,
        key: impl AsRef<str>,
        why: impl AsRef<str>,
    ) -> Result<Vec<Entry>> {
        self.break_for(key.as_ref(), Some(why.as_ref())).await
    }

    async fn break_for(&self, key: &str, why: Option<&str>) -> Result<Vec<Entry>> {
        let key = Key::new(key)?;
        let by = Breaker::new(self.inner.who(), why);
        tracing::warn!(%key, why = by.why, "breaking a lock");
        self.inner.engine.break_lock(&key, &by).await
    }

    /// Returns the last locks that were broken and whose key starts with `prefix`, the last one
    /// first.
    ///
    /// An engine keeps the last 50 breaks of all its locks, and lists them for seven days.
    ///
    /// # Errors
    /// [`Error::Engine`] if the engine cannot be queried.
    ///
    /// # Cancel safety
    /// Read-only, so it may be dropped at any time.
    pub async fn broken(&self, prefix: impl AsRef<str>) -> Result<Vec<Break>> {
        let mut breaks = self.inner.engine.broken().await?;
        breaks.retain(|one| one.key.as_str().starts_with(prefix.as_ref()));
        Ok(breaks)
    }

    /// Asks the holders of a lock to release it, and returns those that were asked.
    ///
    /// Holders that wait for [`Guard::yield_requested`](crate::Guard::yield_requested) can then
    /// release the lock. Nothing is taken away from holders that do not.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the engine cannot deliver the request.
    ///
    /// # Cancel safety
    /// If it is dropped, some holders may have been asked.
    pub async fn request_yield(&self, key: impl AsRef<str>) -> Result<Vec<Entry>> {
        self.ask_for(key.as_ref(), None).await
    }

    /// Like [`request_yield`](Client::request_yield), with a reason, which the holders receive.
    ///
    /// The reason is reduced to one line of at most 200 characters, with passwords and tokens masked
    /// where they can be recognised.
    ///
    /// # Errors
    /// As for `request_yield`.
    ///
    /// # Cancel safety
    /// If it is dropped, some holders may have been asked.
    pub async fn request_yield_because(
        &self,
        key: impl AsRef<str>,
        why: impl AsRef<str>,
    ) -> Result<Vec<Entry>> {
        self.ask_for(key.as_ref(), Some(why.as_ref())).await
    }

    async fn ask_for(&self, key: &str, why: Option<&str>) -> Result<Vec<Entry>> {
        let asked = YieldRequest::new(&self.inner.who(), why);
        self.inner.engine.request_yield(&Key::new(key)?, &asked).await
    }

    /// The times during which the engine does not answer, as they begin and end, for logs and for
    /// people: whether a lock is still held is what [`Guard::check`](crate::Guard::check) says.
    ///
    /// An outage begins when two requests about locks of this client fail in a row, and ends with the
    /// next answer. Most engines notice a broken connection while a lock is waited for, or while
    /// [`Guard::yield_requested`](crate::Guard::yield_requested) is awaited; then the client asks at
    /// once. Otherwise it asks when the next renewal is due. Where some servers of several answer,
    /// outages of the others may be short.
    pub fn outages(&self) -> Outages {
        self.inner.reachability.outages()
    }

    /// Checks the deployment for problems: permissions, persistence, clocks, settings.
    ///
    /// # Errors
    /// [`Error::Engine`] if the engine cannot be reached at all.
    pub async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner.engine.doctor().await
    }

    /// Sets the command line that is recorded with the locks of this client and its clones, shown
    /// by [`inspect`](Client::inspect) as [`Entry::command`]. `None` records nothing.
    ///
    /// The default is the command line of this process. Its first 80 characters are recorded, with
    /// passwords and tokens masked where they can be recognised. Set it if it may contain other
    /// secrets: anyone who can read the store can read it.
    pub fn set_command(&self, command: Option<&str>) {
        self.inner.set_command(command);
    }

    /// Returns how long a lock requested with this `ttl` will last without renewal, as far as that
    /// is known before the grant. For a lock that is held, use
    /// [`Guard::lease`](crate::Guard::lease).
    ///
    /// It is less than `ttl` on an engine that binds locks to sessions if the servers allow only
    /// shorter sessions.
    pub fn lease_of(&self, ttl: Duration) -> Duration {
        self.inner.engine.lease_of(ttl)
    }

    /// Returns what this engine promises.
    pub fn guarantees(&self) -> Guarantees {
        self.inner.guarantees
    }

    /// Returns the engine's URL without secrets.
    pub fn place(&self) -> &str {
        &self.inner.place
    }

    /// Waits until every pending release is confirmed or abandoned, then closes the engine.
    ///
    /// Locks that are still held stay held, and are released when their guards are dropped. The
    /// wait ends after ten seconds if the engine does not answer.
    pub async fn close(self) {
        self.inner.keep_no_more();
        self.flush().await;
        self.inner.engine.close().await;
    }

    /// Shuts down this client and all its clones, and releases every lock. For a service that is
    /// about to exit.
    ///
    /// From now on, all acquires fail with [`Error::Shutdown`], including those that are waiting.
    /// [`Guard::lost`](crate::Guard::lost) resolves with [`Loss::Shutdown`], so that `run` and
    /// `lead` drop their work. Locks stay held and renewed until their holders release them, for at
    /// most `grace`. After that, [`Guard::check`](crate::Guard::check) fails too, and the remaining
    /// locks are released although their guards still exist. Finally the engine is closed, as by
    /// [`close`](Client::close).
    ///
    /// Returns the keys that were still held at the end of `grace`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// use std::time::Duration;
    /// use lockkeeper::{Client, Error, Loss};
    ///
    /// let client = Client::connect("memory:").await?;
    /// let lock = client.mutex("worker");
    /// let worker = tokio::spawn(lock.run(async |_| std::future::pending::<()>().await));
    /// # tokio::task::yield_now().await;
    ///
    /// // On SIGTERM:
    /// let late = client.shutdown(Duration::from_secs(10)).await;
    /// assert!(late.is_empty());
    /// let ended = worker.await.expect("it does not panic");
    /// assert!(matches!(ended, Err(Error::Lost { reason: Loss::Shutdown, .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If it is dropped, acquires keep failing, and locks are released when their guards are
    /// dropped. Call it again on a clone to resume.
    pub async fn shutdown(self, grace: Duration) -> Vec<Key> {
        let inner = &self.inner;
        inner.stop();
        let let_go = tokio::time::timeout(grace, inner.guards.none_left()).await;
        let late = if let_go.is_err() { inner.local.holds() } else { Vec::new() };
        for hold in &late {
            hold.end(Loss::Shutdown);
            inner.in_background(BackgroundWork::Release(hold.clone()));
        }
        let keys = late.into_iter().map(|hold| hold.key().clone()).collect();
        self.close().await;
        keys
    }

    /// Waits for pending releases.
    pub(crate) async fn flush(&self) {
        let flushed = self.inner.pending.none_left();
        if tokio::time::timeout(CALL_LIMIT, flushed).await.is_err() {
            tracing::warn!("some releases were not confirmed in time; their leases will expire");
        }
    }
}
