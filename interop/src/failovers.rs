//! Both sides behind the same sentinels, while other servers become the master.
//!
//! Redis replicates after it answers, so a failover may lose a grant, and then there are two
//! holders. What we promise is checked: in planned failovers, and soon after a crash, no two of
//! ours hold together; no overlap lasts longer than a lost grant can last; our fences rise; when a
//! failover is over, there are no overlaps and no lock is found gone. Everything else is counted.
//!
//! With each failover, one more of ours joins, which never knew the old master: if the others
//! stayed there, they would collide with it.

use std::fmt::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper_testkit::server::redis::{Sentinels, Server};
use lockkeeper_testkit::server::{eventually, eventually_within};

use crate::arbiter::Arbiter;
use crate::driver::{Driver, Outcome, Program};
use crate::resource::{Side, Tally};

/// The variable that sets the number of failovers; the default is one.
const COUNT: &str = "LOCKKEEPER_INTEROP_FAILOVERS";

/// Long enough for a failover after a crash. A waiter of Redisson that misses a release sleeps this
/// long.
const LEASE: Duration = Duration::from_secs(6);

/// How long after a new master was named a section may still last that was lost in a crash.
const FOLLOW: Duration = Duration::from_millis(2500);

/// How long the calm after a failover is observed.
const CALM: Duration = Duration::from_secs(2);

/// How long it may take until every driver had a turn at the new master.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long sentinels may take. On a busy machine they may disagree several times, and then pause.
const ELECTION: Duration = Duration::from_secs(120);

/// After how long a planned failover must have been given up.
const GIVEN_UP: Duration = Duration::from_secs(15);

const NAME: &str = "failover";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// `SENTINEL FAILOVER`
    Planned,
    /// `SIGKILL` for the master, which comes back without its data.
    Crash,
}

struct Failover {
    cause: Cause,
    began: Instant,
    /// When the sentinels named the new master.
    named: Instant,
    /// When every driver had entered again.
    over: Instant,
}

/// Runs the failovers, and reports what was observed.
pub(crate) fn failovers(
    servers: &Sentinels,
    (ours, theirs): (&Program, &Program),
    processes: usize,
) -> Outcome<String> {
    let count = match std::env::var(COUNT) {
        Ok(count) => count.parse().map_err(|_| format!("{COUNT}={count} is no number"))?,
        Err(_) => 1,
    };
    let arbiter = Arbiter::patient();
    let hammer = format!("endure mutex {NAME} {} {} 10", u32::MAX >> 1, arbiter.port());
    let mut drivers = ours.start_many(LEASE, processes)?;
    drivers.extend(theirs.start_many(LEASE, processes)?);
    drivers.iter_mut().try_for_each(|driver| driver.tell(&hammer))?;
    until_all_entered(servers, &arbiter, (processes, processes), &drivers)?;
    let mut seen = Vec::new();
    for n in 0..count {
        let cause = if n % 2 == 0 { Cause::Planned } else { Cause::Crash };
        let began = Instant::now();
        let old = fail_over(servers, cause);
        let named = Instant::now();
        let mut newcomer = ours.start(LEASE)?;
        newcomer.tell(&hammer)?;
        drivers.push(newcomer);
        until_settled(servers, old);
        until_all_entered(servers, &arbiter, (processes + n + 1, processes), &drivers)?;
        seen.push(Failover { cause, began, named, over: Instant::now() });
        sleep(CALM);
    }
    judge(&arbiter.tally(NAME), &seen)
}

/// Returns when the sentinels name another master, with the old one.
fn fail_over(servers: &Sentinels, cause: Cause) -> &Server {
    let old = servers.master();
    depose(servers, old, cause);
    until_replaced(servers, old, cause);
    old
}

