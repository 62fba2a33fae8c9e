//! Processes are stopped for longer than their leases, and continued.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{LEASE, NAME, Peer, Verdict, of_etcd, of_redis, of_zookeeper};
use crate::arbiter::Arbiter;
use crate::driver::Outcome;
use crate::pairs::Run;
use crate::store::Store;

/// How many processes compete, and how many of them may be stopped at a time.
const PROCESSES: usize = 5;
const STOPPED: usize = 2;

/// The variable that sets how long each client is paused again and again, in seconds.
const SECONDS: &str = "LOCKKEEPER_INTEROP_SECONDS";

pub(super) fn pauses(run: &Run) -> Outcome<Vec<Verdict>> {
    println!(
        "| engine | client | updates | pauses | overlaps | lost | refused by fence | lost with fences |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut verdicts = Vec::new();
    let etcd = Store::etcd()?;
    verdicts.extend(all(&of_etcd(run, &etcd.hosts()))?);
    drop(etcd);
    let redis = Store::redis();
    verdicts.extend(all(&of_redis(run, &redis.hosts()))?);
    drop(redis);
    let zookeeper = Store::zookeeper()?;
    verdicts.extend(all(&of_zookeeper(run, &zookeeper.hosts()))?);
    Ok(verdicts)
}

fn all(peers: &[Peer]) -> Outcome<Vec<Verdict>> {
    peers.iter().map(paused).collect()
}

/// Prints a row. Ours must lose nothing with fences.
fn paused(peer: &Peer) -> Outcome<Verdict> {
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let arbiter = Arbiter::slow();
    let name = format!("{NAME}-{}", peer.kind);
    let hammer = format!("hammer {} {name} {} {} 5", peer.kind, u32::MAX >> 1, arbiter.port());
    let mut drivers = peer.program.start_many(LEASE, PROCESSES)?;
    drivers.iter_mut().try_for_each(|driver| driver.tell(&hammer))?;
    let mut stopped: Vec<Option<Instant>> = vec![None; PROCESSES];
    let mut count = 0;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(seconds) {
        sleep(Duration::from_millis(fastrand::u64(50..400)));
        for (driver, until) in drivers.iter_mut().zip(&mut stopped) {
            if until.take_if(|until| *until <= Instant::now()).is_some() {
                driver.stop(false);
            }
            // One that gave up is started again, as a supervisor would do it.
            if driver.said().is_some() {
                *driver = peer.program.start(LEASE)?;
                driver.tell(&hammer)?;
                *until = None;
            }
        }
        let n = fastrand::usize(..PROCESSES);
        if stopped.iter().flatten().count() < STOPPED && stopped[n].is_none() {
            drivers[n].stop(true);
            stopped[n] = Some(Instant::now() + LEASE.mul_f64(0.5 + 2.5 * fastrand::f64()));
            count += 1;
        }
    }
    // Those that are still stopped write as well.
    drivers.iter().for_each(|driver| driver.stop(false));
    sleep(Duration::from_millis(500));
    let tally = arbiter.tally(&name);
    let with_fences = match tally.fenced {
        0 => ("no fence".to_owned(), "–".to_owned()),
        _ => (tally.refused.to_string(), tally.lost_fenced.to_string()),
    };
    let share = 100.0 * tally.lost as f64 / tally.written.max(1) as f64;
    println!(
        "| {} | {} | {} | {count} | {} | {} ({share:.2} %) | {} | {} |",
        peer.engine,
        peer.client,
        tally.written,
        tally.overlaps(),
        tally.lost,
        with_fences.0,
        with_fences.1,
    );
    if peer.is_ours() && (tally.lost_fenced > 0 || tally.written == 0) {
        return Err(format!("ours lost {} of {} updates", tally.lost_fenced, tally.written));
    }
    Ok(peer.verdict(match (tally.lost, tally.fenced, tally.lost_fenced) {
        (0, ..) => "lost nothing".to_owned(),
        (lost, 0, _) => format!("**lost {lost}** of {}, has no fence", tally.written),
        (lost, _, 0) => format!("lost {lost} of {}, with fences none", tally.written),
        (lost, _, still) => {
            format!("lost {lost} of {}, **{still} despite fences**", tally.written)
        }
    }))
}
