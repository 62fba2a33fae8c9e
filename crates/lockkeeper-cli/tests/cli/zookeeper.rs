//! The command on ZooKeeper, whose leases are as long as its servers allow, not as long as
//! requested.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use lockkeeper_testkit::server::zookeeper::Ensemble;

use crate::place::Place;

/// Longer than two of the longest leases that are renewed here, and than the interval of any
/// renewal.
const JOB: &str = "echo > started; sleep 26";

/// The expected result of a combination.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    /// The job runs to its end, with this lease.
    Done { lease: Duration },
    /// It never starts, and the message contains these words.
    Refused(&'static str),
}

/// A run on one of the servers.
#[derive(Debug, Clone)]
struct Combination<'a> {
    server: &'a Witnessed,
    options: &'static str,
    /// The words before the key.
    words: String,
    outcome: Outcome,
}

/// Whatever sessions the servers grant, a healthy job runs to its end or is refused at once.
///
/// All of them run at once, and a machine that stalls meanwhile is not healthy. A run that is lost
/// although nothing stalled for longer than its lease can bear is a failure; the others are
/// repeated, and have to succeed then.
#[test]
fn every_session_that_the_servers_grant_runs_a_healthy_job_to_its_end() {
    let servers = [200, 500, 1000, 2000, 6000].map(Witnessed::start);
    let over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(over);
        for server in &servers {
            scope.spawn(|| server.watch(over));
        }
        let disturbed = run_all(servers.iter().flat_map(combinations).collect());
        let again = run_all(disturbed.into_iter().map(|(combination, _)| combination).collect());
        let lost: Vec<_> = again.into_iter().map(|(_, what)| what).collect();
        assert!(lost.is_empty(), "lost twice:\n{}", lost.join("\n"));
    });
}

/// Returns those that were lost while their server stalled.
fn run_all<'a>(all: Vec<Combination<'a>>) -> Vec<(Combination<'a>, String)> {
    // One after the other, so that new ones do not starve the others.
    let starting = &Mutex::new(());
    std::thread::scope(|scope| {
        let start = |(n, combination): (usize, Combination<'a>)| {
            scope.spawn(move || {
                let judged = combination.run(n, starting);
                judged.err().map(|what| (combination, what))
            })
        };
        let runs: Vec<_> = all.into_iter().enumerate().map(start).collect();
        let done: Vec<_> = runs.into_iter().map(|run| run.join()).collect();
        assert!(done.iter().all(Result::is_ok), "a combination failed, see above");
        done.into_iter().flatten().flatten().collect()
    })
}

fn combinations(server: &Witnessed) -> Vec<Combination<'_>> {
    // As ttl and session are asked for; the session is 30 s unless the URL says otherwise.
    let done = |ttl: u64, session: u64| {
        let session = Duration::from_secs(session).clamp(server.tick * 2, server.tick * 20);
        Outcome::Done { lease: Duration::from_secs(ttl).min(session / 2) }
    };
    let mut all = Vec::new();
    for (ttl, seconds) in
        [("2s", 2), ("6s", 6), ("30s", 30), ("2m", 120), ("5m", 300), ("1h", 3600)]
    {
        all.push(("", format!("run -q --ttl {ttl}"), done(seconds, 30)));
    }
    for (session, seconds) in [
        ("?session=4s", 4),
        ("?session=12s", 12),
        ("?session=16s", 16),
        ("?session=20s", 20),
        ("?session=1m", 60),
    ] {
        all.push((session, "run -q".to_owned(), done(30, seconds)));
    }
    all.push(("", "elect -q --ttl 2m".to_owned(), done(120, 30)));
    all.push(("?session=16s", "elect -q".to_owned(), done(30, 16)));
    all.push(("", "run -q --lease 1h".to_owned(), done(3600, 30)));
    all.push(("?session=12s", "run -q --lease 5m".to_owned(), done(300, 12)));
    // A grace of 4 s needs a lease of 15 s.
    let hint = "?session=30s";
    all.push(("?session=12s", "run --grace 4s".to_owned(), Outcome::Refused(hint)));
    let short = server.tick < Duration::from_secs(2);
    let outcome = if short { Outcome::Refused("maxSessionTimeout") } else { done(30, 30) };
    all.push(("?session=30s", "run --grace 4s".to_owned(), outcome));
    let combine = |(options, words, outcome)| Combination { server, options, words, outcome };
    all.into_iter().map(combine).collect()
}

