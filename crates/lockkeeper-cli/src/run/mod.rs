//! `run`: hold a lock while a command runs.
//!
//! This file acquires and releases. [`supervise`] looks after the command by way of a [`child`] that a
//! [`guardian`] process watches, by the [`protocol`] between them, on the [`timeline`] that a lease sets.
//! The [`backstop`] is what the wrapper does by itself if the guardian does not.

pub(crate) mod backstop;
pub(crate) mod child;
pub(crate) mod descendants;
pub(crate) mod guardian;
pub(crate) mod nested;
pub(crate) mod once_per;
pub(crate) mod protocol;
pub(crate) mod signals;
pub(crate) mod status;
pub(crate) mod supervise;
pub(crate) mod terminal;
pub(crate) mod timeline;

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::{Mode, Scope};
use lockkeeper::{Client, Error, Guard, Lock, Owner, Release};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::args::{Run, Terms};
use crate::config::Config;
use crate::exit::{self, Failure};
use crate::inspect;
use crate::output::Say;
use crate::run::child::Job;
use crate::run::signals::Signals;
use crate::run::status::{Status, seconds};
use crate::run::supervise::{End, How, Supervisor};
use crate::run::terminal::someone_would_continue_us;
use crate::run::timeline::{Limit, Timeline};

/// How long to wait for an engine to confirm what ends a run. The lock ends by itself if it does not.
pub(crate) const CONFIRMATION: Duration = Duration::from_secs(3);

/// The same, for an engine that is known to be in trouble, or after the lock was lost.
const LAST_WORD: Duration = Duration::from_millis(300);

/// Between two attempts to reach an engine that does not answer.
const PAUSE: Duration = Duration::from_millis(250);

pub(crate) async fn run(args: Run) -> exit::Outcome {
    let signals = Signals::collect().map_err(|error| Failure::own("listen for signals", error))?;
    let say = Say { quiet: args.supervision.quiet, verbose: args.supervision.verbose };
    if let Some(path) = &args.supervision.status_file {
        status::probe(path)?;
    }
    let mut status = Status { key: args.key.clone(), ..Status::default() };
    let mut interrupted = false;
    let code = match hold_and_run(&args, &signals, say, &mut status).await {
        Ok(end) => {
            interrupted = end.interrupted && end.lost.is_none() && !end.max_hold;
            verdict(&end, say, &mut status)
        }
        Err(failure) => {
            status.fail(&failure);
            match failure.code {
                exit::BUSY if args.skip_ok => say.note(&failure.message),
                _ if failure.message.is_empty() => {}
                _ => say.warn(&failure.message),
            }
            match failure.code {
                exit::BUSY if args.skip_ok => 0,
                exit::BUSY => args.terms.conflict_exit_code.unwrap_or(exit::BUSY),
                code => code,
            }
        }
    };
    status.exit_code = code;
    status.tell(&args.supervision, say);
    if interrupted {
        supervise::die_of_interrupt(&signals);
    }
    Ok(code)
}

/// What the end of a command means: the code, and the rest of the status.
pub(crate) fn verdict(end: &End, say: Say, status: &mut Status) -> u8 {
    match end.how {
        How::Exited(code) => status.child_code = Some(code),
        How::Signalled(signal) => status.child_signal = Some(signal),
    }
    let times = supervise::times(
        Duration::from_secs_f64(status.waited),
        Duration::from_secs_f64(status.held),
    );
    say.note(times);
    if let Some(reason) = &end.lost {
        status.outcome = "lost";
        status.reason = Some(reason.clone());
        exit::LOST
    } else if end.max_hold {
        status.outcome = "max-hold";
        exit::MAX_HOLD
    } else {
        status.outcome = "done";
        status.reason = end.yielded.then(|| "asked to give way".to_owned());
        end.how.code()
    }
}

