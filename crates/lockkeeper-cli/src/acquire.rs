//! How every verb acquires and releases a lock: with a limit on the wait, while the engine does not
//! answer yet, and until a signal arrives.

use std::convert::Infallible;
use std::time::Duration;

use lockkeeper::engine::Mode;
use lockkeeper::{Client, Error, Guard, Lock, Loss, Release};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::args::Terms;
use crate::exit::{self, Failure};
use crate::inspect;
use crate::output::{Say, tell};
use crate::run::signals::Signals;
use crate::run::terminal::{someone_would_continue_us, stop};

/// How long to wait for an engine to confirm the last request of a run. Without it, the lock
/// expires.
pub(crate) const CONFIRMATION: Duration = Duration::from_secs(3);

/// The same, for an engine that is known to be in trouble, or after the lock was lost.
const LAST_WORD: Duration = Duration::from_millis(300);

/// The pause between two attempts to reach an engine that does not answer.
const PAUSE: Duration = Duration::from_millis(250);

/// The wait for an engine that does not answer.
pub(crate) struct Waits<'a> {
    place: &'a str,
    pub(crate) until: Option<Instant>,
    /// Whether there is no end to the wait unless a limit was set.
    patient: bool,
    pub(crate) told: Told,
}

/// Whether it was reported that an engine does not answer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Told(bool);

impl Told {
    /// Reports outages as they begin and end.
    pub(crate) async fn outages(
        &mut self,
        client: &Client,
        mut tell: impl FnMut(String),
    ) -> Infallible {
        let mut outages = client.outages();
        loop {
            match outages.changed().await {
                Some(outage) => {
                    if let Some(told) = self.fails(client.place(), &outage.cause) {
                        tell(told);
                    }
                }
                None => self.answers(client.place()).into_iter().for_each(&mut tell),
            }
        }
    }

    /// The engine does not answer. Returns a message, unless that was reported.
    fn fails(&mut self, place: &str, cause: &str) -> Option<String> {
        let news = !std::mem::replace(&mut self.0, true);
        news.then(|| format!("waiting for {place} to answer: {cause}"))
    }

    /// The engine answers. Returns a message if it was reported that it did not.
    fn answers(&mut self, place: &str) -> Option<String> {
        std::mem::take(&mut self.0).then(|| format!("{place} answers again"))
    }
}

impl<'a> Waits<'a> {
    /// Starts the clock. Without a limit there is no wait.
    pub(crate) fn new(place: &'a str, limit: Option<Duration>) -> Self {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { place, until, patient: false, told: Told::default() }
    }

    /// The same, but without a limit the wait has no end.
    pub(crate) fn patient(place: &'a str, limit: Option<Duration>) -> Self {
        Self { patient: limit.is_none(), ..Self::new(place, limit) }
    }

    /// Runs something until the limit.
    pub(crate) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        // Without a limit, or after it has passed, the engine's own timeouts apply.
        let Some(until) = self.until.filter(|until| *until > Instant::now()) else {
            return work.await;
        };
        tokio::time::timeout_at(until, work).await.unwrap_or_else(|_| {
            let silence = format!("no answer from {}", self.place);
            Err(self.gave_up(Failure::new(exit::UNAVAILABLE, silence)))
        })
    }

    /// Whether to try again after a failure. If so, reports what it waits for and whether that has
    /// changed, and pauses.
    pub(crate) async fn again(
        &mut self,
        failure: Failure,
        tell: impl FnOnce(String, bool),
    ) -> Result<(), Failure> {
        let waits = self.patient || self.until.is_some();
        if !waits || !failure.retryable || failure.code != exit::UNAVAILABLE {
            return Err(failure);
        }
        let next = Instant::now() + PAUSE;
        if self.until.is_none_or(|until| next < until) {
            let news = self.told.fails(self.place, &failure.message);
            let told = || format!("{} does not answer: {}", self.place, failure.message);
            let is_news = news.is_some();
            tell(news.unwrap_or_else(told), is_news);
        }
        tokio::time::sleep_until(self.until.map_or(next, |until| next.min(until))).await;
        match self.until.is_none_or(|until| until > Instant::now()) {
            true => Ok(()),
            false => Err(self.gave_up(failure)),
        }
    }

    /// The engine answers. Returns a message if it was reported that it did not.
    pub(crate) fn answered(&mut self) -> Option<String> {
        self.told.answers(self.place)
    }

    /// The last failure, after the wait has ended.
    fn gave_up(&self, failure: Failure) -> Failure {
        let message = format!("the wait is over (--wait): {}", failure.message);
        Failure { message, retryable: false, ..failure }
    }
}

/// An outage that somebody who only looks sees the end of too.
#[derive(Debug, Default)]
pub(crate) struct Outage(bool);

impl Outage {
    /// The result of a look; `None` if the engine does not answer, which is reported once, as is the
    /// end of it.
    pub(crate) fn judge<T>(&mut self, looked: lockkeeper::Result<T>) -> Result<Option<T>, Failure> {
        match looked {
            Err(error) if error.is_retryable() => {
                if !std::mem::replace(&mut self.0, true) {
                    tell(format_args!("{error}; trying again"));
                }
                Ok(None)
            }
            looked => {
                let seen = looked?;
                if std::mem::take(&mut self.0) {
                    tell("the engine answers again");
                }
                Ok(Some(seen))
            }
        }
    }
}

