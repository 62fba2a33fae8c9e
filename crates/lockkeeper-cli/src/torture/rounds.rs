//! One target, round by round.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::storm::{Plan, Storm};

use super::figures::Figures;
use super::report::Timeline;
use super::target::Target;
use super::{client, window};
use crate::args::Torture;
use crate::output::{human, stderr};

/// The length of a round: the history of one is in memory when it is checked.
const ROUND: Duration = Duration::from_secs(20);

/// Runs rounds until the time is up, there were enough cycles, or one shows a violation.
pub(super) async fn run(args: &Torture, target: &Target, plan: Plan, seed: u64) -> Figures {
    let started = Instant::now();
    let mut figures = Figures::new(target.local.unwrap_or(target.shown()), target.shown(), seed);
    figures.repeat = repeat(args, target, seed);
    let mut random = fastrand::Rng::with_seed(seed);
    // At least one round, however long servers took to start.
    loop {
        let left = args.seconds.saturating_sub(started.elapsed());
        let plan = Plan {
            length: Some(left.min(ROUND)),
            grants: args.cycles.map(|cycles| cycles.saturating_sub(figures.cycles)),
            seed: Some(random.u64(..)),
            ..plan.clone()
        };
        let show = show(args, started, &figures, &plan);
        let storm = Storm::over(&Program::Verb(client::VERB), &*target.servers, plan.clone());
        let judgement = tokio::select! {
            judgement = storm => judgement,
            () = show => unreachable!("it shows for ever"),
        };
        if std::io::stderr().is_terminal() && !args.json {
            stderr("\r\x1b[2K");
        }
        figures.add(&judgement, target.may_overlap());
        figures.seconds = started.elapsed().as_secs_f64();
        let hosts = target.servers.hosts().len();
        figures.timeline = args
            .report
            .as_ref()
            .map(|_| Timeline::of(&judgement, plan.processes, plan.tasks, hosts));
        if !figures.is_clean() {
            figures.windows = window::of_storm(&judgement, target.may_overlap(), hosts);
            return figures;
        }
        let enough = args.cycles.is_some_and(|cycles| figures.cycles >= cycles);
        if enough || started.elapsed() + Duration::from_secs(1) >= args.seconds {
            return figures;
        }
    }
}

/// Shows on a terminal how far it is, until it is dropped.
async fn show(args: &Torture, started: Instant, before: &Figures, plan: &Plan) {
    let progress = plan.progress.subscribe();
    if args.json || !std::io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = *progress.borrow();
        let left = args.seconds.saturating_sub(started.elapsed());
        let margin =
            before.worst_margin_ms.map_or_else(String::new, |ms| format!(", worst margin {ms} ms"));
        stderr(&format!(
            "\r\x1b[2K{} cycles, {} faults, {} overlaps, {} violations{margin}; {} left",
            before.cycles + now.grants,
            before.faults + now.faults,
            before.overlaps,
            before.violations,
            human(Duration::from_secs(left.as_secs())),
        ));
    }
}

/// The command that repeats a run.
fn repeat(args: &Torture, target: &Target, seed: u64) -> String {
    let mut words = vec!["lockkeeper torture".to_owned()];
    words.push(match target.local {
        Some(name) => format!("--local {name}"),
        None => target.shown().to_owned(),
    });
    words.push(format!("--seconds {}s --seed {seed}", args.seconds.as_secs_f64()));
    if args.clients != 4 {
        words.push(format!("--clients {}", args.clients));
    }
    if args.keys != 1 {
        words.push(format!("--keys {}", args.keys));
    }
    if args.ttl != Duration::from_secs(2) {
        words.push(format!("--ttl {}ms", args.ttl.as_millis()));
    }
    if let Some(cycles) = args.cycles {
        words.push(format!("--cycles {cycles}"));
    }
    if !args.kinds.is_empty() {
        let kinds: Vec<_> = args.kinds.iter().map(|kind| kind.name()).collect();
        words.push(format!("--kinds {}", kinds.join(",")));
    }
    if !args.faults.is_empty() {
        let faults: Vec<_> = args.faults.iter().map(|fault| fault.name()).collect();
        words.push(format!("--faults {}", faults.join(",")));
    }
    if let Some(bug) = args.mutant {
        words.push(format!("--mutant {}", bug.name()));
    }
    words.join(" ")
}
