//! Several locks at once, of any kind and on any engine: all or nothing, without deadlock.
//!
//! All locks are acquired in one global order, whatever order you list them in. That alone is not
//! enough, because other programs may acquire the same locks in another order. So no acquire waits
//! for long while it holds something: if a lock stays busy, we release the locks we hold, keep our
//! place in its queue, and acquire the others again afterwards. Leaving the queue instead would put
//! us at its end each time, and we might starve.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::core::Backoff;
use crate::error::{Error, Loss, Result};
use crate::guard::{Guard, Release};
use crate::key::Key;
use crate::lock::Lock;

/// The longest wait for one lock while others are held. The actual wait is a random time between
/// half of this and all of it, so that of two clients that wait for each other, one gives up first.
const PATIENCE: Duration = Duration::from_millis(500);

/// Several locks that are acquired together or not at all.
#[derive(Debug, Clone)]
#[must_use = "locks do nothing before they are acquired"]
pub struct Multi {
    locks: Vec<Lock>,
}

impl Multi {
    /// Combines locks of any kind, of any clients.
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> Self {
        let mut locks: Vec<Lock> = locks.into_iter().collect();
        // Locks with an invalid key sort first; they are refused later.
        locks.sort_by_cached_key(place_of);
        Self { locks }
    }

    /// Waits until all locks are acquired.
    ///
    /// # Errors
    /// Same as [`Lock::acquire`], for the first lock that fails; none is held then.
    /// [`Error::Config`] if the list is empty or names a lock twice.
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn acquire(self) -> Result<MultiGuard> {
        match self.pursue(None).await? {
            Some(guard) => Ok(guard),
            None => unreachable!("without a limit, a pursuit ends with guards or an error"),
        }
    }

    /// Acquires all locks if they are free now. Returns `None` if one is busy.
    ///
    /// # Errors
    /// Same as [`acquire`](Multi::acquire).
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn try_acquire(self) -> Result<Option<MultiGuard>> {
        self.check()?;
        let mut guards = Vec::with_capacity(self.locks.len());
        for lock in self.locks {
            match lock.try_acquire().await? {
                Some(guard) => guards.push(guard),
                None => return Ok(None),
            }
        }
        Ok(Some(MultiGuard { guards }))
    }

