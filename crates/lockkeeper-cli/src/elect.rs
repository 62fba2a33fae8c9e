//! `elect`: run a command while leading.

use std::time::{Duration, SystemTime};

use lockkeeper::{Client, Owner, whoami};
use tokio::time::Instant;

use crate::acquire::{self, Outage, Waits, interruptible};
use crate::args::{Elect, Terms};
use crate::config::Config;
use crate::exit::{self, Failure};
use crate::output::{Say, print};
use crate::run;
use crate::run::child::Job;
use crate::run::end::{End, verdict};
use crate::run::signals::Signals;
use crate::run::status::{self, Status, seconds};
use crate::run::supervise::Supervisor;
use crate::run::wanted::Wanted;
use crate::table::plain;

/// Between terms of a command that ends at once, so that --forever does not become a busy loop.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn elect(args: Elect) -> exit::Outcome {
    let signals = Signals::collect().map_err(|error| Failure::own("listen for signals", error))?;
    let config = Config::load()?.quietly(args.supervision.quiet);
    let mut client = None;
    let outcome = match args.observe {
        true => {
            let client = client.insert(config.connect(&args.place).await?);
            interruptible(observe(client, &args), &signals).await
        }
        false => lead(&mut client, &config, &args, &signals).await,
    };
    if let Some(client) = client {
        acquire::close(client, outcome.is_ok()).await;
    }
    outcome
}

async fn observe(client: &Client, args: &Elect) -> exit::Outcome {
    let mut observer = client.election(&args.name).observe(args.interval);
    let mut outage = Outage::default();
    loop {
        let Some(leader) = outage.judge(observer.next().await)? else {
            tokio::time::sleep(args.interval).await;
            continue;
        };
        let time = humantime::format_rfc3339_seconds(SystemTime::now());
        if args.supervision.json {
            let leader = leader.map(|leader| {
                serde_json::json!({
                    "term": leader.term.map(|term| term.get()),
                    "who": leader.who,
                    "note": leader.note,
                })
            });
            let time = time.to_string();
            let told = serde_json::json!({"time": time, "election": args.name, "leader": leader});
            print(&format!("{told}\n"))?;
            continue;
        }
        match leader {
            None => print(&format!("{time} nobody leads\n"))?,
            Some(leader) => {
                let who = leader.who.unwrap_or_else(|| "unknown".to_owned());
                let term = leader.term.map_or("unknown".to_owned(), |term| term.to_string());
                let note = leader.note.map(|note| format!(" ({note})")).unwrap_or_default();
                print(&format!("{time} {}\n", plain(&format!("{who} leads, term {term}{note}"))))?;
            }
        }
    }
}

/// Campaigns, leads, and campaigns again. An engine that does not answer ends neither.
async fn lead(
    client: &mut Option<Client>,
    config: &Config,
    args: &Elect,
    signals: &Signals,
) -> exit::Outcome {
    let say = Say { quiet: args.supervision.quiet, verbose: args.supervision.verbose };
    if let Some(path) = &args.supervision.status_file {
        status::probe(path)?;
    }
    let endpoint = config.endpoint(&args.place)?;
    let place = endpoint.to_string();
    let recorded = config.command(&args.argv)?;
    let ttl = config.ttl(args.ttl)?;
    let on_lost = config.on_lost(args.supervision.on_lost)?;
    let grace = config.grace(args.supervision.grace)?;
    let note = args.note.clone().unwrap_or_else(|| format!("candidate {}", whoami()));
    let terms = Terms { note: Some(note), wait: args.wait, ..Terms::default() };
    loop {
        let started = Instant::now();
        let owner = Owner::new();
        let wanted = Wanted {
            key: &args.name,
            terms: &terms,
            owner: &owner,
            endpoint: &endpoint,
            recorded: recorded.as_deref(),
            ttl,
            lease: None,
            grace,
            on_lost,
            nests: false,
            signals,
            say,
        };
        let waits = Waits::patient(&place, args.wait);
        let (connected, timeline, guard) = wanted.acquire(client.take(), waits).await?;
        let connected = &*client.insert(connected);
        let mut status = Status {
            key: args.name.clone(),
            url: Some(place.clone()),
            waited: seconds(started.elapsed()),
            fence: Some(guard.fence().get()),
            ..Status::default()
        };
        let granted = Instant::now();
        say.note(format_args!("leading {:?}, term {}", args.name, guard.fence()));
        let job = Job {
            command: args.argv.clone(),
            environment: run::environment(&guard, &owner, &endpoint),
            mask: *signals.original(),
            foreground: false,
            lock: guard.bequeath(),
        };
        let supervisor = Supervisor {
            guard: Some(&guard),
            client: Some(connected),
            timeline,
            ttl,
            fixed: false,
            max_hold: None,
            on_yield: args.supervision.on_yield,
            signals,
            say,
        };
        let ended = supervisor.run(job).await;
        status.held = seconds(granted.elapsed());
        let released = acquire::release(guard, say).await;
        let mut end = ended?;
        if let Err(Some(reason)) = released {
            end.lost_at_release(reason, say);
        }
        let code = verdict(&end, say, &mut status);
        status.exit_code = code;
        status.tell(&args.supervision, say);
        if !again(args, &end) {
            return Ok(code);
        }
        let pause = async {
            tokio::time::sleep(PAUSE).await;
            Ok(())
        };
        interruptible(pause, signals).await?;
    }
}

/// Whether to campaign again: after a loss or a yield unless --once, after the command's own end
/// with --forever; never after a signal to end.
fn again(args: &Elect, end: &End) -> bool {
    match &end.lost {
        _ if end.asked_to_end => false,
        Some(_) => !args.once,
        None if end.yielded.is_some() => !args.once,
        None => args.forever,
    }
}
