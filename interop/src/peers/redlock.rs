//! One of three servers of a Redlock has a clock that jumps, or comes back without its data.
//!
//! The first client gets the lock of two servers, because the third is down. When one of the two
//! forgets it, the second client gets a majority as well. Then the second writes, and the first.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper_testkit::WallClock;
use lockkeeper_testkit::server::redis::{Server, VOLATILE};

use super::{LEASE, NAME, Peer, Verdict};
use crate::driver::{Driver, Outcome};
use crate::pairs::Run;
use crate::resource::{Side, Tally};

/// How often each fault is tried with each client.
const ROUNDS: u64 = 5;

/// Longer than a round, so that no lease ends by itself.
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
enum Fault {
    Clock,
    Empty,
}

pub(super) fn redlock(run: &Run) -> Outcome<Vec<Verdict>> {
    println!(
        "| one of three servers | client | rounds | a second client is let in | updates lost | refused by fence | lost with fences |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut verdicts: Vec<Verdict> = Vec::new();
    for fault in [Fault::Clock, Fault::Empty] {
        for (n, peer) in peers(run, "").iter().enumerate() {
            let verdict = faulty(run, fault, n, peer)?;
            match verdicts.get_mut(n) {
                Some(first) => first.text = format!("{}; {}", first.text, verdict.text),
                None => verdicts.push(verdict),
            }
        }
    }
    Ok(verdicts)
}

fn peers(run: &Run, hosts: &str) -> Vec<Peer> {
    let engine = "Redlock, three servers";
    vec![
        Peer::new(engine, "lockkeeper", run.ours(&format!("redlock://{hosts}"))),
        Peer::new(engine, "node-redlock", run.node(hosts)),
        Peer::new(engine, "redsync", run.go("redsync", hosts)),
        Peer::new(engine, "rslock", run.rust(hosts)),
    ]
}

fn faulty(run: &Run, fault: Fault, n: usize, peer: &Peer) -> Outcome<Verdict> {
    let tallies = (0..ROUNDS).map(|_| round(run, fault, n)).collect::<Outcome<Vec<_>>>()?;
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let (let_in, lost) = (sum(|tally| tally.overlaps() as u64), sum(|tally| tally.lost));
    let lost_fenced = sum(|tally| tally.lost_fenced);
    let is_fenced = tallies.iter().any(|tally| tally.fenced > 0);
    let with_fences = match is_fenced {
        false => ("no fence".to_owned(), "–".to_owned()),
        true => (sum(|tally| tally.refused).to_string(), lost_fenced.to_string()),
    };
    let words = match fault {
        Fault::Clock => "its clock jumps ahead",
        Fault::Empty => "restarts without its data",
    };
    println!(
        "| {words} | {} | {ROUNDS} | {let_in} | {lost} | {} | {} |",
        peer.client, with_fences.0, with_fences.1
    );
    if peer.is_ours() && lost_fenced > 0 {
        return Err("an update of ours was lost".to_owned());
    }
    Ok(peer.verdict(match (lost, is_fenced) {
        (0, _) => format!("{words}: lost nothing"),
        (_, true) => format!("{words}: lost {lost} of {ROUNDS}, with fences none"),
        (_, false) => format!("{words}: **lost {lost}** of {ROUNDS}, has no fence"),
    }))
}

/// One fault, at new servers.
fn round(run: &Run, fault: Fault, n: usize) -> Outcome<Tally> {
    let clock = WallClock::new();
    let servers = [Server::start(), Server::with_clock(&clock, &VOLATILE), Server::start()];
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let peer = peers(run, &hosts.join(",")).swap_remove(n);
    let side = if peer.is_ours() { Side::Ours } else { Side::Theirs };
    let mut drivers = peer.program.start_many(LONG, 2)?;
    let [first, second] = &mut drivers[..] else { unreachable!("two were started") };
    servers[2].kill();
    let fence =
        insist(first, LEASE * 10)?.ok_or("the first did not get the lock of two servers")?;
    run.arbiter.enter(NAME, 1, side, fence);
    servers[2].restart();
    if attempt(second)?.is_some() {
        return Err(format!("{}: the second got a lock that was held", peer.client));
    }
    match fault {
        Fault::Clock => clock.ahead(LONG * 10),
        Fault::Empty => {
            servers[1].kill();
            servers[1].restart();
        }
    }
    if let Some(fence) = insist(second, LEASE * 10)? {
        run.arbiter.enter(NAME, 2, side, fence);
        run.arbiter.leave(NAME, 2);
    }
    run.arbiter.leave(NAME, 1);
    Ok(run.arbiter.tally(NAME))
}

/// Asks again until this time has passed: a client whose connection to a server was just lost may
/// need another try.
fn insist(driver: &mut Driver, limit: Duration) -> Outcome<Option<u64>> {
    let started = Instant::now();
    loop {
        match attempt(driver) {
            Ok(Some(fence)) => return Ok(Some(fence)),
            seen if started.elapsed() >= limit => return seen,
            _ => sleep(Duration::from_millis(50)),
        }
    }
}

/// The fence of a lock, 0 if there is none; nothing if the lock is busy.
fn attempt(driver: &mut Driver) -> Outcome<Option<u64>> {
    let answer = driver.ask(&format!("try mutex {NAME}"))?;
    Ok(match answer.split_once(' ') {
        Some(("held", fence)) => Some(fence.parse().unwrap_or(0)),
        _ => None,
    })
}
