//! `yield`, and what `run` and `elect` do when somebody asks for their lock.

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;

use crate::place::Place;

/// Waits for TERM, and takes a moment for its goodbye.
const POLITE: &str = "trap 'echo bye >>said; exit 3' TERM; echo at work >>said; \
                      while :; do sleep 0.1; done";

#[test]
fn a_client_of_another_library_cannot_be_asked() {
    let server = Server::start();
    let place = Place::at(&server.url());
    // As Redisson writes it.
    server.ask(&["HSET", "k", "0d1c0000-0000-4000-8000-000000000000:57", "1"]);
    server.ask(&["PEXPIRE", "k", "30000"]);
    place.run("yield k").exits(64).says("break the lock instead");
    place.run("yield").exits(64).says("<KEY>");
}

#[test]
fn a_handle_passes_the_question_on() {
    let place = Place::new();
    let script = "trap 'echo asked >>said' USR1; echo $$ >pid; while :; do sleep 0.1; done";
    let mut command = std::process::Command::new("sh");
    let mut script = command.args(["-c", script]).current_dir(place.path("")).spawn().unwrap();
    let pid = place.content("pid");
    let words = format!("acquire k --pid {} --on-yield usr1", pid.trim());
    let handle = place.run(&words).exits(0).stdout;
    place.run("yield k --why migration").exits(0);
    assert_eq!(place.content("said"), "asked\n");
    let renewed = place.run(&format!("renew {handle}")).exits(0).says("asked to yield by ");
    assert!(renewed.stderr.contains(": migration; release"), "{}", renewed.stderr);
    place.run("run -n k true").exits(75);
    place.run(&format!("release {handle}")).exits(0);
    script.kill().unwrap();
    script.wait().unwrap();
    place.run("acquire k --on-yield usr1").exits(64).says("--pid");
}

#[test]
fn holders_give_way_on_files() {
    let elsewhere = Place::new();
    holders_give_way(&elsewhere.url());
}

#[test]
fn holders_give_way_on_redis() {
    let server = Server::start();
    holders_give_way(&server.url());
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
    let asked = place.run("yield k --why migration").exits(0).stdout;
    assert!(asked.starts_with("asked for lock \"k\": held by "), "{asked}");
    let done = polite.end().exits(3).says("asked to give way by ");
    assert!(done.stderr.contains(": migration; the command is sent SIGTERM"), "{}", done.stderr);
    assert_eq!(place.content("said"), "at work\nbye\n");
    let status = place.status("status");
    assert_eq!(status["outcome"], "done");
    let reason = status["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("asked to give way by ") && reason.ends_with(": migration"),
        "{reason}"
    );
    next.end().exits(0).prints("next");
    // Another signal, and a lock that is kept all the same.
    let marks = "trap 'echo usr1 >>marked' USR1; echo ready >ready; while :; do sleep 0.1; done";
    let keeps = place.start(&format!("run --on-yield usr1 k -- {marks}"));
    place.content("ready");
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