async fn hold_and_run(
    args: &Run,
    signals: &Signals,
    say: Say,
    status: &mut Status,
) -> Result<End, Failure> {
    let config = Config::load()?.quietly(say.quiet);
    let endpoint = config.endpoint(&args.place)?;
    warn_of_path(&args.key, &endpoint, say);
    let place = endpoint.to_string();
    status.url = Some(place.clone());
    let owner = args.owner.as_ref().map_or_else(|| Ok(Owner::new()), Owner::named)?;
    let command = command(args);
    let recorded = config.command(&command)?;
    let on_lost = config.on_lost(args.supervision.on_lost)?;
    let grace = config.grace(args.supervision.grace)?;
    let ttl = args.lease.map_or_else(|| config.ttl(args.terms.ttl), Ok)?;
    let job = |environment, lock| Job {
        command: command.clone(),
        environment,
        mask: *signals.original(),
        foreground: false,
        lock,
    };

    if args.owner.is_some()
        && held_by_an_outer_run(&args.key, &owner, &place)
        && let Some(outer) = nested::enter()
    {
        nested::check_kind(&args.key, &kind_asked(&args.terms))?;
        let timeline = Timeline::new(Limit::None, grace, on_lost)?;
        let max_hold = args.max_hold;
        say.note("entered again: an outer run holds the lock for this owner");
        let on_yield = args.supervision.on_yield;
        return Supervisor {
            guard: None,
            timeline,
            ttl,
            fixed: false,
            max_hold,
            on_yield,
            signals,
            say,
        }
        .run(job(Vec::new(), Some(outer.into())))
        .await;
    }

    let started = Instant::now();
    let url = endpoint.spell_out();
    let mut waits = Waits::new(&place, args.terms.wait);
    let tell = |told: String, news| if news { say.warn(told) } else { say.note(told) };
    let (client, timeline, guard) = loop {
        let attempt = async {
            let connect = waits.in_time(async { Ok(Client::connect(&url).await?) });
            let client = interruptible(connect, signals).await?;
            client.set_command(recorded.as_deref());
            let limit = Limit::of(&client, ttl, args.lease);
            let timeline = Timeline::new(limit, grace, on_lost)?;
            if client.guarantees().scope == Scope::Process {
                say.warn(format_args!(
                    "{place} excludes only inside one process: this keeps nobody out"
                ));
            }
            let lock = lock(&client, &args.key, &args.terms).owner(&owner);
            let lock = limit.terms(lock, &timeline, ttl);
            let acquire = async {
                tokio::select! {
                    acquired = acquire_until(&client, lock, &args.key, &args.terms, waits.until) => acquired,
                    () = tell_whom_we_wait_for(&client, &args.key, &place, say) => unreachable!("it tells for ever"),
                }
            };
            match interruptible(acquire, signals).await {
                Ok(guard) => {
                    let timeline = timeline.held(limit, &guard, grace);
                    Ok((client, timeline, guard))
                }
                Err(failure) => {
                    // What was begun, the undoing of a claim, ends before we do.
                    close(client, !failure.retryable).await;
                    Err(failure)
                }
            }
        };
        let acquired = attempt.await;
        status.waited = seconds(started.elapsed());
        match acquired {
            Ok(acquired) => break acquired,
            Err(failure) => interruptible(waits.again(failure, tell), signals)
                .await
                .inspect_err(|failure| status.interrupted(failure))?,
        }
    };
    let granted = Instant::now();
    let (max_hold, on_yield, fixed) =
        (args.max_hold, args.supervision.on_yield, args.lease.is_some());
    let supervisor =
        Supervisor { guard: Some(&guard), timeline, ttl, fixed, max_hold, on_yield, signals, say };
    let environment = environment(&guard, &owner, &endpoint);
    status.fence = Some(guard.fence().get());
    let marked = match args.once_per {
        Some(slot) => once_per::mark(&client, &url, &args.key, slot, signals).await.map(Some),
        None => Ok(None),
    };
    let mut ended = match marked {
        Ok(mark) => {
            let ended = supervisor.run(job(environment, guard.bequeath())).await;
            match mark {
                Some(mark) if args.retry_failed && has_failed(&ended) => mark.take_back().await,
                Some(mark) => mark.leave(),
                None => {}
            }
            ended
        }
        Err(failure) => Err(failure),
    };
    if ended.as_ref().is_ok_and(|end| !end.asked_to_end && !end.yielded)
        && let Some(least) = args.min_hold
    {
        wait_out(&guard, granted, least, signals).await;
    }
    status.held = seconds(granted.elapsed());
    let released = release(guard, say).await;
    let confirmed = released == Ok(());
    if let (Ok(end), Err(Some(reason))) = (&mut ended, released) {
        end.lost.get_or_insert(reason);
    }
    close(client, confirmed).await;
    ended
}

/// The wait for an engine that does not answer, where a limit was set.
pub(crate) struct Waits<'a> {
    place: &'a str,
    pub(crate) until: Option<Instant>,
    told: bool,
}