impl Combination<'_> {
    /// Panics if it goes wrong; `Err` if it was lost while its server, or this process, stalled.
    fn run(&self, n: usize, starting: &Mutex<()>) -> Result<(), String> {
        let Self { server, options, words, outcome } = self;
        let url = format!("zookeeper://{}/locks{options}", server.ensemble.hosts());
        let place = Place::at(&url);
        let turn = starting.lock().expect("nobody panics while starting");
        let started = Instant::now();
        let mut run = place.start(&format!("{words} k{n} -- {JOB}"));
        let waiting = || started.elapsed() < Duration::from_secs(20);
        while run.is_running() && waiting() && !place.path("started").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(turn);
        while run.is_running() && started.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let done = run.end();
        let took = started.elapsed();
        let what = format!("{url} {words}: {:?} after {took:?}: {}", done.code, done.stderr);
        match *outcome {
            Outcome::Done { .. } if done.code == Some(0) => {}
            Outcome::Done { lease } => {
                let (stall, bearable) = (server.longest_stall_since(started), bearable(lease));
                let what = format!("{what}; a lease of {lease:?}, a stall of {stall:?}");
                assert!(done.code == Some(79) && stall >= bearable, "lost: {what}");
                return Err(what);
            }
            Outcome::Refused(hint) => {
                assert_eq!(done.code, Some(64), "{what}");
                assert!(done.stderr.contains(hint), "{what}");
                assert!(took < Duration::from_secs(20), "{what}");
            }
        }
        Ok(())
    }
}

/// How late a renewal may be answered: it is sent after a third of the lease, and the command is
/// ended when the grace, the margin, 1 % and 2 ms are left.
fn bearable(lease: Duration) -> Duration {
    let grace = (lease / 6).min(Duration::from_secs(5));
    let margin = (lease / 6).min(Duration::from_secs(1));
    lease - lease / 3 - grace - margin - lease / 100 - Duration::from_millis(2)
}

/// A server, and when it, or this process, stalled.
#[derive(Debug)]
struct Witnessed {
    tick: Duration,
    ensemble: Ensemble,
    answers: Mutex<Vec<(Instant, Duration)>>,
}

impl Witnessed {
    fn start(tick: u64) -> Self {
        let tick = Duration::from_millis(tick);
        Self { tick, ensemble: Ensemble::ticking(tick), answers: Mutex::default() }
    }

    fn watch(&self, over: &AtomicBool) {
        let mut last = Instant::now();
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            if self.ensemble[0].mode().is_some() {
                let now = Instant::now();
                self.answers.lock().unwrap().push((now, now - last));
                last = now;
            }
        }
    }

    fn longest_stall_since(&self, then: Instant) -> Duration {
        let answers = self.answers.lock().unwrap();
        let stalls = answers.iter().filter(|(at, _)| *at >= then).map(|(_, stall)| *stall);
        stalls.max().unwrap_or_default()
    }
}

/// Ends the watch, even if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

static SERVER: OnceLock<Ensemble> = OnceLock::new();

#[test]
fn the_doctor_reports_the_real_length_of_a_lease() {
    let server = SERVER.get_or_init(|| Ensemble::ticking(Duration::from_millis(500)));
    let place = Place::at(&format!("zookeeper://{}/locks", server.hosts()));
    let told = place.run("doctor").exits(0).stdout;
    assert!(told.contains("the session lasts 10s, though 30s was asked for"), "{told}");
    assert!(told.contains("a lease of 5s"), "{told}");
}

#[test]
fn a_holder_that_waited_is_as_old_as_its_grant() {
    let server = SERVER.get_or_init(|| Ensemble::ticking(Duration::from_millis(500)));
    let place = Place::at(&format!("zookeeper://{}/ages", server.hosts()));
    let first = place.start("run -q k -- echo > first; while test ! -e go; do sleep 0.02; done");
    place.content("first");
    let second = place.start("run -q k -- echo > second; while test ! -e end; do sleep 0.02; done");
    place.until("k", 1, 1);
    let waiting = Instant::now();
    while waiting.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::write(place.path("go"), "").unwrap();
    place.content("second");
    let granted = Instant::now();
    let age = crate::place::eventually("an age below what it waited for", || {
        let shown = place.run("show --json k").exits(0).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let age = shown["holders"][0]["age"].as_f64()?;
        (age < 4.0 || granted.elapsed() > Duration::from_secs(3)).then_some(age)
    });
    assert!(age <= granted.elapsed().as_secs_f64() + 1.0, "{age} s");
    std::fs::write(place.path("end"), "").unwrap();
    first.end().exits(0);
    second.end().exits(0);
}
