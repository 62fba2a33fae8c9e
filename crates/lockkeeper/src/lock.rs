//! A lock before it is acquired: its kind, its settings, and the ways to acquire it.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::core::inner::Inner;
use crate::core::terms::Terms;
use crate::core::{Backoff, acquire};
use crate::engine::{Mode, Order, Support};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::key::Key;
use crate::owner::Owner;

/// The default of [`Lock::ttl`]: how long a lock lasts after its holder has died.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The shortest and the longest accepted lease.
const TTL_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(366 * 24 * 3600);

/// A lock that you can configure and then acquire, any number of times.
///
/// Created by [`Client::mutex`](crate::Client::mutex) and its siblings. Setters take and return
/// `self`; an invalid key or setting is reported when the lock is acquired.
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing before it is acquired"]
pub struct Lock {
    client: Client,
    /// An invalid key is reported when the lock is acquired, so that setters need no `?`.
    key: std::result::Result<Key, String>,
    mode: Mode,
    ttl: Duration,
    fixed: bool,
    fair: bool,
    spin: Option<Backoff>,
    margin: Option<Duration>,
    kept_when_lost: bool,
    owner: Option<Owner>,
    note: Option<Arc<str>>,
    hand_over: bool,
    keep: Option<Duration>,
    /// A number of permits that was set on a lock that is no semaphore.
    misplaced_permits: Option<u32>,
}

impl Lock {
    pub(crate) fn new(client: &Client, name: &str, mode: Mode) -> Self {
        Self {
            client: client.clone(),
            key: Key::new(name).map_err(|error| error.to_string()),
            mode,
            ttl: DEFAULT_TTL,
            fixed: false,
            fair: false,
            spin: None,
            margin: None,
            kept_when_lost: false,
            owner: None,
            note: None,
            hand_over: true,
            keep: None,
            misplaced_permits: None,
        }
    }

