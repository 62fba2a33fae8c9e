//! The client: one engine, and everything that its locks share.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::core::acquire::CALL_LIMIT;
use crate::core::inner::Inner;
use crate::core::release::BackgroundWork;
use crate::election::Election;
use crate::engine::{Engine, Entry, Finding, Guarantees, Mode, Query, Snapshot};
use crate::engines;
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Loss, Result};
use crate::key::Key;
use crate::lock::Lock;

/// A connection to one engine. Cheap to clone; clones share everything.
///
/// The last of a client's handles to be dropped, whether client, lock or guard, waits up to two
/// seconds for the releases that were begun, so that a program which ends does not leave its locks
/// to their leases. On a current-thread runtime nobody could carry them out meanwhile, and on a
/// runtime with one worker nobody but that worker: end with [`Guard::release`](crate::Guard::release)
/// or [`close`](Client::close) there, and where a client is in a `static`, which is never dropped.
///
/// A client does not survive `fork`: a forked process makes one of its own. The inherited one is
/// refused there, and inherited guards do nothing.
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
    /// Opens the engine that a URL names: `file:`, `file:///dir`, `redis://host`, `postgres://host/db`, …
    ///
    /// Every engine but `memory:` and `file:` needs its cargo feature.
    ///
    /// # Errors
    /// [`Error::Url`] for a URL or option that is not understood, which names what is;
    /// [`Error::Engine`] when the engine cannot be reached.
    ///
    /// # Cancel safety
    /// Nothing happened if it is dropped.
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

    /// A client of an engine of your own, or of one that you hold the knobs of.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(engine: impl Engine) -> Self {
        Self::shared(Arc::new(engine))
    }

    /// As [`new`](Client::new), for an engine that others share.
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

    /// One more handle.
    pub(crate) fn of(inner: &Arc<Inner>) -> Self {
        inner.add_handle();
        Self { inner: inner.clone() }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// A lock that one holds alone.
    pub fn mutex(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(self, key.as_ref(), Mode::Mutex)
    }

    /// The shared side of a read-write lock: readers together, and never beside a writer.
    ///
    /// A waiting writer goes before readers that come after it.
    pub fn read(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(self, key.as_ref(), Mode::Read)
    }

    /// The exclusive side of a read-write lock.
    pub fn write(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(self, key.as_ref(), Mode::Write)
    }

    /// One of `limit` permits. Everyone must name the same limit: another one is refused.
    pub fn semaphore(&self, key: impl AsRef<str>, limit: u32) -> Lock {
        Lock::new(self, key.as_ref(), Mode::Permits { take: 1, limit })
    }

    /// Leadership: a mutex that one keeps for as long as one can.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.clone(), name.as_ref())
    }

    /// Who holds a lock and who waits for it; `None` when nobody does.
    ///
    /// # Errors
    /// [`Error::Key`] for a bad key, [`Error::Engine`] when the engine cannot tell.
    ///
    /// # Cancel safety
    /// Changes nothing, dropped or not.
    pub async fn inspect(&self, key: impl AsRef<str>) -> Result<Option<Snapshot>> {
        let query = Query::Key(Key::new(key)?);
        Ok(self.inner.engine.inspect(&query).await?.into_iter().next())
    }

    /// All locks in use whose key starts with `prefix`, in order; the empty prefix means all.
    ///
    /// # Errors
    /// [`Error::Engine`] when the engine cannot tell.
    ///
    /// # Cancel safety
    /// Changes nothing, dropped or not.
    pub async fn list(&self, prefix: impl Into<String>) -> Result<Vec<Snapshot>> {
        self.inner.engine.inspect(&Query::Prefix(prefix.into())).await
    }

    /// Takes a lock away from whoever holds it, and says who that was. For operators.
    ///
    /// The holder may still be at work: its guard learns of the loss at its next renewal, and the
    /// next grant has a higher fence, by which the resource can refuse it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where nobody but the holder can end a hold.
    ///
    /// # Cancel safety
    /// If it is dropped, the lock may be broken or not.
    pub async fn break_lock(&self, key: impl AsRef<str>) -> Result<Vec<Entry>> {
        let key = Key::new(key)?;
        tracing::warn!(%key, "breaking a lock");
        self.inner.engine.break_lock(&key).await
    }

    /// Asks whoever holds a lock to give way, and says who was asked.
    ///
    /// Holders that listen ([`Guard::yield_requested`](crate::Guard::yield_requested)) may then release it;
    /// nothing is taken away from those that do not.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the engine cannot carry the question.
    ///
    /// # Cancel safety
    /// If it is dropped, some holders may have been asked.
    pub async fn request_yield(&self, key: impl AsRef<str>) -> Result<Vec<Entry>> {
        self.inner.engine.request_yield(&Key::new(key)?).await
    }

    /// Looks at the deployment for what would hurt.
    ///
    /// # Errors
    /// [`Error::Engine`] when the engine cannot be asked at all.
    pub async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner.engine.doctor().await
    }

    /// Sets what the locks of this client and of its clones are recorded with as the command that takes
    /// them, for people who look: [`Entry::command`]. `None` records nothing.
    ///
    /// By default it is the command line of this process. Its first 80 characters are recorded, without
    /// the passwords of URLs; set it if it may have other secrets in it. Everybody who can read the store
    /// can read it.
    pub fn set_command(&self, command: Option<&str>) {
        self.inner.set_command(command);
    }

    /// How long a lock that is asked for with this `ttl` really lasts without a renewal, as far as is known
    /// before it is granted; [`Guard::lease`](crate::Guard::lease) says it of a lock that is held.
    ///
    /// It is less than `ttl` where a session keeps the locks, and the servers keep it for a shorter time.
    pub fn lease_of(&self, ttl: Duration) -> Duration {
        self.inner.engine.lease_of(ttl)
    }

    /// What this engine promises.
    pub fn guarantees(&self) -> Guarantees {
        self.inner.guarantees
    }

    /// The URL without secrets.
    pub fn place(&self) -> &str {
        &self.inner.place
    }

    /// Waits until every release that was begun is confirmed or given up, then closes the engine.
    ///
    /// Guards that are still held stay held, and are released when they are dropped.
    /// An engine that does not answer is waited for ten seconds.
    pub async fn close(self) {
        self.flush().await;
        self.inner.engine.close().await;
    }

    /// Ends the use of this client and of all its clones, and leaves nothing behind. For a service that is
    /// told to end.
    ///
    /// Acquires fail from now on, also those that wait, with [`Error::Shutdown`]. Holders are told by
    /// [`Guard::lost`](crate::Guard::lost), with [`Loss::Shutdown`], so that `run` and `lead` drop their
    /// work. Until they let go, their locks stay theirs and are renewed, for `grace` at most: then
    /// [`Guard::check`](crate::Guard::check) fails too, and the locks are released under them.
    /// Finally the engine is closed, as by [`close`](Client::close).
    ///
    /// Returns the keys whose holders did not let go in time.
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
    /// // When SIGTERM comes:
    /// let late = client.shutdown(Duration::from_secs(10)).await;
    /// assert!(late.is_empty());
    /// let ended = worker.await.expect("it does not panic");
    /// assert!(matches!(ended, Err(Error::Lost { reason: Loss::Shutdown, .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If it is dropped, acquires go on to be refused, and guards are released when they are dropped.
    /// Call it again on a clone to go on.
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

    /// Waits for the releases that were begun.
    pub(crate) async fn flush(&self) {
        let flushed = self.inner.pending.none_left();
        if tokio::time::timeout(CALL_LIMIT, flushed).await.is_err() {
            tracing::warn!("some releases were not confirmed in time; leases end by themselves");
        }
    }
}
