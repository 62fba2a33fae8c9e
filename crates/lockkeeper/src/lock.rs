//! A lock that is asked for: what kind, on which terms, and the ways to get it.

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

/// How long a lock lasts after its holder died, unless set: the lease that the watchdog renews.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The shortest and the longest lease that make sense.
const TTL_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(366 * 24 * 3600);

/// A lock that can be acquired, any number of times.
///
/// Made by [`Client::mutex`](crate::Client::mutex) and its siblings. Setters take and return it;
/// what is wrong with a key or a setting is said when it is acquired.
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing before it is acquired"]
pub struct Lock {
    client: Client,
    /// What is wrong with a key is said when it is used, so that setters need no `?`.
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
    /// A number of permits that was set for a lock without any.
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
            misplaced_permits: None,
        }
    }

    /// How long the lock lasts after its holder died. Default 30 s; renewed every third while held.
    ///
    /// It is not how long the work may take: the watchdog renews it for as long as the guard lives.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self.fixed = false;
        self
    }

    /// A fixed lease: no watchdog, it ends by itself.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.ttl = lease;
        self.fixed = true;
        self
    }

    /// How long before the lock may pass on [`Guard::lost`] fires.
    ///
    /// Default: a third of the lease; for a fixed lease, whose end is known, the clocks' tolerance alone.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Leaves it to the guard alone to give the lock back, also after it was lost to the clock.
    ///
    /// Where the store keeps a lock for as long as a session, a connection or this process lives, the
    /// client gives back what ran out by the clock, so that a guard that somebody forgot does not keep
    /// the lock for ever. A holder that always lets go, but may need longer than its lease to stop,
    /// keeps the others out until then. Nothing changes where the store itself ends a lease.
    pub fn keep_when_lost(mut self) -> Self {
        self.kept_when_lost = true;
        self
    }

    /// First come, first served, also between processes. Some engines always do so.
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self
    }

    /// Waits by asking again after growing delays instead of being woken by the engine.
    pub fn spin(mut self, backoff: Backoff) -> Self {
        self.spin = Some(backoff);
        self
    }

    /// Makes the lock re-entrant for this owner.
    ///
    /// While a guard of the same owner is held through this client, acquiring again gives another
    /// guard of the same hold, with the same fence and terms, at no cost; the last one dropped gives
    /// the lock back. A writer may enter again as a reader. Permits of a semaphore always count.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Why the lock is held, for people who look.
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        self.note = Some(note.as_ref().into());
        self
    }

    /// How many permits of a semaphore to take at once. Default 1. Other kinds refuse it.
    pub fn permits(mut self, take: u32) -> Self {
        match &mut self.mode {
            Mode::Permits { take: current, .. } => *current = take,
            _ => self.misplaced_permits = Some(take),
        }
        self
    }

    /// Waits until the lock is ours.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the engine does not do this kind; [`Error::Conflict`] if the key is
    /// in use as another kind; [`Error::Key`] for a bad key; [`Error::Config`] for a bad setting;
    /// [`Error::Engine`] if the engine fails for longer than a few seconds; [`Error::Shutdown`] if the
    /// client [is shut down](Client::shutdown).
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn acquire(self) -> Result<Guard> {
        match self.acquire_or_busy(false, None).await? {
            Some(guard) => Ok(guard),
            None => unreachable!("without a limit, an acquisition ends with a guard or an error"),
        }
    }

    /// Takes the lock if it is free now. `None` means busy.
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        self.acquire_or_busy(true, None).await
    }

    /// Waits until the lock is ours, at most so long.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it was busy all the time; otherwise as [`acquire`](Lock::acquire).
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

    /// Does work while holding the lock, and cancels it when the lock is lost.
    ///
    /// The work is dropped a margin before anyone else can be let in.
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
    /// Work that can fail returns a `Result` of its own. The first `?` is for the lock, the second for
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
    /// A result that must not get lost is kept outside the work. It is there whenever the work ended, also
    /// if the lock was lost before the end and `run` says [`Error::Late`]:
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
    /// [`Error::Lost`] when the lock was lost and the work dropped; [`Error::Late`] when the work ended, but
    /// the lock was lost before its end, for instance while it blocked its thread; otherwise as
    /// [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// Dropping it drops the work and gives the lock back.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        run_with(self.acquire().await?, work).await
    }

    /// As [`run`](Lock::run) if the lock is free now. `None` means that it was busy and nothing was done.
    ///
    /// # Errors
    /// As [`run`](Lock::run).
    ///
    /// # Cancel safety
    /// Dropping it drops the work and gives the lock back.
    pub async fn try_run<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        match self.try_acquire().await? {
            Some(guard) => run_with(guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`run`](Lock::run), but waits for the lock for `limit` at most. The work itself has no limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it was busy all the time; otherwise as [`run`](Lock::run).
    ///
    /// # Cancel safety
    /// Dropping it drops the work and gives the lock back.
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

    async fn acquire_or_busy(self, once: bool, limit: Option<Duration>) -> Result<Option<Guard>> {
        // Before it is asked whether the client is shutting down: whoever shuts it down waits for an acquire
        // that did not see it, and so for its guard.
        let _under_way = self.inner().guard();
        let terms = self.terms()?;
        acquire::acquire(self.inner(), &terms, once, limit).await
    }

    /// Checks everything, and refuses what the engine does not do before any I/O.
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
                "a {} lock has no permits to take {take} of; only a semaphore has",
                self.mode.kind()
            )));
        }
        if self.fair && self.spin.is_some() {
            return Err(Error::Config(
                "a lock cannot be fair and spin: a spinning waiter is in no queue; choose one"
                    .to_owned(),
            ));
        }
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
        })
    }
}

