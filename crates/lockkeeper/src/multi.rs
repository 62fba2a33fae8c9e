//! Several locks at once, of any kinds on any engines: all or nothing, and no deadlock.
//!
//! Locks are taken in one order, whatever order they were named in. That alone is not enough, because
//! others may take the same locks in theirs: so nobody waits for long while holding. When a lock stays
//! busy, we give back what we have, keep our place in its line, and take the others again once we have it:
//! who left the line would come to its end again, and might never get to its head.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::core::Backoff;
use crate::error::{Error, Loss, Result};
use crate::guard::{Guard, Release};
use crate::key::Key;
use crate::lock::Lock;

/// How long one lock is waited for while others are held, at most. Half of it at least: of two who
/// wait for each other, one gives way before the other does.
const PATIENCE: Duration = Duration::from_millis(500);

/// Locks that are acquired together or not at all.
#[derive(Debug, Clone)]
#[must_use = "locks do nothing before they are acquired"]
pub struct Multi {
    locks: Vec<Lock>,
}

impl Multi {
    /// Locks of any kinds, of any clients.
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> Self {
        let mut locks: Vec<Lock> = locks.into_iter().collect();
        // Bad keys, which are refused later, come first.
        locks.sort_by_cached_key(place_of);
        Self { locks }
    }

    /// Waits until all of them are ours.
    ///
    /// # Errors
    /// As [`Lock::acquire`], for the first lock that fails; then none is held.
    /// [`Error::Config`] if there is none, or one is named twice.
    ///
    /// # Cancel safety
    /// May be dropped at any time; nothing is left behind.
    pub async fn acquire(self) -> Result<MultiGuard> {
        match self.pursue(None).await? {
            Some(guard) => Ok(guard),
            None => unreachable!("without a limit, a pursuit ends with guards or an error"),
        }
    }

    /// Takes all of them if they are free now. `None` means that one was busy.
    ///
    /// # Errors
    /// As [`acquire`](Multi::acquire).
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

    /// Waits until all of them are ours, at most so long.
    ///
    /// # Errors
    /// [`Error::Timeout`] that names the first lock; otherwise as [`acquire`](Multi::acquire).
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

    /// Does work while holding all of them, and cancels it when one is lost.
    ///
    /// # Errors
    /// As [`Lock::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and gives the locks back.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T> {
        run_with(self.acquire().await?, work).await
    }

    /// As [`run`](Multi::run) if all of them are free now. `None` means that one was busy and nothing was
    /// done.
    ///
    /// # Errors
    /// As [`Lock::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and gives the locks back.
    pub async fn try_run<T>(self, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<Option<T>> {
        match self.try_acquire().await? {
            Some(guard) => run_with(guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`run`](Multi::run), but waits for the locks for `limit` at most. The work itself has no limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] that names the first lock; otherwise as [`Lock::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and gives the locks back.
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
                // What was taken first may have been lost while the rest was waited for.
                if all.check().is_ok() {
                    return Ok(Some(all));
                }
                // Confirmed, so that our next round does not meet what this one left.
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
            "there is at least one lock, and once all are held they are returned or given back"
        )
    }
}

/// Does work under locks that are held, and gives them back; see [`Lock::run`].
async fn run_with<T>(guard: MultiGuard, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T> {
    let done = tokio::select! {
        biased;
        (key, reason) = guard.lost() => return Err(Error::Lost { key, reason }),
        done = work(&guard) => done,
    };
    if let Some((key, reason)) =
        guard.guards.iter().find_map(|g| Some((g.key().clone(), g.loss()?)))
    {
        return Err(Error::Late { key, reason });
    }
    let _ = guard.release().await;
    Ok(done)
}

/// Waits for something, up to a moment if there is one.
async fn until<T>(limit: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(work.await),
        Some(at) => timeout_at(at, work).await.ok(),
    }
}

/// Where a lock stands in the common order. The key comes first: programs may well name the same
/// store by different URLs.
fn place_of(lock: &Lock) -> (Option<Key>, String) {
    (lock.key().ok(), lock.inner().place.clone())
}

/// All locks of a [`Multi`], held.
#[derive(Debug)]
#[must_use = "the locks are given back as soon as the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// Takes what there is of them.
    fn of(guards: &mut [Option<Guard>]) -> Self {
        Self { guards: guards.iter_mut().filter_map(Option::take).collect() }
    }

    /// The single guards, in the order of their keys.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether all of them are still ours, by the clock at this very moment.
    ///
    /// # Errors
    /// [`Error::Lost`] for the first that is not.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// How long all of them are certainly ours if no renewal succeeds from now on.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Resolves when the first of them is lost, with its key and the reason.
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

    /// Gives all of them back, the last one first, also if one of them fails.
    ///
    /// The worst outcome is reported: unconfirmed before lost before released.
    ///
    /// # Errors
    /// The first [`Error::Engine`], after all were tried.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest to the background.
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