    /// Waits until all locks are acquired, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`], which names the first lock; otherwise the same as
    /// [`acquire`](Multi::acquire).
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn acquire_within(self, limit: Duration) -> Result<MultiGuard> {
        self.check()?;
        let key = self.locks[0].key()?;
        match self.pursue(Instant::now().checked_add(limit)).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::Timeout { key, waited: limit }),
        }
    }

    /// Runs work while holding all locks, and cancels it if one of them is lost.
    ///
    /// # Errors
    /// Same as [`Lock::run`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the locks.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T> {
        run_with(self.acquire().await?, work).await
    }

    /// Like [`run`](Multi::run) if all locks are free now. Returns `None`, without running the
    /// work, if one is busy.
    ///
    /// # Errors
    /// Same as [`Lock::run`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the locks.
    pub async fn try_run<T>(self, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<Option<T>> {
        match self.try_acquire().await? {
            Some(guard) => run_with(guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Like [`run`](Multi::run), but waits for the locks for at most `limit`. The work itself has
    /// no limit.
    ///
    /// # Errors
    /// [`Error::Timeout`], which names the first lock; otherwise the same as [`Lock::run`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the locks.
    pub async fn run_within<T>(
        self,
        limit: Duration,
        work: impl AsyncFnOnce(&MultiGuard) -> T,
    ) -> Result<T> {
        run_with(self.acquire_within(limit).await?, work).await
    }

    fn check(&self) -> Result<()> {
        if self.locks.is_empty() {
            return Err(Error::Config("a multi-lock needs at least one lock".to_owned()));
        }
        match self.locks.windows(2).find(|pair| place_of(&pair[0]) == place_of(&pair[1])) {
            Some(pair) => Err(Error::Config(format!(
                "lock {:?} is named twice in one multi-lock, and would wait for itself; name it once",
                pair[0].key()?
            ))),
            None => Ok(()),
        }
    }

    async fn pursue(self, deadline: Option<Instant>) -> Result<Option<MultiGuard>> {
        self.check()?;
        let (patience, pause) =
            (Backoff::new(PATIENCE, PATIENCE), Backoff::new(Duration::from_millis(2), PATIENCE));
        let mut guards: Vec<Option<Guard>> = self.locks.iter().map(|_| None).collect();
        let mut tries = 0;
        while let Some(next) = guards.iter().position(Option::is_none) {
            let mut acquire = Box::pin(self.locks[next].clone().acquire());
            let is_holding = guards.iter().any(Option::is_some);
            let patience = is_holding.then(|| Instant::now() + patience.delay(0));
            let limit = deadline.into_iter().chain(patience).min();
            let acquired = match until(limit, &mut acquire).await {
                None if is_holding => {
                    let given_back = MultiGuard::of(&mut guards);
                    tokio::join!(until(deadline, &mut acquire), given_back.give_back()).0
                }
                acquired => acquired,
            };
            let Some(guard) = acquired else { return Ok(None) };
            guards[next] = Some(guard?);
            if guards.iter().all(Option::is_some) {
                let all = MultiGuard::of(&mut guards);
                // The locks acquired first may have been lost while we waited for the rest.
                if all.check().is_ok() {
                    return Ok(Some(all));
                }
                // Confirmed, so that the next round does not find locks that this one left.
                all.give_back().await;
                let pause = pause.delay(tries);
                tries += 1;
                if deadline.is_some_and(|at| Instant::now() + pause >= at) {
                    return Ok(None);
                }
                sleep(pause).await;
            }
        }
        unreachable!(
            "there is at least one lock, and once all are held they are returned or released"
        )
    }
}

/// Runs work under locks that are held, and releases them; see [`Lock::run`].
async fn run_with<T>(guard: MultiGuard, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T> {
    let done = tokio::select! {
        biased;
        (key, reason) = guard.lost() => return Err(Error::Lost { key, reason }),
        done = work(&guard) => done,
    };
    if let Some(lost) = guard.guards.iter().find(|guard| guard.loss().is_some()) {
        return Err(Error::Late { key: lost.key().clone(), reason: lost.lost().await });
    }
    let _ = guard.release().await;
    Ok(done)
}

/// Waits for a future, until a deadline if there is one.
async fn until<T>(limit: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(work.await),
        Some(at) => timeout_at(at, work).await.ok(),
    }
}

/// The position of a lock in the global order. The key comes first, because programs may name the
/// same store by different URLs.
fn place_of(lock: &Lock) -> (Option<Key>, String) {
    (lock.key().ok(), lock.inner().place.clone())
}

/// All locks of a [`Multi`], held until the guard is released or dropped.
#[derive(Debug)]
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// Takes the guards that are there.
    fn of(guards: &mut [Option<Guard>]) -> Self {
        Self { guards: guards.iter_mut().filter_map(Option::take).collect() }
    }

    /// The individual guards, ordered by key.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Checks whether all locks are still held, by the clock at this very moment.
    ///
    /// # Errors
    /// [`Error::Lost`] for the first one that is not.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// How long all locks are certainly held if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Resolves with the key and the reason when the first of the locks is lost.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub fn lost(&self) -> impl Future<Output = (Key, Loss)> + Send + 'static {
        let mut each: Vec<_> =
            self.guards.iter().map(|guard| (guard.key().clone(), Box::pin(guard.lost()))).collect();
        std::future::poll_fn(move |cx| {
            for (key, lost) in &mut each {
                if let std::task::Poll::Ready(loss) = lost.as_mut().poll(cx) {
                    return std::task::Poll::Ready((key.clone(), loss));
                }
            }
            std::task::Poll::Pending
        })
    }

    /// Releases all locks, in reverse order, even if the release of one fails.
    ///
    /// Returns the worst outcome: unconfirmed, then already lost, then released.
    ///
    /// # Errors
    /// The first [`Error::Engine`], after all releases were attempted.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the remaining releases to the background.
    pub async fn release(self) -> Result<Release> {
        let outcomes = self.give_back().await;
        let mut worst = Release::Released;
        for outcome in outcomes {
            worst = match (worst, outcome?) {
                (Release::Unconfirmed, _) | (_, Release::Unconfirmed) => Release::Unconfirmed,
                (Release::AlreadyLost, _) | (_, Release::AlreadyLost) => Release::AlreadyLost,
                _ => Release::Released,
            };
        }
        Ok(worst)
    }

    async fn give_back(mut self) -> Vec<Result<Release>> {
        let mut outcomes = Vec::with_capacity(self.guards.len());
        while let Some(guard) = self.guards.pop() {
            outcomes.push(guard.release().await);
        }
        outcomes
    }
}