/// Makes a failover begin.
pub(crate) fn depose(servers: &Sentinels, master: &Server, cause: Cause) {
    match cause {
        Cause::Planned => eventually("the failover begins", || {
            let answer = servers.sentinels[0].ask(&["SENTINEL", "FAILOVER", "main"]);
            (answer == "OK").then_some(()).ok_or(answer)
        }),
        Cause::Crash => master.kill(),
    }
}

/// Returns when the sentinels name another master. They may give up a planned failover, and do not
/// begin again by themselves.
pub(crate) fn until_replaced(servers: &Sentinels, old: &Server, cause: Cause) {
    let mut asked = Instant::now();
    eventually_within(ELECTION, "another server is the master", || {
        let now = servers.master().port();
        if now == old.port() && cause == Cause::Planned && asked.elapsed() > GIVEN_UP {
            servers.sentinels[0].ask(&["SENTINEL", "FAILOVER", "main"]);
            asked = Instant::now();
        }
        (now != old.port()).then_some(()).ok_or(format!("still {now}"))
    });
}

/// Returns when all others follow the new master; before that, the next failover would lose more.
pub(crate) fn until_settled(servers: &Sentinels, old: &Server) {
    if old.pid().is_none() {
        old.restart();
    }
    eventually("all others follow", || {
        let info = servers.master().ask(&["INFO", "replication"]);
        (info.matches("state=online").count() == 2).then_some(()).ok_or(info)
    });
}

/// Waits until every driver has entered: its lock then is one of the current master, and it has
/// left all others.
fn until_all_entered(
    servers: &Sentinels,
    arbiter: &Arbiter,
    wanted: (usize, usize),
    drivers: &[Driver],
) -> Outcome {
    let started = Instant::now();
    loop {
        let active = arbiter.active(NAME, started);
        if active == wanted {
            return Ok(());
        }
        if let Some(answer) = drivers.iter().find_map(Driver::said) {
            return Err(format!("a driver gave up: {answer}"));
        }
        if started.elapsed() > PATIENCE {
            return Err(format!(
                "only {active:?} of {wanted:?} entered anew; {}",
                who_holds(servers, arbiter, started)
            ));
        }
        sleep(Duration::from_millis(20));
    }
}

/// Finds out what blocks the others, checked twice, to distinguish a renewed lock from an abandoned
/// one.
fn who_holds(servers: &Sentinels, arbiter: &Arbiter, since: Instant) -> String {
    let mut text = String::new();
    for pause in [Duration::ZERO, LEASE / 2] {
        sleep(pause);
        let master = servers.master();
        let fields = master.ask(&["HGETALL", NAME]);
        let field = fields.lines().next().unwrap_or_default();
        // Ours record the holder next to the lock.
        let noted = master.ask(&["HGET", &format!("lockkeeper:{{{NAME}}}"), "held"]);
        let side = match noted.split('\t').nth(2) {
            _ if field.is_empty() => "nobody",
            Some(ours) if ours == field => "ours",
            _ => "theirs",
        };
        let left = master.ask(&["PTTL", NAME]);
        let channel = format!("redisson_lock__channel:{{{NAME}}}");
        let listening = master.ask(&["PUBSUB", "NUMSUB", &channel]).replace('\n', " ");
        let _ = write!(
            text,
            "held by {side} ({fields:?}, {left} ms left, ours last {noted:?}, {listening} listen); "
        );
    }
    for trouble in arbiter.tally(NAME).troubles.iter().filter(|trouble| trouble.at > since) {
        let after = trouble.at - since;
        let _ = write!(text, "{after:.1?}: {:?} {} {}; ", trouble.side, trouble.what, trouble.text);
    }
    text
}

