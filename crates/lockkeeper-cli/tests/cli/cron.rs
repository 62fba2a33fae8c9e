//! What schedulers need: one run per slot, a hold that outlasts skewed clocks.

use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place::{Place, eventually};

#[test]
fn once_per_runs_once_in_a_slot() {
    let place = Place::new();
    // A slot that does not end during the test.
    let run = "run --once-per 1000d k -- echo ran >> runs";
    place.run(run).exits(0);
    place.run(run).exits(75).says("lock \"k\": this slot has already had its run");
    place.run("run --once-per 1000d --skip-ok k -- echo ran >> runs").exits(0);
    let all: Vec<_> = (0..4).map(|_| place.start(run)).collect();
    for run in all {
        run.end().exits(75);
    }
    assert_eq!(place.content("runs"), "ran\n");
    // Other locks and other slots have runs of their own.
    place.run("run --once-per 1000d other true").exits(0);
    place.run("run --once-per 2000d k true").exits(0);
    end_marks(&place);
}

#[test]
fn a_command_that_fails_has_had_its_run() {
    let place = Place::new();
    place.run("run --once-per 1000d k -- exit 3").exits(3);
    place.run("run --once-per 1000d k -- exit 3").exits(75);
    end_marks(&place);
}

#[test]
fn a_run_that_failed_may_be_tried_again_in_its_slot() {
    let redis = lockkeeper_testkit::server::redis::Server::start();
    for place in [Place::new(), Place::at(&redis.url())] {
        let run = "run --once-per 1000d --retry-failed k --";
        place.run(&format!("{run} exit 3")).exits(3);
        place.run("run --once-per 1000d --retry-failed k /no/such/command").exits(127);
        place.run(&format!("{run} kill -9 $$")).exits(137);
        // It succeeds at last, and then it has had its run.
        place.run(&format!("{run} echo")).exits(0);
        place.run(&format!("{run} echo")).exits(75);
        place.run("run --retry-failed k true").exits(64).says("--once-per");
    }
}

#[test]
fn the_next_slot_has_a_run_again() {
    let place = Place::new();
    let second = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    place.run("run --once-per 1s k true").exits(0);
    let ran = second();
    eventually("the next slot", || (second() > ran).then_some(()));
    place.run("run --once-per 1s k true").exits(0);
    // Marks do not stay forever.
    eventually("the marks end", || (place.run("ls --json").stdout.trim() == "[]").then_some(()));
}

#[test]
fn min_hold_keeps_the_lock_after_the_command() {
    let place = Place::new();
    let started = Instant::now();
    let mut run = place.start("run --min-hold 1s k -- echo > done; exit 4");
    place.content("done");
    place.run("run -n k true").exits(75);
    assert!(run.is_running());
    run.end().exits(4);
    assert!(started.elapsed() >= Duration::from_secs(1));
    place.run("run -n k true").exits(0);
}

#[test]
fn a_signal_ends_min_hold_early() {
    let place = Place::new();
    let run = place.start("run --min-hold 1h k -- echo $$ > pid");
    let command: i32 = place.content("pid").trim().parse().unwrap();
    eventually("the command ends", || (!crate::place::is_there(command)).then_some(()));
    run.signal(Signal::SIGTERM);
    let code = run.end().code;
    // The command's own end, or the signal if it came before that was known.
    assert!(code == Some(0) || code == Some(143), "{code:?}");
}

/// Ends the processes that keep the marks of a test.
fn end_marks(place: &Place) {
    let listed: serde_json::Value = serde_json::from_str(&place.run("ls --json").stdout).unwrap();
    for lock in listed.as_array().unwrap() {
        let who = lock["holders"][0]["who"].as_str().unwrap();
        let pid: i32 = who.rsplit_once(' ').unwrap().1.parse().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    }
    eventually("the marks end", || (place.run("ls --json").stdout.trim() == "[]").then_some(()));
}
