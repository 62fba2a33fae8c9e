//! The tests for every pair of clients. Each scene returns its figures, or what was wrong.

use std::time::{Duration, Instant};

use crate::arbiter::Arbiter;
use crate::driver::{Driver, Outcome, Program};
use crate::store::Store;

/// The lease of drivers that are killed.
pub(crate) const SHORT: Duration = Duration::from_secs(3);

/// The lease of all others: a client that waits for its end was not woken.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The limit of a wake-up, which takes milliseconds; polling takes seconds at least.
const WOKEN: Duration = Duration::from_millis(700);

/// How much longer than a lease a busy machine may need.
const SLACK: Duration = Duration::from_secs(10);

/// How long a whole contest may take.
const FIGHT: Duration = Duration::from_secs(300);

/// Kinds of lock, as the two sides name them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) ours: &'static str,
    pub(crate) theirs: &'static str,
}

/// The same word on both sides.
pub(crate) const fn kind(word: &'static str) -> Kind {
    Kind { ours: word, theirs: word }
}

/// All drivers compete for one name, and the arbiter watches.
///
/// The drivers of each side take the kinds in turn, and each of them runs this many sections, with
/// a pause of up to this many milliseconds after each.
pub(crate) fn exclusion(
    arbiter: &Arbiter,
    (ours, theirs): (&mut [Driver], &mut [Driver]),
    kinds: &[Kind],
    name: &str,
    (each_of_ours, each_of_theirs): (usize, usize),
    pause: u64,
) -> Outcome<String> {
    let port = arbiter.port();
    for (n, driver) in ours.iter_mut().enumerate() {
        let kind = kinds[n % kinds.len()].ours;
        driver.tell(&format!("hammer {kind} {name} {each_of_ours} {port} {pause}"))?;
    }
    for (n, driver) in theirs.iter_mut().enumerate() {
        let kind = kinds[n % kinds.len()].theirs;
        driver.tell(&format!("hammer {kind} {name} {each_of_theirs} {port} {pause}"))?;
    }
    for driver in ours.iter().chain(theirs.iter()) {
        driver.answer(FIGHT)?;
    }
    let tally = arbiter.tally(name);
    if let Some(first) = tally.wrongs.first() {
        return Err(format!("{} wrongs, the first: {}", tally.wrongs.len(), first.text));
    }
    let expected = (each_of_ours * ours.len(), each_of_theirs * theirs.len());
    if (tally.ours, tally.theirs) != expected {
        return Err(format!("{} and {} sections, not {expected:?}", tally.ours, tally.theirs));
    }
    let mut hand_offs = tally.hand_offs;
    if !theirs.is_empty() && hand_offs.len() < 20 {
        return Err(format!("the sides met only {} times", hand_offs.len()));
    }
    hand_offs.sort();
    let median = hand_offs.get(hand_offs.len() / 2).copied().unwrap_or_default();
    let fences = if tally.fenced > tally.ours { ", fences of both rise" } else { "" };
    Ok(format!(
        "{} + {} sections, 0 overlaps, {} hand-offs between the sides (median {}){fences}",
        tally.ours,
        tally.theirs,
        hand_offs.len(),
        milliseconds(median)
    ))
}

/// One side's release wakes the other long before a lease could end.
pub(crate) fn wake(
    store: &Store,
    (holder, held): (&mut Driver, &str),
    (waiter, wanted): (&mut Driver, &str),
    name: &str,
    rounds: usize,
) -> Outcome<String> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let name = format!("{name}-{round}");
        holder.expect(&format!("acquire {held} {name}"), "held")?;
        waiter.tell(&format!("acquire {wanted} {name}"))?;
        store.until_waited_for(&name, 1)?;
        // Ours asks once more after a moment, to be shown as a waiter; from then on it relies on being woken.
        if waiter.is_ours() && wanted == "mutex" {
            store.until_shown(&name)?;
        }
        let started = Instant::now();
        holder.expect(&format!("release {held} {name}"), "released")?;
        waiter.answer(LONG + SLACK)?;
        times.push(started.elapsed());
        waiter.expect(&format!("release {wanted} {name}"), "released")?;
    }
    times.sort();
    let median = times[times.len() / 2];
    match median <= WOKEN {
        true => Ok(milliseconds(median)),
        false => Err(format!("not woken by the release, looked again after {median:?}")),
    }
}

/// A holder that is killed is replaced within its lease or session.
pub(crate) fn death(
    store: Option<&Store>,
    (victim, held): (&Program, &str),
    (heir, wanted): (&mut Driver, &str),
    name: &str,
) -> Outcome<String> {
    let mut victim = victim.start(SHORT)?;
    victim.expect(&format!("acquire {held} {name}"), "held")?;
    heir.tell(&format!("acquire {wanted} {name}"))?;
    if let Some(store) = store {
        store.until_waited_for(name, 1)?;
    }
    let started = Instant::now();
    victim.kill();
    heir.answer(SHORT + SLACK)?;
    let took = started.elapsed();
    heir.expect(&format!("release {wanted} {name}"), "released")?;
    Ok(format!("{:.1} s", took.as_secs_f64()))
}