fn judge(tally: &Tally, seen: &[Failover]) -> Outcome<String> {
    let during =
        |at: Instant| seen.iter().find(|failover| failover.began <= at && at < failover.over);
    let mut faults = Vec::new();
    let mut counts = [Counts::default(), Counts::default()];
    for wrong in &tally.wrongs {
        let Some(failover) = during(wrong.at).filter(|_| !wrong.sides.is_empty()) else {
            faults.push(wrong.text.clone());
            continue;
        };
        let ours = wrong.sides.iter().filter(|side| **side == Side::Ours).count();
        // Redisson continues until its section or its lease ends, at whichever server that was.
        let late = wrong.at > failover.named + if ours > 1 { FOLLOW } else { LEASE };
        if late || ours > 1 && failover.cause == Cause::Planned {
            faults.push(format!("over a failover ({:?}) {}", failover.cause, wrong.text));
        }
        let after = wrong.at - failover.began;
        eprintln!("{after:.1?} into a failover ({:?}): {}", failover.cause, wrong.text);
        counts[failover.cause as usize].overlap(&wrong.sides, after);
    }
    for trouble in &tally.troubles {
        match during(trouble.at) {
            Some(failover) => {
                let (after, side) = (trouble.at - failover.began, trouble.side);
                let (cause, text) = (failover.cause, &trouble.text);
                eprintln!("{after:.1?} into a failover ({cause:?}), {side:?}: {text}");
                counts[cause as usize].trouble(side, &trouble.what);
            }
            None if trouble.what == "lost" || trouble.side == Side::Ours => {
                faults.push(format!("{:?} in the calm: {}", trouble.side, trouble.text));
            }
            None => eprintln!("theirs, in the calm: {}", trouble.text),
        }
    }
    let mut text = format!("{} + {} sections", tally.ours, tally.theirs);
    for (cause, words) in [(Cause::Planned, "planned"), (Cause::Crash, "after a crash")] {
        let times = seen.iter().filter(|failover| failover.cause == cause);
        let longest = times.clone().map(|failover| failover.over - failover.began).max();
        let _ = write!(
            text,
            "; {} failovers {words} (over in {:.0} s): {}",
            times.count(),
            longest.unwrap_or_default().as_secs_f64(),
            counts[cause as usize]
        );
    }
    match faults.first() {
        None => Ok(format!("{text}; otherwise 0 overlaps and no lock lost, our fences rise")),
        Some(first) => Err(format!("{} faults, the first: {first}; {text}", faults.len())),
    }
}

/// The results of the failovers with one cause.
#[derive(Debug, Default)]
struct Counts {
    /// When two of ours, one of each, and two of theirs were inside, in seconds after it began.
    overlaps: [Vec<f64>; 3],
    /// Releases of ours and of theirs that found their lock gone.
    lost: [usize; 2],
    /// Locks of ours and of theirs that were still held after their release.
    twice: [usize; 2],
    /// Other calls of ours and of theirs that failed.
    failed: [usize; 2],
}

impl Counts {
    fn overlap(&mut self, sides: &[Side], after: Duration) {
        let Some((new, inside)) = sides.split_first() else { return };
        for other in inside {
            self.overlaps[*new as usize + *other as usize].push(after.as_secs_f64());
        }
    }

    fn trouble(&mut self, side: Side, what: &str) {
        let which = match what {
            "lost" => &mut self.lost,
            "twice" => &mut self.twice,
            _ => &mut self.failed,
        };
        which[side as usize] += 1;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [ours, mixed, theirs] = &self.overlaps;
        for (pair, times) in [("ours", ours), ("ours and theirs", mixed), ("theirs", theirs)] {
            write!(f, "{} overlaps of {pair}", times.len())?;
            if let (Some(first), Some(last)) =
                (times.iter().copied().reduce(f64::min), times.iter().copied().reduce(f64::max))
            {
                write!(f, " (after {first:.1} to {last:.1} s)")?;
            }
            write!(f, ", ")?;
        }
        let [lost, twice, failed] =
            [self.lost, self.twice, self.failed].map(|[ours, theirs]| format!("{ours} + {theirs}"));
        write!(f, "{lost} locks gone, {twice} granted twice, {failed} calls failed")
    }
}
