//! Each library alone behind sentinels, while other servers become the master.
//!
//! Redis replicates after it answers, so a failover may lose a grant, and then there are two
//! holders. A client enters a long section just before each failover, and the others ask for the
//! lock until it is over. Three causes take turns: a planned failover, a crash, and a crash just
//! after the replicas lost their connections, in which the last grant is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper_testkit::server::redis::Sentinels;

use super::{NAME, Peer, Verdict};
use crate::arbiter::Arbiter;
use crate::driver::{Driver, Outcome};
use crate::failovers::{Cause, depose, until_replaced, until_settled};
use crate::pairs::Run;
use crate::resource::Tally;

/// The variable that sets the number of failovers for each library.
const COUNT: &str = "LOCKKEEPER_INTEROP_FAILOVERS";

/// How many processes compete. They pause for up to this many milliseconds after each section, so
/// that the lock is mostly free.
const PROCESSES: usize = 4;
const PAUSE: u64 = 200;

/// The section during a failover. It is longer than a failover, and ends before its lease.
const SECTION: Duration = Duration::from_secs(6);
const LEASE: Duration = Duration::from_secs(9);

/// How long replicas may be cut off before a crash. Sentinels do not notice it.
const CUT_OFF: Duration = Duration::from_millis(700);

/// How long it may take until every process had a turn at the new master.
const PATIENCE: Duration = Duration::from_secs(45);

#[derive(Debug, Clone, Copy)]
enum Failover {
    Planned,
    Crash,
    CrashCutOff,
}

const FAILOVERS: [Failover; 3] = [Failover::Planned, Failover::Crash, Failover::CrashCutOff];

pub(super) fn sentinel(run: &Run) -> Outcome<Vec<Verdict>> {
    let count = match std::env::var(COUNT) {
        Ok(count) => count.parse().map_err(|_| format!("{COUNT}={count} is no number"))?,
        Err(_) => 6,
    };
    println!(
        "| client | with overlaps: planned | crash | crash, replicas cut off | entries beside a holder | updates lost | refused by fence | lost with fences | calls failed | processes stuck |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    (0..peers(run, "").len()).map(|n| alone(run, n, count)).collect()
}

fn peers(run: &Run, url: &str) -> Vec<Peer> {
    let engine = "Redis, Sentinel";
    vec![
        Peer::new(engine, "lockkeeper", run.ours(url)),
        Peer::new(
            engine,
            "lockkeeper, `wait_replicas=2`",
            run.ours(&format!("{url}?wait_replicas=2")),
        ),
        Peer::new(engine, "Redisson `RLock`", run.java("RedissonDriver", url)),
        Peer::new(engine, "redis-py `Lock`", run.python("redis-py", url)),
        Peer::new(engine, "node-redlock", run.node(url)),
        Peer::new(engine, "redsync", run.go("redsync", url)),
    ]
}

/// Prints a row. Ours must lose nothing with fences.
fn alone(run: &Run, n: usize, count: usize) -> Outcome<Verdict> {
    let servers = Sentinels::start();
    let peer = peers(run, &servers.url()).swap_remove(n);
    let (arbiter, long) = Arbiter::arranged(SECTION);
    let order = format!("endure mutex {NAME} {} {} {PAUSE}", u32::MAX >> 1, arbiter.port());
    let start = || -> Outcome<Driver> {
        let mut driver = peer.program.start(LEASE)?;
        driver.tell(&order)?;
        Ok(driver)
    };
    let mut drivers = (0..PROCESSES).map(|_| start()).collect::<Outcome<Vec<_>>>()?;
    if until_all_entered(&arbiter) < PROCESSES {
        return Err(format!("{}: not every process got the lock", peer.client));
    }
    // Of each kind of failover, how many there were, and how many let a second holder in.
    let (mut seen, mut stuck) = ([(0, 0); 3], 0);
    for failover in FAILOVERS.into_iter().cycle().take(count) {
        let before = arbiter.look(NAME);
        fail_over(&servers, failover, &long);
        let entered = until_all_entered(&arbiter);
        let (all, with_overlaps) = &mut seen[failover as usize];
        *all += 1;
        *with_overlaps += usize::from(arbiter.look(NAME).overlaps() > before.overlaps());
        if entered < PROCESSES {
            stuck += PROCESSES - entered;
            drivers = (0..PROCESSES).map(|_| start()).collect::<Outcome<Vec<_>>>()?;
            until_all_entered(&arbiter);
        }
    }
    drop(drivers);
    let tally = arbiter.tally(NAME);
    print(&peer, seen, &tally, stuck);
    if peer.is_ours() && tally.lost_fenced > 0 {
        return Err(format!("ours lost {} updates", tally.lost_fenced));
    }
    let sum: usize = seen.iter().map(|(_, with_overlaps)| with_overlaps).sum();
    let said = format!("two holders in {sum} of {count} failovers");
    Ok(peer.verdict(match (sum, tally.fenced) {
        (0, _) => said,
        (_, 0) => format!("{said}, **{} lost**, has no fence", tally.lost),
        (..) => format!("{said}, with fences {} lost", tally.lost_fenced),
    }))
}

fn print(peer: &Peer, seen: [(usize, usize); 3], tally: &Tally, stuck: usize) {
    let [planned, crash, cut_off] =
        seen.map(|(all, with_overlaps)| format!("{with_overlaps} of {all}"));
    let with_fences = match tally.fenced {
        0 => "no fence | –".to_owned(),
        _ => format!("{} | {}", tally.refused, tally.lost_fenced),
    };
    println!(
        "| {} | {planned} | {crash} | {cut_off} | {} | {} | {with_fences} | {} | {stuck} |",
        peer.client,
        tally.overlaps(),
        tally.lost,
        tally.troubles.len()
    );
}

/// Returns when the failover is over and the section that began before it as well.
fn fail_over(servers: &Sentinels, failover: Failover, long: &AtomicBool) {
    let old = servers.master();
    let replicas = servers.servers.iter().filter(|server| server.port() != old.port());
    if let Failover::CrashCutOff = failover {
        // What was sent to a replica that is only stopped, it would still read.
        replicas.clone().for_each(|replica| replica.pause());
        old.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    }
    let began = Instant::now();
    long.store(true, Ordering::SeqCst);
    // Who waits for replicas is not let in while they are cut off.
    while long.load(Ordering::SeqCst) && began.elapsed() < CUT_OFF {
        sleep(Duration::from_millis(1));
    }
    long.store(false, Ordering::SeqCst);
    let cause = if let Failover::Planned = failover { Cause::Planned } else { Cause::Crash };
    depose(servers, old, cause);
    replicas.for_each(|replica| replica.resume());
    until_replaced(servers, old, cause);
    eprintln!("{failover:?}: another server is the master after {:.1?}", began.elapsed());
    until_settled(servers, old);
    sleep(SECTION.saturating_sub(began.elapsed()));
}

/// Waits until every process has entered again; returns how many have.
fn until_all_entered(arbiter: &Arbiter) -> usize {
    let started = Instant::now();
    loop {
        let (ours, theirs) = arbiter.active(NAME, started);
        if ours + theirs == PROCESSES || started.elapsed() > PATIENCE {
            return ours + theirs;
        }
        sleep(Duration::from_millis(20));
    }
}