impl<'a> Waits<'a> {
    /// Counts from now.
    pub(crate) fn new(place: &'a str, limit: Option<Duration>) -> Self {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { place, until, told: false }
    }

    /// Does something, until the limit.
    pub(crate) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        // Without waiting, an engine has the time it takes.
        let Some(until) = self.until.filter(|until| *until > Instant::now()) else {
            return work.await;
        };
        tokio::time::timeout_at(until, work).await.unwrap_or_else(|_| {
            let silence = format!("no answer from {}", self.place);
            Err(self.gave_up(Failure::new(exit::UNAVAILABLE, silence)))
        })
    }

    /// Whether to try again after a failure: then tells what it waits for, and whether that is news, and
    /// waits a little.
    pub(crate) async fn again(
        &mut self,
        failure: Failure,
        tell: impl FnOnce(String, bool),
    ) -> Result<(), Failure> {
        let Some(until) = self.until.filter(|_| failure.retryable) else { return Err(failure) };
        if failure.code != exit::UNAVAILABLE {
            return Err(failure);
        }
        let next = Instant::now() + PAUSE;
        if next < until {
            let news = !std::mem::replace(&mut self.told, true);
            tell(format!("waiting for {} to answer: {}", self.place, failure.message), news);
        }
        tokio::time::sleep_until(next.min(until)).await;
        match until > Instant::now() {
            true => Ok(()),
            false => Err(self.gave_up(failure)),
        }
    }

    /// The last failure of a wait that is over.
    fn gave_up(&self, failure: Failure) -> Failure {
        let message = format!("the wait is over (--wait): {}", failure.message);
        Failure { message, retryable: false, ..failure }
    }
}

/// Whether a run did not do its work.
fn has_failed(ended: &Result<End, Failure>) -> bool {
    ended.as_ref().map_or(true, |end| end.lost.is_some() || end.max_hold || end.how.code() != 0)
}

/// Warns of a key that looks like the name of a file, as flock would have it.
pub(crate) fn warn_of_path(key: &str, endpoint: &Endpoint, say: Say) {
    let path = ["/", "./", "../", "~/"].iter().any(|start| key.starts_with(start));
    if path && endpoint.scheme() == "file" {
        say.warn(format_args!(
            "the key {key:?} is only a name: that file is not locked, and flock on it keeps nobody \
             out here; the lock itself is in {endpoint}"
        ));
    }
}

/// What the command is told about its lock.
pub(crate) fn environment(
    guard: &Guard,
    owner: &Owner,
    endpoint: &Endpoint,
) -> Vec<(&'static str, String)> {
    vec![
        ("LOCKKEEPER_KEY", guard.key().to_string()),
        ("LOCKKEEPER_FENCE", guard.fence().to_string()),
        ("LOCKKEEPER_OWNER", owner.id().to_owned()),
        ("LOCKKEEPER_URL", endpoint.without_passwords()),
        ("LOCKKEEPER_HELD", "1".to_owned()),
        (nested::KIND, kind(guard.mode())),
    ]
}

/// Keeps the lock until `least` has passed since the grant, unless somebody is in a hurry.
async fn wait_out(guard: &Guard, granted: Instant, least: Duration, signals: &Signals) {
    tokio::select! {
        () = tokio::time::sleep(least.saturating_sub(granted.elapsed())) => {}
        _ = signals.next() => {}
        _ = guard.lost() => {}
    }
}

/// When the wait gets long, says so if it cannot end; with `-v`, also who is in.
async fn tell_whom_we_wait_for(client: &Client, key: &str, place: &str, say: Say) {
    tokio::time::sleep(Duration::from_secs(1)).await;
    if below_a_run_of(key, place) && nested::enter().is_some() {
        say.warn(format_args!(
            "the run around this one holds lock {key:?} and waits for us: give both the same --owner"
        ));
    }
    if say.verbose
        && let Some(holders) = holders(client, key).await
    {
        say.note(format_args!("waiting for lock {key:?}, held by {holders}"));
    }
    std::future::pending().await
}

/// Who holds a lock, if the engine can tell.
async fn holders(client: &Client, key: &str) -> Option<String> {
    let holders = client.inspect(key).await.ok()??.holders;
    let named: Vec<_> = holders.iter().map(inspect::describe).collect();
    (!named.is_empty()).then(|| named.join(", "))
}

/// What a lock is held as, so that a run inside can compare. Semaphores of different sizes differ.
fn kind(mode: Mode) -> String {
    match mode {
        Mode::Permits { limit, .. } => format!("semaphore of {limit}"),
        mode => mode.kind().to_owned(),
    }
}

