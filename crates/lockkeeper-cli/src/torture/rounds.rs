//! One target, round by round.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::storm::{Kind, Plan, Storm};

use super::figures::{Figures, Sums};
use super::report::Timeline;
use super::target::Target;
use super::{client, window};
use crate::args::Torture;
use crate::output::{human, stderr};

/// The length of a round, and the grants after which it ends: the history of one is in memory when it
/// is checked.
const ROUND: Duration = Duration::from_secs(20);
const GRANTS: usize = 500_000;

/// What the faults of a row are called if they are not one alone.
const ALL: &str = "all";

/// What becomes a row of the result. Its random source is its own, so that it can be repeated alone.
struct Row {
    figures: Figures,
    plan: Plan,
    random: fastrand::Rng,
}

/// Runs rounds until the time is up, there were enough cycles, or one shows a violation. Returns a row
/// for each fault that was caused alone, and one for those that were caused together.
pub(super) async fn run(args: &Torture, target: &Target, plan: Plan, seed: u64) -> Vec<Figures> {
    let started = Instant::now();
    let engine = target.local.unwrap_or(target.shown());
    let row = |(fault, plan): (String, Plan)| Row {
        figures: Figures::new(engine, &fault, target.shown(), seed),
        plan,
        random: fastrand::Rng::with_seed(seed),
    };
    let mut rows: Vec<_> = themes(args, plan).into_iter().map(row).collect();
    let shortest = Duration::from_secs(1);
    let (mut n, count) = (0, rows.len());
    // What a round takes besides its length: processes start, recover and end, the history is checked.
    let mut besides = Duration::ZERO;
    // At least one round of each, however long servers took to start.
    loop {
        let rest = u32::try_from(count.saturating_sub(n)).unwrap_or(1).max(1);
        let left = args.seconds.saturating_sub(started.elapsed()) / rest;
        let length = left.saturating_sub(besides).clamp(shortest, ROUND);
        let sums = Sums::of(rows.iter().map(|row| &row.figures));
        let Row { figures, plan, random } = &mut rows[n % count];
        let plan = Plan {
            length: Some(length),
            grants: Some(
                args.cycles.map_or(GRANTS, |all| GRANTS.min(all.saturating_sub(sums.cycles))),
            ),
            seed: Some(random.u64(..)),
            ..plan.clone()
        };
        let show = show(args, started, &sums, &plan);
        let since = Instant::now();
        let storm = Storm::over(&Program::Verb(client::VERB), &*target.servers, plan.clone());
        let judgement = tokio::select! {
            judgement = storm => judgement,
            () = show => unreachable!("it shows for ever"),
        };
        if std::io::stderr().is_terminal() && !args.json {
            stderr("\r\x1b[2K");
        }
        figures.add(&judgement, target.may_overlap());
        figures.seconds += since.elapsed().as_secs_f64();
        besides = since.elapsed().saturating_sub(length);
        figures.repeat = repeat(args, target, figures);
        let hosts = target.servers.hosts().len();
        // A page with a timeline for each fault is too long: the last row is of all of them.
        if args.report.is_some() && (!figures.is_clean() || n % count == count - 1) {
            figures.timeline = Some(Timeline::of(&judgement, plan.processes, plan.tasks, hosts));
        }
        n += 1;
        let is_clean = figures.is_clean();
        if !is_clean {
            figures.windows = window::of_storm(&judgement, target.may_overlap(), hosts);
        }
        let enough = args.cycles.is_some_and(|cycles| sums.cycles + judgement.grants() >= cycles);
        let over = n >= count && started.elapsed() + shortest >= args.seconds;
        if !is_clean || enough || over {
            return rows.into_iter().map(|row| row.figures).filter(|f| f.rounds > 0).collect();
        }
    }
}

/// The faults of each row, by the name of the row.
fn themes(args: &Torture, plan: Plan) -> Vec<(String, Plan)> {
    let mut themes = Vec::new();
    if args.each {
        for fault in &plan.faults {
            let alone =
                Plan { faults: vec![*fault], server_faults: Some(Vec::new()), ..plan.clone() };
            themes.push((fault.name().to_owned(), alone));
        }
        for fault in plan.server_faults.iter().flatten() {
            let server_faults = Some(vec![fault.clone()]);
            let alone = Plan { faults: Vec::new(), server_faults, ..plan.clone() };
            themes.push((fault.clone(), alone));
        }
    }
    let name = if args.faults.is_empty() { ALL.to_owned() } else { args.faults.join(",") };
    themes.push((name, plan));
    themes
}

/// Shows on a terminal how far it is, until it is dropped.
async fn show(args: &Torture, started: Instant, before: &Sums, plan: &Plan) {
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

/// The command that repeats a row.
fn repeat(args: &Torture, target: &Target, row: &Figures) -> String {
    let mut words = vec!["lockkeeper torture".to_owned()];
    words.push(match target.local {
        Some(name) => format!("--local {name}"),
        None => target.shown().to_owned(),
    });
    let seconds = if args.each { row.seconds.ceil() } else { args.seconds.as_secs_f64() };
    words.push(format!("--seconds {seconds}s --seed {}", row.seed));
    let numbers = [
        ("clients", args.clients, 4),
        ("tasks", args.tasks, 32),
        ("keys", args.keys, 4),
        ("rate", args.rate, 1),
    ];
    for (name, value, _) in numbers.iter().filter(|(_, value, usual)| value != usual) {
        words.push(format!("--{name} {value}"));
    }
    if args.ttl != Duration::from_secs(2) {
        words.push(format!("--ttl {}ms", args.ttl.as_millis()));
    }
    if let Some(cycles) = args.cycles {
        words.push(format!("--cycles {cycles}"));
    }
    if !args.kinds.is_empty() {
        let kind = |(kind, weight): &(Kind, u8)| match weight {
            1 => kind.name().to_owned(),
            _ => format!("{}={weight}", kind.name()),
        };
        let kinds: Vec<_> = args.kinds.iter().map(kind).collect();
        words.push(format!("--kinds {}", kinds.join(",")));
    }
    if row.fault != ALL {
        words.push(format!("--faults {}", row.fault));
    }
    if let Some(bug) = args.mutant {
        words.push(format!("--mutant {}", bug.name()));
    }
    words.join(" ")
}