/// The mode that was requested.
pub(crate) fn mode(terms: &Terms) -> Mode {
    match terms.limit {
        Some(limit) => Mode::Permits { take: 1, limit },
        None if terms.shared => Mode::Read,
        None if terms.exclusive => Mode::Write,
        None => Mode::Mutex,
    }
}

/// The lock that was requested, without its duration.
pub(crate) fn lock(client: &Client, key: &str, terms: &Terms) -> Lock {
    let mut lock = match mode(terms) {
        Mode::Permits { limit, .. } => client.semaphore(key, limit),
        Mode::Read => client.read(key),
        Mode::Write => client.write(key),
        _ => client.mutex(key),
    };
    if terms.fair {
        lock = lock.fair();
    }
    if let Some(note) = &terms.note {
        lock = lock.note(note);
    }
    lock
}

/// Acquires the lock as requested: once, until the end of a wait that started before, or without a
/// limit. If it is busy, names the holders.
pub(crate) async fn acquire_until(
    client: &Client,
    lock: Lock,
    key: &str,
    terms: &Terms,
    until: Option<Instant>,
) -> Result<Guard, Failure> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let acquired = match (terms.wait, left) {
        (Some(limit), Some(left)) if !limit.is_zero() => {
            lock.acquire_within(left).await.map(Some).map_err(|mut error| {
                if let Error::Timeout { waited, .. } = &mut error {
                    *waited = limit;
                }
                error
            })
        }
        (Some(limit), _) if limit.is_zero() => lock.try_acquire().await,
        _ if terms.nonblock => lock.try_acquire().await,
        _ => lock.acquire().await.map(Some),
    };
    let conflict = matches!(acquired, Err(Error::Conflict { .. }));
    let mut failure = match acquired {
        Ok(Some(guard)) => return Ok(guard),
        Ok(None) => Failure::new(exit::BUSY, format!("lock {key:?} is busy")),
        Err(error) => Failure::from(error),
    };
    if conflict {
        match client.inspect(key).await {
            // It is not a lock at all, and the engine's message says what it is.
            Err(error @ Error::Conflict { .. }) => failure.message = error.to_string(),
            _ => {
                failure.message += "; all who use a lock have to ask for it in the same way: \
                                    plainly, with --shared or --exclusive, or with the same --limit";
            }
        }
    } else if failure.code == exit::BUSY
        && let Some(holders) = holders(client, key).await
    {
        failure.message += &format!("; held by {holders}");
    }
    Err(failure)
}

/// Runs something until a signal arrives; then it is dropped and leaves nothing behind.
pub(crate) async fn interruptible<T>(
    work: impl Future<Output = Result<T, Failure>>,
    signals: &Signals,
) -> Result<T, Failure> {
    let mut work = std::pin::pin!(work);
    loop {
        let signal = tokio::select! {
            biased;
            signal = signals.next() => signal,
            done = &mut work => match signals.pending() {
                // It arrived at the last moment, but before the command was started.
                Some(signal) if !matches!(signal, Signal::SIGTSTP | Signal::SIGCONT) => {
                    return Err(Failure::silent(exit::signalled(signal as i32)));
                }
                _ => return done,
            },
        };
        match signal {
            Signal::SIGCONT => {}
            Signal::SIGTSTP if someone_would_continue_us() => stop(),
            Signal::SIGTSTP => {}
            signal => return Err(Failure::silent(exit::signalled(signal as i32))),
        }
    }
}

/// Releases the lock. The error is the reason why the lock was no longer held, or `None` if only
/// the confirmation is missing.
pub(crate) async fn release(guard: Guard, say: Say) -> Result<(), Option<String>> {
    let lost = why_lost(&guard).await;
    let in_trouble = lost.is_some() || guard.trouble().is_some();
    let limit = if in_trouble { LAST_WORD } else { CONFIRMATION };
    let (key, reason) = (guard.key().clone(), guard.lost());
    match tokio::time::timeout(limit, guard.release()).await {
        Ok(Ok(Release::Released)) => Ok(()),
        Ok(Ok(Release::AlreadyLost)) => Err(Some(match (lost, reason.await) {
            (Some(lost), _) => lost,
            (None, reason @ Loss::Broken { .. }) => format!("lock {key:?} is lost: {reason}"),
            (None, _) => format!("at its release lock {key:?} was no longer held"),
        })),
        Ok(Err(error)) => {
            say.warn(error);
            Err(lost)
        }
        // An unconfirmed release must not delay the processes that wait for us.
        Ok(Ok(_)) | Err(_) => {
            if lost.is_none() {
                say.warn("the engine did not confirm the release; the lock will expire");
            }
            Err(lost)
        }
    }
}

/// Why a lock is lost, in words; `None` if it is held.
pub(crate) async fn why_lost(guard: &Guard) -> Option<String> {
    guard.check().err()?;
    // The engine may just be asked who broke it.
    guard.lost().await;
    guard.check().err().map(|error| error.to_string())
}

/// Closes an engine, without waiting long for one that did not answer.
pub(crate) async fn close(client: Client, answers: bool) {
    let limit = if answers { CONFIRMATION } else { LAST_WORD };
    // The rest ends with this process.
    let _ = tokio::time::timeout(limit, client.close()).await;
}

/// The holders of a lock, if the engine knows them.
pub(crate) async fn holders(client: &Client, key: &str) -> Option<String> {
    let holders = client.inspect(key).await.ok()??.holders;
    let named: Vec<_> = holders.iter().map(inspect::describe).collect();
    (!named.is_empty()).then(|| named.join(", "))
}
