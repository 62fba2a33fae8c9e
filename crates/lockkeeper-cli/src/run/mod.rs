//! `run`: hold a lock while a command runs.
//!
//! This file puts the parts together. What is [`wanted`] is acquired, then [`supervise`] supervises the command through a [`child`],
//! which a [`guardian`] process watches, by the [`protocol`] between them, on the [`timeline`] that
//! a lease sets. The [`backstop`] is what the wrapper does itself if the guardian fails to.

pub(crate) mod backstop;
pub(crate) mod brief;
pub(crate) mod child;
pub(crate) mod descendants;
pub(crate) mod end;
pub(crate) mod guardian;
pub(crate) mod nested;
pub(crate) mod once_per;
pub(crate) mod protocol;
pub(crate) mod signals;
pub(crate) mod status;
pub(crate) mod supervise;
pub(crate) mod terminal;
pub(crate) mod timeline;
pub(crate) mod troubles;
pub(crate) mod wanted;

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use lockkeeper::endpoint::Endpoint;
use lockkeeper::{Guard, Owner};
use tokio::time::Instant;

use crate::acquire::{self, Waits, close, release};
use crate::args::Run;
use crate::config::Config;
use crate::exit::{self, Failure};
use crate::output::Say;
use crate::run::child::Job;
use crate::run::end::{End, has_failed, verdict};
use crate::run::signals::Signals;
use crate::run::status::{Status, seconds};
use crate::run::supervise::Supervisor;
use crate::run::terminal::die_of_interrupt;
use crate::run::timeline::{Limit, Timeline};
use crate::run::wanted::Wanted;

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
        die_of_interrupt(&signals);
    }
    Ok(code)
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
        && nested::held_by_an_outer_run(&args.key, &owner, &place)
        && let Some(outer) = nested::enter()
    {
        nested::check_kind(&args.key, &nested::kind(acquire::mode(&args.terms)))?;
        let timeline = Timeline::new(Limit::None, grace, on_lost)?;
        let max_hold = args.max_hold;
        say.note("entered again: an outer run holds the lock for this owner");
        let on_yield = args.supervision.on_yield;
        return Supervisor {
            guard: None,
            client: None,
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
    let wanted = Wanted {
        key: &args.key,
        terms: &args.terms,
        owner: &owner,
        endpoint: &endpoint,
        recorded: recorded.as_deref(),
        ttl,
        lease: args.lease,
        grace,
        on_lost,
        nests: true,
        signals,
        say,
    };
    let acquired = wanted.acquire(None, Waits::new(&place, args.terms.wait)).await;
    status.waited = seconds(started.elapsed());
    let (client, timeline, guard) = acquired.inspect_err(|failure| status.interrupted(failure))?;
    let granted = Instant::now();
    let (max_hold, on_yield, fixed) =
        (args.max_hold, args.supervision.on_yield, args.lease.is_some());
    let supervisor = Supervisor {
        guard: Some(&guard),
        client: Some(&client),
        timeline,
        ttl,
        fixed,
        max_hold,
        on_yield,
        signals,
        say,
    };
    let environment = environment(&guard, &owner, &endpoint);
    status.fence = Some(guard.fence().get());
    let marked = match args.once_per {
        Some(slot) => {
            once_per::mark(&client, &endpoint.spell_out(), &args.key, slot, signals).await.map(Some)
        }
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
    if ended.as_ref().is_ok_and(|end| !end.asked_to_end && end.yielded.is_none())
        && let Some(least) = args.min_hold
    {
        wait_out(&guard, granted, least, signals).await;
    }
    status.held = seconds(granted.elapsed());
    let released = release(guard, say).await;
    let confirmed = released == Ok(());
    if let (Ok(end), Err(Some(reason))) = (&mut ended, released) {
        end.lost_at_release(reason, say);
    }
    close(client, confirmed).await;
    ended
}

/// Warns about a key that looks like a file name, as flock takes it.
pub(crate) fn warn_of_path(key: &str, endpoint: &Endpoint, say: Say) {
    let path = ["/", "./", "../", "~/"].iter().any(|start| key.starts_with(start));
    if path && endpoint.scheme() == "file" {
        say.warn(format_args!(
            "the key {key:?} is only a name: that file is not locked, and flock on it keeps nobody \
             out here; the lock itself is in {endpoint}"
        ));
    }
}

/// The environment variables that describe the lock to the command.
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
        (nested::KIND, nested::kind(guard.mode())),
    ]
}

/// Keeps the lock until `least` has passed since the grant, unless a signal or a yield request ends
/// that.
async fn wait_out(guard: &Guard, granted: Instant, least: Duration, signals: &Signals) {
    tokio::select! {
        () = tokio::time::sleep(least.saturating_sub(granted.elapsed())) => {}
        _ = signals.next() => {}
        _ = guard.lost() => {}
    }
}

fn command(args: &Run) -> Vec<OsString> {
    match &args.shell {
        // The same shell that flock would use.
        Some(string) => {
            let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
            vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), string.clone()]
        }
        None => args.argv.clone(),
    }
}