/// A holder can re-enter its lock, and others are granted when it has left as often.
pub(crate) fn reentrance(
    (holder, held): (&mut Driver, &str),
    (other, wanted): (&mut Driver, &str),
    name: &str,
) -> Outcome {
    let acquire = format!("acquire {held} {name}");
    let release = format!("release {held} {name}");
    holder.expect(&acquire, "held")?;
    holder.expect(&acquire, "held")?;
    other.expect(&format!("try {wanted} {name}"), "busy")?;
    holder.expect(&release, "released")?;
    other.expect(&format!("try {wanted} {name}"), "busy")?;
    holder.expect(&release, "released")?;
    other.expect(&format!("try {wanted} {name}"), "held")?;
    holder.expect(&format!("try {held} {name}"), "busy")?;
    other.expect(&format!("release {wanted} {name}"), "released")
}

/// Readers share, writers do not, and a writer may become a reader without another writer in
/// between.
///
/// Some libraries grant other readers `beside` it at once, others only when it is gone.
pub(crate) fn readers_and_writers(
    one: &mut Driver,
    other: &mut Driver,
    name: &str,
    beside: bool,
) -> Outcome {
    let order = |what: &str, kind: &str| format!("{what} {kind} {name}");
    one.expect(&order("acquire", "read"), "held")?;
    other.expect(&order("try", "read"), "held")?;
    other.expect(&order("release", "read"), "released")?;
    other.expect(&order("try", "write"), "busy")?;
    one.expect(&order("release", "read"), "released")?;
    one.expect(&order("acquire", "write"), "held")?;
    other.expect(&order("try", "read"), "busy")?;
    other.expect(&order("try", "write"), "busy")?;
    one.expect(&order("acquire", "read"), "held")?;
    one.expect(&order("release", "write"), "released")?;
    other.expect(&order("try", "write"), "busy")?;
    if beside {
        other.expect(&order("try", "read"), "held")?;
        other.expect(&order("release", "read"), "released")?;
    } else {
        other.expect(&order("try", "read"), "busy")?;
    }
    one.expect(&order("release", "read"), "released")?;
    other.expect(&order("try", "write"), "held")?;
    other.expect(&order("release", "write"), "released")
}

/// Waiters are served in order of arrival, whichever side they belong to.
pub(crate) fn order(
    store: &Store,
    (ours, theirs): (&mut [Driver], &mut [Driver]),
    kind: Kind,
    name: &str,
) -> Outcome {
    let (holder, ours) = ours.split_first_mut().expect("there is one of ours");
    holder.expect(&format!("acquire {} {name}", kind.ours), "held")?;
    let ours = ours.iter_mut().map(|driver| (driver, kind.ours));
    let theirs = theirs.iter_mut().map(|driver| (driver, kind.theirs));
    let mut waiting = Vec::new();
    for ((one, his), (other, hers)) in theirs.zip(ours) {
        waiting.extend([(one, his), (other, hers)]);
    }
    for (n, (driver, kind)) in waiting.iter_mut().enumerate() {
        driver.tell(&format!("acquire {kind} {name}"))?;
        store.until_waited_for(name, n + 1)?;
    }
    holder.expect(&format!("release {} {name}", kind.ours), "released")?;
    // Each is granted by the release of the one before, so a driver that answers now had its turn.
    for (driver, kind) in &mut waiting {
        driver.answer(LONG + SLACK)?;
        driver.expect(&format!("release {kind} {name}"), "released")?;
    }
    Ok(())
}

/// A holder is asked to release its lock, and is notified.
pub(crate) fn revocation(
    (holder, held): (&mut Driver, &str),
    other: &mut Driver,
    name: &str,
) -> Outcome {
    holder.expect(&format!("acquire {held} {name}"), "held")?;
    holder.tell(&format!("asked {name}"))?;
    other.expect(&format!("revoke {name}"), "revoked")?;
    match holder.answer(LONG + SLACK)?.as_str() {
        "asked" => holder.expect(&format!("release {held} {name}"), "released"),
        other => Err(format!("the holder was asked to give way and heard {other}")),
    }
}

/// Ours refuses what would not be exclusive, with the reason.
pub(crate) fn refusal(
    theirs: (&mut Driver, &str),
    ours: (&mut Driver, &[&str]),
    name: &str,
) -> Outcome {
    let (holder, held) = theirs;
    let (refuser, wanted) = ours;
    holder.expect(&format!("try {held} {name}"), "held")?;
    for kind in wanted {
        match refuser.ask(&format!("try {kind} {name}")) {
            Err(problem) if problem.contains("asked for as") => {}
            other => {
                return Err(format!("ours did not refuse a {kind} beside a {held}: {other:?}"));
            }
        }
    }
    holder.expect(&format!("release {held} {name}"), "released")
}

/// Theirs gets nothing that it does not understand; whether it reports busy or fails is up to it.
pub(crate) fn denial(
    (holder, held): (&mut Driver, &str),
    (other, denied): (&mut Driver, &[&str]),
    name: &str,
) -> Outcome {
    holder.expect(&format!("acquire {held} {name}"), "held")?;
    for kind in denied {
        if let Ok(answer) = other.ask(&format!("try {kind} {name}"))
            && answer != "busy"
        {
            return Err(format!("a {kind} of theirs beside our {held}: {answer}"));
        }
    }
    holder.expect(&format!("release {held} {name}"), "released")
}

pub(crate) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