/// Does work under a lock that is held, and gives it back.
async fn run_with<T>(guard: Guard, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
    let done = tokio::select! {
        // Looked at first, so that work that never yields cannot hide a loss at its end.
        biased;
        reason = guard.lost() => return Err(Error::Lost { key: guard.key().clone(), reason }),
        done = work(&guard) => done,
    };
    if let Some(reason) = guard.loss() {
        return Err(Error::Late { key: guard.key().clone(), reason });
    }
    // The work is done; how the release goes on is for the background.
    let _ = guard.release().await;
    Ok(done)
}
<<<<<<< HEAD
=======

/// A lock's terms, checked.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) fixed: bool,
    pub(crate) spin: Option<Backoff>,
    pub(crate) owner: Option<Owner>,
    pub(crate) kept_when_lost: bool,
    fair: bool,
    margin: Option<Duration>,
    note: Option<Arc<str>>,
}

impl Terms {
    /// How long after the request left the holder of such a lease is told to stop.
    pub(crate) fn signal_after(&self, ttl: Duration) -> Duration {
        usable(ttl).min(ttl.saturating_sub(self.margin(ttl)))
    }

    /// The notice that the holder of such a lease gets.
    pub(crate) fn margin(&self, ttl: Duration) -> Duration {
        match self.margin {
            // A session or a connection keeps it alive until its end, and is renewed meanwhile.
            _ if self.fixed && ttl < self.ttl => ttl / 3,
            Some(margin) => margin,
            // The end of a fixed lease is known from the start: nobody needs an early warning of it.
            None if self.fixed => Duration::ZERO,
            None => ttl / 3,
        }
    }

    pub(crate) fn request(&self, token: Token, queue: bool, who: Arc<str>) -> Request {
        Request {
            key: self.key.clone(),
            token,
            owner: self.owner.clone(),
            mode: self.mode,
            ttl: self.ttl,
            fixed: self.fixed,
            fair: self.fair,
            queue: queue && self.spin.is_none(),
            who,
            note: self.note.clone(),
        }
    }
}

/// Waits for the turn to ask in this process, then asks the engine.
async fn acquire_in_turn(inner: &Arc<Inner>, terms: &Terms, once: bool) -> Result<Option<Guard>> {
    let ticket = loop {
        match inner.local.enter(inner, &terms.key, terms.mode, terms.owner.as_ref(), once) {
            Enter::Gate(ticket) => break ticket,
            Enter::Wait(ticket, woken) => match woken.await {
                Ok(Wake::Gate) => break ticket,
                Ok(Wake::Again(guard)) => return Ok(Some(guard)),
                Err(_) => unreachable!("a ticket is kept as long as its owner waits"),
            },
            Enter::Again(guard) => return Ok(Some(guard)),
            Enter::Leaving(hold) => release::begin_release(&hold).await,
            Enter::Busy => return Ok(None),
            Enter::Upgrade => {
                return Err(Error::Unsupported {
                    engine: inner.engine_name(),
                    what: format!(
                        "turn the read lock {:?} into a write lock: two owners who both try would wait \
                         for each other for ever; release it first, or take the write lock from the start",
                        terms.key
                    ),
                });
            }
        }
    };
    acquire::acquire(inner, terms, ticket, once).await
}

/// Reports how an acquire went, also when it is dropped before its end.
struct Watch<'a> {
    inner: &'a Inner,
    mode: Mode,
    started: Instant,
    outcome: Outcome,
}

impl<'a> Watch<'a> {
    fn new(inner: &'a Inner, mode: Mode) -> Self {
        inner.meters.waiting(mode);
        Self { inner, mode, started: Instant::now(), outcome: Outcome::Cancelled }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.inner.meters.acquire(self.mode, self.outcome, self.started.elapsed());
    }
}
>>>>>>> eyes
