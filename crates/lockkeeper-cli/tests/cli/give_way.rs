//! `yield`, and what `run` and `elect` do when somebody asks for their lock.

use lockkeeper_testkit::server::zookeeper::Ensemble;

use crate::place::Place;

/// Waits for TERM, and takes a moment for its goodbye.
const POLITE: &str = "trap 'echo bye >>said; exit 3' TERM; echo at work >>said; \
                      while :; do sleep 0.1; done";

#[test]
fn an_engine_that_cannot_reach_holders_says_what_to_do_instead() {
    let place = Place::new();
    let holder = place.start("run k -- sleep 60");
    place.until("k", 1, 0);
    place.run("yield k").exits(64).says("break the lock instead");
    place.run("yield").exits(64).says("<KEY>");
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.end().exits(143);
}

#[test]
fn holders_give_way_on_zookeeper() {
    let servers = Ensemble::single();
    holders_give_way(&servers.url("yield", std::time::Duration::from_secs(20)));
}

#[test]
fn holders_give_way_on_etcd() {
    let servers = lockkeeper_testkit::server::etcd::Servers::start(1);
    holders_give_way(&servers.url(""));
}

fn holders_give_way(url: &str) {
    let place = Place::at(url);
    place.run("yield k").exits(0).says("nobody holds lock \"k\"").prints("");
    // TERM, and the command says how it ends.
    let polite = place.start(&format!("run --status-file status k -- {POLITE}"));
    place.until("k", 1, 0);
    assert_eq!(place.content("said"), "at work\n");
    let next = place.start("run k -- echo next");
    place.until("k", 1, 1);
    let asked = place.run("yield k").exits(0).stdout;
    assert!(asked.starts_with("asked for lock \"k\": held by "), "{asked}");
    polite.end().exits(3).says("asked to give way; the command is sent SIGTERM");
    assert_eq!(place.content("said"), "at work\nbye\n");
    let status = place.status("status");
    assert_eq!(
        (&status["outcome"], &status["reason"]),
        (&"done".into(), &"asked to give way".into())
    );
    next.end().exits(0).prints("next");
    // Another signal, and a lock that is kept all the same.
    let marks = "trap 'echo usr1 >>marked' USR1; while :; do sleep 0.1; done";
    let keeps = place.start(&format!("run --on-yield usr1 k -- {marks}"));
    place.until("k", 1, 0);
    place.run("yield --json k").exits(0);
    assert_eq!(place.content("marked"), "usr1\n");
    place.until("k", 1, 0);
    keeps.signal(nix::sys::signal::Signal::SIGTERM);
    keeps.end().exits(143);
    // A leader that gave way stands again, behind the next one.
    let first = place.start("elect boss -- echo $LOCKKEEPER_FENCE >>terms; sleep 60");
    place.until("boss", 1, 0);
    place.content("terms");
    let second = place.start("elect boss -- echo $LOCKKEEPER_FENCE >>others; sleep 60");
    place.until("boss", 1, 1);
    place.run("yield boss").exits(0);
    place.content("others");
    place.until("boss", 1, 1);
    for candidate in [first, second] {
        candidate.signal(nix::sys::signal::Signal::SIGTERM);
        candidate.end();
    }
}
