//! What a holder process does: acquires, answers commands, and releases when its input ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper::endpoint::parse_duration;
use lockkeeper::{Client, Error, Guard, Lock, Loss, Owner, Result};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::MARK;

/// Runs a holder process.
///
/// Arguments: `--url URL --key KEY`, and optionally `--kind mutex|read|write|semaphore`, `--limit
/// N` and `--take N` for permits, `--ttl D` or `--lease D`, `--keep D`, `--within D`, `--owner ID`, `--note
/// TEXT`, `--fair`, and `--cycles N --arbiter DIR` to acquire and release it this many times
/// against a directory in which two holders would collide. With `--fork N`, this many children do
/// that, which are forked after the lock was used once, and each connects its own client. With
/// `--leave`, the lock is acquired, and the program ends like one that drops everything at the end
/// of its `main`.
///
/// Lines out: `asking`, `granted FENCE SLOTS`, `timeout`, `failed MESSAGE`, `lost REASON`,
/// `violation TEXT`, `done N`, `forked` at the end of a child. Lines in, each answered by a line
/// that starts with the same word: `check`, `remaining`, `release`; `acquire` starts again; `exit`
/// ends without releasing. The end of the input releases and ends.
///
/// With `storm` as the first argument, it is one of the processes of a [storm](crate::storm)
/// instead.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let arguments: Vec<_> = arguments.collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == "storm"
    {
        return crate::storm::main(rest);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be started");
    let outcome = Plan::parse(arguments.into_iter()).and_then(|plan| match plan.workers {
        0 => runtime.block_on(work(&plan)),
        _ => fork(&plan, runtime),
    });
    if let Err(error) = outcome {
        say(format_args!("failed {error}"));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn work(plan: &Plan) -> Result<()> {
    let client = Client::connect(&plan.url).await?;
    if plan.leave {
        let _guard = plan.acquire(&client).await?;
        return Ok(());
    }
    let outcome = match plan.cycles {
        Some(_) => cycle(plan, &client).await,
        None => serve(plan, &client).await,
    };
    client.close().await;
    outcome
}

/// Uses the lock once, and forks children that share everything with this process except threads.
fn fork(plan: &Plan, runtime: Runtime) -> Result<()> {
    let client = runtime.block_on(async {
        let client = Client::connect(&plan.url).await?;
        plan.lock(&client)?.acquire().await?.release().await?;
        Ok::<_, Error>(client)
    })?;
    for _ in 0..plan.workers {
        // See `fork.c`: without it, this number is never 0.
        if std::os::unix::process::parent_id() == 0 {
            worker(plan, client, runtime);
            std::process::exit(0);
        }
    }
    Ok(())
}

/// What a forked child does.
fn worker(plan: &Plan, inherited: Client, runtime: Runtime) {
    // Its threads stayed in the parent.
    std::mem::forget(runtime);
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = own.expect("a runtime can be started").block_on(async {
        work(plan).await?;
        let used = inherited.mutex("inherited").acquire_within(Duration::from_secs(1)).await;
        if !matches!(&used, Err(Error::Config(why)) if why.contains("fork")) {
            say(format_args!("violation: a client of another process was used: {used:?}"));
        }
        let (who, id) = (lockkeeper::whoami(), std::process::id());
        if !who.ends_with(&format!(" {id}")) {
            say(format_args!("violation: process {id} is known as {who}"));
        }
        say("forked");
        Ok::<_, Error>(())
    });
    if let Err(error) = outcome {
        say(format_args!("failed {error}"));
    }
}

/// The parsed arguments.
#[derive(Debug, Default)]
struct Plan {
    url: String,
    key: String,
    kind: String,
    limit: u32,
    take: u32,
    ttl: Option<Duration>,
    lease: Option<Duration>,
    keep: Option<Duration>,
    within: Option<Duration>,
    owner: Option<Owner>,
    note: Option<String>,
    fair: bool,
    leave: bool,
    workers: u32,
    cycles: Option<u32>,
    arbiter: PathBuf,
}

impl Plan {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut plan = Plan { kind: "mutex".into(), limit: 1, take: 1, ..Plan::default() };
        while let Some(name) = arguments.next() {
            let flag = match name.as_str() {
                "--fair" => Some(&mut plan.fair),
                "--leave" => Some(&mut plan.leave),
                _ => None,
            };
            if let Some(flag) = flag {
                *flag = true;
                continue;
            }
            let value = arguments
                .next()
                .ok_or_else(|| Error::Config(format!("the argument {name} needs a value")))?;
            let number = || {
                let parsed = value.parse::<u32>();
                parsed.map_err(|_| Error::Config(format!("{name} is a number, not {value:?}")))
            };
            match name.as_str() {
                "--url" => plan.url = value,
                "--key" => plan.key = value,
                "--kind" => plan.kind = value,
                "--limit" => plan.limit = number()?,
                "--take" => plan.take = number()?,
                "--ttl" => plan.ttl = Some(parse_duration(&value)?),
                "--lease" => plan.lease = Some(parse_duration(&value)?),
                "--keep" => plan.keep = Some(parse_duration(&value)?),
                "--within" => plan.within = Some(parse_duration(&value)?),
                "--owner" => plan.owner = Some(Owner::named(value)?),
                "--note" => plan.note = Some(value),
                "--fork" => plan.workers = number()?,
                "--cycles" => plan.cycles = Some(number()?),
                "--arbiter" => plan.arbiter = value.into(),
                other => return Err(Error::Config(format!("there is no argument {other}"))),
            }
        }
        Ok(plan)
    }

    fn lock(&self, client: &Client) -> Result<Lock> {
        let mut lock = match self.kind.as_str() {
            "mutex" => client.mutex(&self.key),
            "read" => client.read(&self.key),
            "write" => client.write(&self.key),
            "semaphore" => client.semaphore(&self.key, self.limit).permits(self.take),
            other => {
                return Err(Error::Config(format!(
                    "--kind is mutex, read, write or semaphore, not {other:?}"
                )));
            }
        };
        if let Some(ttl) = self.ttl {
            lock = lock.ttl(ttl);
        }
        if let Some(lease) = self.lease {
            lock = lock.lease(lease);
        }
        if let Some(keep) = self.keep {
            lock = lock.keep(keep);
        }
        if let Some(owner) = &self.owner {
            lock = lock.owner(owner);
        }
        if let Some(note) = &self.note {
            lock = lock.note(note);
        }
        Ok(if self.fair { lock.fair() } else { lock })
    }

    async fn acquire(&self, client: &Client) -> Result<Guard> {
        say("asking");
        let lock = self.lock(client)?;
        let guard = match self.within {
            Some(limit) => lock.acquire_within(limit).await?,
            None => lock.acquire().await?,
        };
        let slots: Vec<_> = guard.slots().iter().map(u32::to_string).collect();
        say(format_args!("granted {} {}", guard.fence(), slots.join(",")));
        let lost = guard.lost();
        tokio::spawn(async move {
            let reason = lost.await;
            if reason != Loss::Released {
                say(format_args!("lost {reason}"));
            }
        });
        Ok(guard)
    }
}

/// Holds the lock and answers until the input ends.
async fn serve(plan: &Plan, client: &Client) -> Result<()> {
    let mut commands = read_commands();
    let mut held = None;
    let mut command = Some("acquire".to_owned());
    while let Some(word) = command {
        match (word.as_str(), held.take()) {
            ("exit", guard) => {
                // No destructor may run: this simulates a crash.
                std::mem::forget(guard);
                std::process::exit(0);
            }
            ("acquire", None) => {
                held = tokio::select! {
                    guard = plan.acquire(client) => match guard {
                        Ok(guard) => Some(guard),
                        Err(Error::Timeout { .. }) => {
                            say("timeout");
                            None
                        }
                        Err(error) => return Err(error),
                    },
                    // The process that started us is gone, or wants us gone: nothing waits for this
                    // any more.
                    _ = commands.recv() => return Ok(()),
                };
            }
            ("release", Some(guard)) => {
                let outcome = guard.release().await?;
                say(format_args!("release {outcome:?}"));
            }
            ("check", Some(guard)) => {
                match guard.check() {
                    Ok(()) => say("check ok"),
                    Err(error) => say(format_args!("check {error}")),
                }
                held = Some(guard);
            }
            ("remaining", Some(guard)) => {
                say(format_args!("remaining {}", guard.remaining().as_millis()));
                held = Some(guard);
            }
            (word, guard) => {
                say(format_args!("failed {word:?} makes no sense now"));
                held = guard;
            }
        }
        command = commands.recv().await;
    }
    if let Some(guard) = held {
        let outcome = guard.release().await?;
        say(format_args!("release {outcome:?}"));
    }
    Ok(())
}

/// Acquires and releases the lock many times; each time, a file must not exist and a number is
/// incremented.
async fn cycle(plan: &Plan, client: &Client) -> Result<()> {
    let cycles = plan.cycles.unwrap_or_default();
    for _ in 0..cycles {
        let guard = plan.lock(client)?.acquire().await?;
        // A mutex is a semaphore with the one slot 0.
        let slots = if guard.slots().is_empty() { &[0] } else { guard.slots() };
        for slot in slots {
            if let Err(collision) = enter(&plan.arbiter, *slot) {
                say(format_args!("violation in slot {slot}: {collision}"));
            }
        }
        guard.release().await?;
    }
    say(format_args!("done {cycles}"));
    Ok(())
}

/// Increments the count of a slot; fails if another process is in it.
fn enter(arbiter: &Path, slot: u32) -> std::io::Result<()> {
    let inside = arbiter.join(format!("inside-{slot}"));
    let count = arbiter.join(format!("count-{slot}"));
    std::fs::OpenOptions::new().write(true).create_new(true).open(&inside)?;
    let before = std::fs::read_to_string(&count).ok().and_then(|text| text.parse::<u64>().ok());
    std::fs::write(&count, (before.unwrap_or(0) + 1).to_string())?;
    std::fs::remove_file(&inside)
}

/// How often a slot was entered, by the arbiter's count.
pub(crate) fn entered(arbiter: &Path, slot: u32) -> u64 {
    let count = std::fs::read_to_string(arbiter.join(format!("count-{slot}")));
    count.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn read_commands() -> mpsc::Receiver<String> {
    let (send, commands) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    });
    commands
}

pub(crate) fn say(what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // Fails if there is no reader any more; then our input ends too.
    let _ = writeln!(out, "{MARK}{what}").and_then(|()| out.flush());
}
