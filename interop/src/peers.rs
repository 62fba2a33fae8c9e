//! Every client alone, ours among them, under the faults that no lease survives: what is lost without
//! fences, and what with them?
//!
//! Nobody is judged here but ours: for the others the table says what was seen. A client does well
//! if it passes its fence along, or refuses in time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::arbiter::Arbiter;
use crate::driver::{Outcome, Program};
use crate::pairs::Run;
use crate::store::Store;

/// The lease or session of every client.
const LEASE: Duration = Duration::from_secs(2);

/// How many processes compete, and how many of them may be stopped at a time.
const PROCESSES: usize = 5;
const STOPPED: usize = 2;

/// The variable that sets how long each client is paused again and again, in seconds.
const SECONDS: &str = "LOCKKEEPER_INTEROP_SECONDS";

/// How long a client that was told wrongly that it holds a lock takes to say so.
const WORD: Duration = Duration::from_secs(3);

/// How long the next client may take to get a lock whose holders are dead.
const PATIENCE: Duration = Duration::from_secs(60);

const NAME: &str = "peers";

type Scene = (&'static str, fn(&Run) -> Outcome);

const SCENES: [Scene; 2] = [("pauses", pauses), ("queue", queue)];

/// Runs these scenes, or all of them, and prints what was seen.
pub(crate) fn compare(run: &Run, wanted: &[&str]) -> Outcome {
    if let Some(stranger) = wanted.iter().find(|w| !SCENES.iter().any(|(name, _)| name == *w)) {
        let known: Vec<_> = SCENES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no scene is called {stranger:?}; there are {}", known.join(", ")));
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.contains(&name);
    SCENES.iter().filter(|(name, _)| is_wanted(name)).try_for_each(|(_, scene)| scene(run))
}

/// Processes are stopped for longer than their leases, and continued.
fn pauses(run: &Run) -> Outcome {
    println!(
        "| engine | client | updates | pauses | overlaps | lost | refused by fence | lost with fences |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let etcd = Store::etcd()?;
    paused("etcd", "lockkeeper", "mutex", &run.ours(&etcd.url()))?;
    paused(
        "etcd",
        "Go `concurrency.Mutex`, its revision as the fence",
        "mutex",
        &run.go(&etcd.hosts()),
    )?;
    drop(etcd);
    let redis = Store::redis();
    let redisson = run.java("RedissonDriver", &redis.hosts());
    paused("Redis", "lockkeeper", "mutex", &run.ours(&redis.url()))?;
    paused("Redis", "Redisson `RLock`", "mutex", &redisson)?;
    paused("Redis", "Redisson `RFencedLock`", "fenced", &redisson)?;
    paused("Redis", "redis-py `Lock`", "mutex", &run.python("redis-py", &redis.hosts()))?;
    paused("Redis", "node-redlock", "mutex", &run.node(&redis.hosts()))?;
    drop(redis);
    let zookeeper = Store::zookeeper()?;
    let path = format!("{}/locks", zookeeper.hosts());
    paused("ZooKeeper", "lockkeeper", "mutex", &run.ours(&zookeeper.url()))?;
    paused("ZooKeeper", "Curator `InterProcessMutex`", "mutex", &run.java("CuratorDriver", &path))?;
    paused("ZooKeeper", "kazoo `Lock`", "mutex", &run.python("kazoo", &path))
}

/// Prints a row. Ours must lose nothing with fences.
fn paused(engine: &str, client: &str, kind: &str, program: &Program) -> Outcome {
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let arbiter = Arbiter::slow();
    let name = format!("{NAME}-{kind}");
    let hammer = format!("hammer {kind} {name} {} {} 5", u32::MAX >> 1, arbiter.port());
    let mut drivers = program.start_many(LEASE, PROCESSES)?;
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
                *driver = program.start(LEASE)?;
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
    println!(
        "| {engine} | {client} | {} | {count} | {} | {} ({:.2} %) | {} | {} |",
        tally.written,
        tally.wrongs.iter().filter(|wrong| !wrong.sides.is_empty()).count(),
        tally.lost,
        100.0 * tally.lost as f64 / tally.written.max(1) as f64,
        with_fences.0,
        with_fences.1,
    );
    match drivers[0].is_ours() && (tally.lost_fenced > 0 || tally.written == 0) {
        true => Err(format!("ours lost {} of {} updates", tally.lost_fenced, tally.written)),
        false => Ok(()),
    }
}

/// The lease or session of a client ends while it waits, because it is stopped.
fn queue(run: &Run) -> Outcome {
    println!("| engine | waiter | once it continues, beside the holder |");
    println!("|---|---|---|");
    let etcd = Store::etcd()?;
    let ours = run.ours(&etcd.url());
    overslept("etcd", "lockkeeper", &etcd, &ours, &ours)?;
    overslept("etcd", "Go `concurrency.Mutex`", &etcd, &ours, &run.go(&etcd.hosts()))?;
    drop(etcd);
    let zookeeper = Store::zookeeper()?;
    let (ours, path) = (run.ours(&zookeeper.url()), format!("{}/locks", zookeeper.hosts()));
    overslept("ZooKeeper", "lockkeeper", &zookeeper, &ours, &ours)?;
    let curator = run.java("CuratorDriver", &path);
    overslept("ZooKeeper", "Curator `InterProcessMutex`", &zookeeper, &ours, &curator)?;
    overslept("ZooKeeper", "kazoo `Lock`", &zookeeper, &ours, &run.python("kazoo", &path))
}

fn overslept(
    engine: &str,
    client: &str,
    store: &Store,
    ours: &Program,
    theirs: &Program,
) -> Outcome {
    let (mut holder, mut next) = (ours.start(LEASE)?, ours.start(LEASE)?);
    let mut waiter = theirs.start(LEASE)?;
    let name = format!("{NAME}-{}", fastrand::u32(..));
    holder.expect(&format!("acquire mutex {name}"), "held")?;
    waiter.tell(&format!("acquire mutex {name}"))?;
    store.until_waited_for(&name, 1)?;
    waiter.stop(true);
    holder.expect(&format!("release mutex {name}"), "released")?;
    // Only once the waiter's place is gone.
    next.tell(&format!("acquire mutex {name}"))?;
    next.answer(PATIENCE)?;
    waiter.stop(false);
    let seen = waiter.answer(WORD);
    let text = match &seen {
        Ok(answer) => format!("**told that it holds the lock** (`{answer}`)"),
        Err(why) if why.contains("did not answer") => "waits on".to_owned(),
        Err(_) => "refused, with an error".to_owned(),
    };
    println!("| {engine} | {client} | {text} |");
    match waiter.is_ours() && seen.is_ok() {
        true => Err("ours was told that it holds the lock of another".to_owned()),
        false => Ok(()),
    }
}