    /// Sets how long the lock lasts after its holder has died. Default 30 s; renewed every third of
    /// it while held.
    ///
    /// It does not limit how long the work may take: the watchdog renews the lease as long as the
    /// guard lives.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self.fixed = false;
        self
    }

    /// Sets a fixed lease: it is never renewed and ends by itself.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.ttl = lease;
        self.fixed = true;
        self
    }

    /// Sets how long before the lock can pass to another client [`Guard::lost`] resolves.
    ///
    /// Default: a third of the lease. For a fixed lease, whose end is known, only the tolerance for
    /// clock drift.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Leaves the release to the guard alone, even after the lease has run out by the clock.
    ///
    /// Some stores keep a lock as long as a session, a connection or this process lives. There, the
    /// client releases a lock whose lease has run out by the clock, so that a forgotten guard does
    /// not keep it forever. With this setting it does not: a holder that always releases, but may
    /// need longer than its lease to stop, keeps other clients out until it has. It has no effect
    /// where the store itself expires leases.
    pub fn keep_when_lost(mut self) -> Self {
        self.kept_when_lost = true;
        self
    }

    /// Grants the lock in first-come, first-served order, across processes too. Most engines always
    /// do; on Redis, this shares the order of Redisson's fair locks.
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self
    }

    /// Waits by polling with growing delays instead of being notified by the engine.
    pub fn spin(mut self, backoff: Backoff) -> Self {
        self.spin = Some(backoff);
        self
    }

    /// Makes the lock re-entrant for this owner.
    ///
    /// While a guard of the same owner is held through this client, acquiring again returns another
    /// guard of the same hold, with the same fence and terms and without a request to the engine.
    /// The lock is released when the last of these guards is dropped. A writer may re-enter as a
    /// reader. Permits of a semaphore are always counted.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Sets whether the lock may be handed over between tasks of this client without the store.
    /// Default: yes.
    ///
    /// When tasks of one client queue for an exclusive lock, it passes from one to the next without
    /// a request, each time with a fence of its own, for up to 10 ms; then the store decides, so
    /// that other clients get in. Only tasks that ask for it on the same terms take part. A
    /// [fair](Lock::fair) lock, a [fixed lease](Lock::lease) and a lock with an
    /// [owner](Lock::owner) are never handed over, nor is any lock on an engine
    /// [whose grants reserve no fences](crate::Guarantees::hand_over).
    pub fn hand_over(mut self, on: bool) -> Self {
        self.hand_over = on;
        self
    }

    /// Keeps the lock for up to `keep` after its release, as long as nobody else wants it: tasks of
    /// this client acquire it again without the store, each time with a fence of its own.
    ///
    /// When any other client asks for the lock, this client learns of it at once and releases a kept
    /// lock; one that is held is not kept any more when its guard is released. The time counts from
    /// the first release after the store granted the lock, so clients that wait without asking, such
    /// as those of other libraries, wait for at most `keep` longer.
    ///
    /// The price: if the process crashes, or ends without dropping its last handle, a kept lock
    /// stays until its lease has expired, although nobody held it. A single attempt of another
    /// client finds a kept lock busy, and makes it free for the next one.
    ///
    /// Only a mutex can be kept, and only on an engine that [can](crate::Guarantees::keep); a lock
    /// that is [fair](Lock::fair), has a [fixed lease](Lock::lease) or an [owner](Lock::owner) is
    /// refused. All tasks that share a kept lock ask for it on the same terms; one that does not
    /// asks the store. A grant that reserved no fences is not kept: the first of a key, and one that
    /// another client handed over.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Sets a note that says why the lock is held, shown by [`inspect`](Client::inspect).
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        self.note = Some(note.as_ref().into());
        self
    }

    /// Sets how many permits of a semaphore to acquire at once. Default 1. Refused for other kinds
    /// of lock.
    pub fn permits(mut self, take: u32) -> Self {
        match &mut self.mode {
            Mode::Permits { take: current, .. } => *current = take,
            _ => self.misplaced_permits = Some(take),
        }
        self
    }

    /// Waits until the lock is acquired.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the engine does not support this kind of lock; [`Error::Conflict`]
    /// if the key is in use as another kind; [`Error::Key`] for an invalid key; [`Error::Config`]
    /// for an invalid setting; [`Error::Engine`] if the engine keeps failing for more than a few
    /// seconds; [`Error::Shutdown`] if the client [is shut down](Client::shutdown).
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn acquire(self) -> Result<Guard> {
        match self.acquire_or_busy(false, None).await? {
            Some(guard) => Ok(guard),
            None => unreachable!("without a limit, an acquisition ends with a guard or an error"),
        }
    }

    /// Acquires the lock if it is free now. Returns `None` if it is busy.
    ///
    /// # Errors
    /// Same as [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        self.acquire_or_busy(true, None).await
    }

    /// Waits until the lock is acquired, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock was busy all the time; otherwise the same as
    /// [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn acquire_within(self, limit: Duration) -> Result<Guard> {
        let key = self.key()?;
        match self.acquire_or_busy(false, Some(limit)).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::Timeout { key, waited: limit }),
        }
    }

    /// Runs work while holding the lock, and cancels it if the lock is lost.
    ///
    /// On a loss, the work is dropped a margin before another client can acquire the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// # let client = lockkeeper::Client::connect("memory:").await?;
    /// let fence = client.mutex("orders/42").run(async |hold| hold.fence()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Work that can fail returns its own `Result`. The first `?` is for the lock, the second for
    /// the work:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = lockkeeper::Client::connect("memory:").await?;
    /// # async fn read() -> std::io::Result<String> { Ok("7".to_owned()) }
    /// let count = client
    ///     .mutex("orders/42")
    ///     .run(async |_| {
    ///         let text = read().await?;
    ///         std::io::Result::Ok(text.len())
    ///     })
    ///     .await??;
    /// assert_eq!(count, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Keep a result that must not get lost outside the work. It is set whenever the work has
    /// finished, even if the lock was lost before the end and `run` returns [`Error::Late`]:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// # let client = lockkeeper::Client::connect("memory:").await?;
    /// # async fn charge() -> u32 { 17 }
    /// let mut receipt = None;
    /// let ran = client.mutex("orders/42").run(async |_| receipt = Some(charge().await)).await;
    /// println!("{ran:?}, receipt {receipt:?}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost and the work was dropped; [`Error::Late`] if the work
    /// finished, but the lock was lost before its end, for instance because it blocked its thread;
    /// otherwise the same as [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        run_with(self.acquire().await?, work).await
    }

    /// Like [`run`](Lock::run) if the lock is free now. Returns `None`, without running the work,
    /// if it is busy.
    ///
    /// # Errors
    /// Same as [`run`](Lock::run).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn try_run<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        match self.try_acquire().await? {
            Some(guard) => run_with(guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Like [`run`](Lock::run), but waits for the lock for at most `limit`. The work itself has no
    /// limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock was busy all the time; otherwise the same as
    /// [`run`](Lock::run).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run_within<T>(
        self,
        limit: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<T> {
        run_with(self.acquire_within(limit).await?, work).await
    }

    pub(crate) fn key(&self) -> Result<Key> {
        self.key.clone().map_err(Error::Key)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        self.client.inner()
    }

    async fn acquire_or_busy(&self, once: bool, limit: Option<Duration>) -> Result<Option<Guard>> {
        // Counted before the check for a shutdown: a shutdown waits for every acquire that did not
        // see it, and so for its guard.
        let _under_way = self.inner().guard();
        let terms = self.terms()?;
        acquire::acquire(self.inner(), &terms, once, limit).await
    }

    /// Checks all settings, and refuses before any I/O what the engine does not support.
    fn terms(&self) -> Result<Terms> {
        let key = self.key()?;
        let inner = self.inner();
        inner.check_process()?;
        if inner.is_stopping() {
            return Err(Error::Shutdown);
        }
        let guarantees = &inner.guarantees;
        let refuse = |what: String| Error::Unsupported { engine: guarantees.engine, what };
        let support = match self.mode {
            Mode::Mutex => Support::Yes,
            Mode::Read | Mode::Write => guarantees.read_write,
            Mode::Permits { .. } => guarantees.semaphore,
        };
        if let Support::No(reason) = support {
            return Err(refuse(format!("a {} lock ({reason})", self.mode.kind())));
        }
        if let (true, Order::Chance(reason)) = (self.fair, guarantees.order) {
            return Err(refuse(format!("a fair lock ({reason})")));
        }
        if let Some(take) = self.misplaced_permits {
            return Err(Error::Config(format!(
                "a {} lock has no permits ({take} requested); only a semaphore has",
                self.mode.kind()
            )));
        }
        if self.fair && self.spin.is_some() {
            return Err(Error::Config(
                "a lock cannot be fair and spin: a spinning waiter is in no queue; choose one"
                    .to_owned(),
            ));
        }
        self.check_keep()?;
        if let Mode::Permits { take, limit } = self.mode
            && (take == 0 || take > limit)
        {
            return Err(Error::Config(format!(
                "cannot take {take} of {limit} permits; take at least one and at most as many as there are"
            )));
        }
        if let Mode::Permits { take, .. } = self.mode
            && take > guarantees.most_permits
        {
            let most = guarantees.most_permits;
            return Err(refuse(format!("{take} permits at once; one claim takes at most {most}")));
        }
        if !TTL_RANGE.contains(&self.ttl) {
            return Err(Error::Config(format!(
                "a lease of {:?} is not possible; it is between {:?} and 366 days",
                self.ttl,
                TTL_RANGE.start()
            )));
        }
        let lease = if self.fixed { self.ttl } else { self.inner().engine.lease_of(self.ttl) };
        if self.margin.is_some_and(|margin| margin >= lease) {
            return Err(Error::Config(format!(
                "a margin of {:?} leaves nothing of a lease of {lease:?}; it must be shorter",
                self.margin.unwrap_or_default(),
            )));
        }
        Ok(Terms {
            key,
            mode: self.mode,
            ttl: self.ttl,
            fixed: self.fixed,
            fair: self.fair,
            spin: self.spin,
            margin: self.margin,
            kept_when_lost: self.kept_when_lost,
            owner: self.owner.clone(),
            note: self.note.clone(),
            // A fair lock goes to whoever came first, and the length of a fixed lease counts from
            // its grant. The store knows the owner, and would let it enter again from elsewhere.
            hand_over: self.hand_over
                && self.mode.is_exclusive()
                && !self.fair
                && !self.fixed
                && self.owner.is_none()
                && guarantees.hand_over == Support::Yes,
            keep: self.keep,
        })
    }

    /// Refuses to keep what cannot be kept.
    fn check_keep(&self) -> Result<()> {
        let Some(keep) = self.keep else { return Ok(()) };
        let guarantees = &self.inner().guarantees;
        if let Support::No(reason) = guarantees.keep {
            let what = format!("keep a released lock ({reason})");
            return Err(Error::Unsupported { engine: guarantees.engine, what });
        }
        let other = match self.mode {
            Mode::Mutex if self.fair => Some("a fair lock, which goes to whoever came first"),
            Mode::Mutex if self.fixed => Some("a fixed lease, which counts from its grant"),
            Mode::Mutex if self.owner.is_some() => {
                Some("a lock with an owner, which may enter it from elsewhere")
            }
            Mode::Mutex => None,
            _ => Some("a lock that is no mutex"),
        };
        if let Some(other) = other {
            return Err(Error::Config(format!(
                "cannot keep {other}; only a mutex that is not fair and has a ttl and no owner is kept"
            )));
        }
        if keep.is_zero() {
            return Err(Error::Config(
                "a lock cannot be kept for no time; keep takes a time, or leave it out".to_owned(),
            ));
        }
        Ok(())
    }
}

/// Runs work under a lock that is held, and releases it.
async fn run_with<T>(guard: Guard, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
    let done = tokio::select! {
        // Polled first, so that work that never yields cannot hide a loss at its end.
        biased;
        reason = guard.lost() => return Err(Error::Lost { key: guard.key().clone(), reason }),
        done = work(&guard) => done,
    };
    if guard.loss().is_some() {
        return Err(Error::Late { key: guard.key().clone(), reason: guard.lost().await });
    }
    // The work is done; an unconfirmed release continues in the background.
    let _ = guard.release().await;
    Ok(done)
}
