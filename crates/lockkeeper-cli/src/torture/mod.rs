//! `torture`: does an engine keep its promises while clients, connections and servers fail?
//!
//! The test kit has the parts: a [storm](lockkeeper_testkit::storm) of real client processes, the
//! history checker, the simulation and the seeded bugs. Here are the targets, the rounds, and what a
//! user sees of them. A long run consists of rounds, each with new processes: so memory is bounded,
//! and recovery and leaks are checked many times.

mod client;
mod figures;
mod report;
mod rounds;
mod simulated;
mod target;
mod window;

use std::io::{self, BufRead, IsTerminal};
use std::path::Path;

use lockkeeper_testkit::storm::{Kind, Plan};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Torture;
use crate::exit::{self, Failure};
use crate::output::{human, print, stderr, tell};

pub(crate) use client::{VERB, main as client};
pub(crate) use target::LOCAL;

use figures::Report;
use target::Target;

pub(crate) fn torture(args: &Torture) -> exit::Outcome {
    let seed = args.seed.unwrap_or_else(random);
    // A run may take long, and its result must not be lost for a wrong path.
    if let Some(path) = &args.report {
        let opened = std::fs::File::options().create(true).append(true).open(path);
        opened.map_err(|error| unwritten(path, &error))?;
    }
    let is_simulated =
        args.simulate || (args.mutant.is_some() && args.url.is_none() && args.local.is_empty());
    // A simulation has a runtime of its own.
    let report = match is_simulated {
        true => Report::new(vec![simulated::run(args, seed)]),
        false => real(args, seed)?,
    };
    let text = if args.json { report.to_json() } else { report.to_text() };
    print(&text)?;
    if let Some(path) = &args.report {
        std::fs::write(path, report::page(&report)).map_err(|error| unwritten(path, &error))?;
    }
    Ok(u8::from(!report.is_clean()))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::own(format_args!("write {}", path.display()), error)
}

/// Runs on several threads: proxies go on while a server is started again.
fn real(args: &Torture, seed: u64) -> Result<Report, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::own("start", error))?.block_on(async {
        tokio::select! {
            // Listens for signals before there are clients.
            biased;
            code = interrupted() => Err(Failure::silent(code?)),
            report = each(args, seed) => report,
        }
    })
}

async fn each(args: &Torture, seed: u64) -> Result<Report, Failure> {
    let mut rows = Vec::new();
    for name in Target::names(args) {
        let target = Target::open(args, name).await?;
        let plan = target.plan(args)?;
        announce(args, &target, &plan, seed);
        if !target.is_here() && !args.yes {
            confirm()?;
        }
        target.reach().await?;
        rows.extend(rounds::run(args, &target, plan, seed).await);
    }
    Ok(Report::new(rows))
}

/// Says what will happen, before it does.
fn announce(args: &Torture, target: &Target, plan: &Plan, seed: u64) {
    if args.json {
        return;
    }
    let names = |names: Vec<&str>| match names[..] {
        [] => "none".to_owned(),
        _ => names.join(", "),
    };
    let kinds = Kind::ALL.into_iter().filter(|kind| plan.kinds.contains(kind));
    let kinds = kinds.map(Kind::name).collect();
    let faults = plan.faults.iter().map(|fault| fault.name()).collect();
    let (clients, seconds) = (args.clients, human(args.seconds));
    tell(format_args!("torture {} for {seconds}, seed {seed}", target.shown()));
    tell(format_args!("{clients} client processes use locks of these kinds: {}", names(kinds)));
    tell(format_args!("all keys start with {}; no lock is left at the end", plan.prefix));
    tell(format_args!("faults of the clients and their connections: {}", names(faults)));
    if let Some(why) = target.no_proxy() {
        tell(format_args!("no faults of connections: {why}"));
    }
    match plan.server_faults.as_deref() {
        Some([]) | None => tell("nothing is done to the servers"),
        Some(faults) => {
            let faults = faults.iter().map(String::as_str).collect();
            tell(format_args!("faults of the servers: {}", names(faults)));
        }
    }
}

fn confirm() -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "these servers are not on this machine, and there is no terminal to ask at; say --yes",
        ));
    }
    stderr("lockkeeper: these servers are not on this machine. Put this load on them? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|e| Failure::own("read an answer", e))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(1, "nothing was done")),
    }
}

/// The exit code for a signal that ends the run. Clients, servers and directories go with it.
async fn interrupted() -> Result<u8, Failure> {
    let listen = |kind| signal(kind).map_err(|error| Failure::own("listen for signals", error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let kind = tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
        _ = hangup.recv() => SignalKind::hangup(),
    };
    Ok(exit::signalled(kind.as_raw_value()))
}

/// Short, because it is typed again.
fn random() -> u64 {
    let mut bytes = [0; 4];
    // A seed need not be secret: without a random source, the same run is as good as another.
    let _ = getrandom::fill(&mut bytes);
    u64::from(u32::from_le_bytes(bytes))
}
