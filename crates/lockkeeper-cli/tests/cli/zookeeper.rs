//! The command on ZooKeeper, whose leases are as long as its servers allow, not as long as was asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use lockkeeper_testkit::server::zookeeper::Ensemble;

use crate::place::{Done, Place};

/// Longer than two of the longest leases that are renewed here, and than every renewal is apart.
const JOB: &str = "sleep 26";

/// What a combination comes to.
enum Outcome {
    /// The job runs to its end.
    Done,
    /// It never begins, and the message has these words.
    Refused(&'static str),
}

/// Whatever sessions the servers grant, a healthy job runs to its end or is refused at once.
///
/// All of them run at once, and a machine that stands still meanwhile is not healthy. Runs that are lost
/// then are repeated without the others; only a run that succeeds passes.
#[test]
fn every_session_that_the_servers_grant_runs_a_healthy_job_to_its_end() {
    let ticks = [200, 500, 1000, 2000, 6000];
    let servers = ticks.map(|tick| (tick, Ensemble::ticking(Duration::from_millis(tick))));
    let witness = &Witness::default();
    let mut open: Vec<_> = servers
        .iter()
        .flat_map(|(tick, server)| {
            let hosts = server.hosts();
            combinations(*tick).into_iter().enumerate().map(
                move |(n, (session, words, outcome))| {
                    (format!("zookeeper://{hosts}/locks{session}"), n, words, outcome)
                },
            )
        })
        .collect();
    std::thread::scope(|scope| {
        let _over = Over(witness);
        for (_, server) in &servers {
            scope.spawn(|| witness.watch(server));
        }
        let mut lost = Vec::new();
        for _ in 0..4 {
            let runs: Vec<_> = open
                .drain(..)
                .map(|(url, n, words, outcome)| {
                    scope.spawn(move || {
                        let judged = try_one(&url, n, &words, &outcome, witness);
                        (judged, (url, n, words, outcome))
                    })
                })
                .collect();
            let done: Vec<_> = runs.into_iter().map(|run| run.join()).collect();
            assert!(done.iter().all(Result::is_ok), "a combination failed, see above");
            lost.clear();
            for (judged, combination) in done.into_iter().flatten() {
                if let Err(what) = judged {
                    lost.push(what);
                    open.push(combination);
                }
            }
        }
        assert!(lost.is_empty(), "lost again and again:\n{}", lost.join("\n"));
    });
}

/// The options of the URL, the words before the job, and what comes of it.
fn combinations(tick: u64) -> Vec<(&'static str, String, Outcome)> {
    let mut all = Vec::new();
    for ttl in ["2s", "6s", "30s", "2m", "5m", "1h"] {
        all.push(("", format!("run -q --ttl {ttl}"), Outcome::Done));
    }
    for session in ["?session=4s", "?session=12s", "?session=16s", "?session=20s", "?session=1m"] {
        all.push((session, "run -q".to_owned(), Outcome::Done));
    }
    all.push(("", "elect -q --ttl 2m".to_owned(), Outcome::Done));
    all.push(("?session=16s", "elect -q".to_owned(), Outcome::Done));
    all.push(("", "run -q --lease 1h".to_owned(), Outcome::Done));
    all.push(("?session=12s", "run -q --lease 5m".to_owned(), Outcome::Done));
    // A grace of 4 s needs a lease of 15 s.
    let hint = "?session=30s";
    all.push(("?session=12s", "run --grace 4s".to_owned(), Outcome::Refused(hint)));
    let outcome = if tick < 2000 { Outcome::Refused("maxSessionTimeout") } else { Outcome::Done };
    all.push(("?session=30s", "run --grace 4s".to_owned(), outcome));
    all
}

/// Notices when a server, or this process, stands still.
#[derive(Default)]
struct Witness {
    stalls: Mutex<Vec<Instant>>,
    over: AtomicBool,
}

/// The shortest leases here are two seconds; they are renewed after a third, and lost if the answer takes
/// 0.7 s. Something that takes less than this is no reason for a loss.
const STALL: Duration = Duration::from_millis(350);

impl Witness {
    fn watch(&self, server: &Ensemble) {
        while !self.over.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let answered = server[0].mode().is_some();
            std::thread::sleep(Duration::from_millis(20));
            if !answered || asked.elapsed() > STALL {
                self.stalls.lock().unwrap().push(Instant::now());
            }
        }
    }

    fn saw_a_stall_since(&self, then: Instant) -> bool {
        self.stalls.lock().unwrap().iter().any(|stall| *stall >= then)
    }
}

/// Ends the witness, also when the test fails.
struct Over<'a>(&'a Witness);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Panics if it goes wrong; `Err` if it went wrong while something stood still.
fn try_one(
    url: &str,
    n: usize,
    words: &str,
    outcome: &Outcome,
    witness: &Witness,
) -> Result<(), String> {
    let started = Instant::now();
    let done: Done = Place::at(url).run(&format!("{words} k{n} -- {JOB}"));
    let took = started.elapsed();
    let what = format!("{url} {words}: {:?} after {took:?}: {}", done.code, done.stderr);
    match outcome {
        Outcome::Done if done.code == Some(0) => {}
        Outcome::Done => {
            assert!(witness.saw_a_stall_since(started), "lost, and nothing stood still: {what}");
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

static SERVER: OnceLock<Ensemble> = OnceLock::new();

#[test]
fn the_doctor_says_how_long_a_lease_really_is() {
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