/// What a lock is asked for as.
fn kind_asked(terms: &Terms) -> String {
    let mode = match terms.limit {
        Some(limit) => Mode::Permits { take: 1, limit },
        None if terms.shared => Mode::Read,
        None if terms.exclusive => Mode::Write,
        None => Mode::Mutex,
    };
    kind(mode)
}

/// The lock that was asked for, without its duration.
pub(crate) fn lock(client: &Client, key: &str, terms: &Terms) -> Lock {
    let mut lock = match terms.limit {
        Some(limit) => client.semaphore(key, limit),
        None if terms.shared => client.read(key),
        None if terms.exclusive => client.write(key),
        None => client.mutex(key),
    };
    if terms.fair {
        lock = lock.fair();
    }
    if let Some(note) = &terms.note {
        lock = lock.note(note);
    }
    lock
}

/// Takes the lock as asked: once, for a while, or for as long as it takes. If it is busy, says who is in.
pub(crate) async fn acquire(
    client: &Client,
    lock: Lock,
    key: &str,
    terms: &Terms,
) -> Result<Guard, Failure> {
    let until = terms.wait.and_then(|limit| Instant::now().checked_add(limit));
    acquire_until(client, lock, key, terms, until).await
}

/// The same, where the wait began before.
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
            // It is no lock at all, and the engine says more about what it is.
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

/// Does something until a signal says otherwise; then nothing is left of it.
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
                // It came at the last moment, but it came before the command was started.
                Some(signal) if !matches!(signal, Signal::SIGTSTP | Signal::SIGCONT) => {
                    return Err(Failure::silent(exit::signalled(signal as i32)));
                }
                _ => return done,
            },
        };
        match signal {
            Signal::SIGCONT => {}
            Signal::SIGTSTP if someone_would_continue_us() => supervise::stop(),
            Signal::SIGTSTP => {}
            signal => return Err(Failure::silent(exit::signalled(signal as i32))),
        }
    }
}

/// Gives the lock back. The error says why it was not ours any more; it has no reason if only the
/// confirmation is missing.
pub(crate) async fn release(guard: Guard, say: Say) -> Result<(), Option<String>> {
    let lost = guard.check().err().map(|error| error.to_string());
    let in_trouble = lost.is_some() || guard.trouble().is_some();
    let limit = if in_trouble { LAST_WORD } else { CONFIRMATION };
    match tokio::time::timeout(limit, guard.release()).await {
        Ok(Ok(Release::Released)) => Ok(()),
        Ok(Ok(Release::AlreadyLost)) => {
            let late = "at its release it turned out not to be ours any more";
            Err(Some(lost.unwrap_or_else(|| late.to_owned())))
        }
        Ok(Err(error)) => {
            say.warn(error);
            Err(lost)
        }
        // What is not confirmed by now must not keep whoever waits for us.
        Ok(Ok(_)) | Err(_) => {
            if lost.is_none() {
                say.warn("the engine did not confirm the release; the lock ends by itself");
            }
            Err(lost)
        }
    }
}

/// Lets go of an engine, and does not wait long for one that did not `answer`.
pub(crate) async fn close(client: Client, answers: bool) {
    let limit = if answers { CONFIRMATION } else { LAST_WORD };
    // What is left of it ends with this process.
    let _ = tokio::time::timeout(limit, client.close()).await;
}

fn command(args: &Run) -> Vec<OsString> {
    match &args.shell {
        // The same shell that flock would take.
        Some(string) => {
            let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
            vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), string.clone()]
        }
        None => args.argv.clone(),
    }
}

/// Whether the environment says that a run around us holds this lock for this owner.
fn held_by_an_outer_run(key: &str, owner: &Owner, place: &str) -> bool {
    below_a_run_of(key, place) && is_set("LOCKKEEPER_OWNER", owner.id())
}

/// Whether the environment says that a run around us holds this lock, for whomever.
fn below_a_run_of(key: &str, place: &str) -> bool {
    is_set("LOCKKEEPER_HELD", "1")
        && is_set("LOCKKEEPER_KEY", key)
        && env::var("LOCKKEEPER_URL")
            .is_ok_and(|url| Endpoint::parse(&url).is_ok_and(|outer| outer.to_string() == place))
}

fn is_set(name: &str, value: &str) -> bool {
    env::var_os(name).is_some_and(|found| found == value)
}
