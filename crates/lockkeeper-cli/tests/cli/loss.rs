//! Locks that are lost while the command runs: it is dead in time, and the exit code is never 0.

use std::time::{Duration, Instant};

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use lockkeeper_testkit::server::{Mariadb, Postgres};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::place::{Place, eventually, is_there};

#[test]
fn a_broken_lock_ends_the_command_with_79() {
    let place = Place::new();
    // A holder without a lease checks every third of the ttl whether it was broken.
    let run =
        place.start("run --ttl 300ms --status-file status k -- echo $$ > pid; sleep 600 & wait");
    let command: i32 = place.content("pid").trim().parse().unwrap();
    place.run("break k --yes --why test").exits(0).says("broken because: test");
    run.end().exits(79).says("the lock is lost: broken by").says(": test");
    assert!(!is_there(command));
    let status = place.status("status");
    assert_eq!((&status["outcome"], &status["exit_code"]), (&"lost".into(), &79.into()));
    assert_eq!(status["child_signal"], 15);
}

#[test]
fn a_command_that_does_not_listen_is_killed_after_a_short_grace() {
    let place = Place::new();
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    let run =
        place.start(&format!("run --ttl 300ms --grace 0.2 --status-file status k -- {script}"));
    let command: i32 = place.content("pid").trim().parse().unwrap();
    place.run("break k --yes --why test").exits(0);
    run.end().exits(79);
    assert!(!is_there(command));
    assert_eq!(place.status("status")["child_signal"], 9);
}

#[test]
fn on_lost_kill_does_not_ask() {
    let place = Place::new();
    let run = place
        .start("run --ttl 300ms --on-lost kill --status-file status k -- echo $$ > pid; sleep 600");
    place.content("pid");
    place.run("break k --yes --why test").exits(0);
    run.end().exits(79);
    assert_eq!(place.status("status")["child_signal"], 9);
}

#[test]
fn on_lost_ignore_lets_it_end_but_never_with_0() {
    let place = Place::new();
    let script = "echo $$ > pid; while test ! -e go; do sleep 0.02; done; echo done";
    let run = place.start(&format!("run --ttl 300ms --on-lost ignore k -- {script}"));
    place.content("pid");
    place.run("break k --yes --why test").exits(0);
    // There is another holder, and the first one still runs: that is what was requested.
    place.run("run -w 10 k true").exits(0);
    std::fs::write(place.path("go"), "").unwrap();
    run.end().exits(79).prints("done");
}

#[test]
fn a_loss_that_only_the_release_finds_is_79_too() {
    let place = Place::new();
    let run =
        place.start("run --ttl 1h k -- echo > started; while test ! -e go; do sleep 0.02; done");
    place.content("started");
    place.run("break k --yes --why test").exits(0);
    std::fs::write(place.path("go"), "").unwrap();
    run.end().exits(79);
}

/// `memory:` has leases, and its store stops with the wrapper: like an unreachable store.
#[test]
fn a_stopped_wrapper_cannot_keep_its_command_alive_past_the_lease() {
    let place = Place::new();
    let run = place
        .start("run -q --url memory: --ttl 3s --status-file status k -- echo $$ > pid; sleep 600");
    let command: i32 = place.content("pid").trim().parse().unwrap();
    let started = Instant::now();
    run.signal(Signal::SIGSTOP);
    eventually("the guardian ends the command", || (!is_there(command)).then_some(()));
    // It was renewed before the stop, so it ends within its length after it.
    let within = started.elapsed();
    assert!(within < Duration::from_secs(3), "{within:?}");
    run.signal(Signal::SIGCONT);
    run.end().exits(79);
    assert_eq!(place.status("status")["outcome"], "lost");
}

/// Whether the end of the lease, the guardian's report or SIGCONT comes first is random.
#[test]
fn a_loss_during_a_stop_is_reported_once_and_not_blamed_on_the_command() {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let place = Place::new();
                let run = place.start("run --url memory: --ttl 1s k -- echo $$ > pid; sleep 600");
                let command: i32 = place.content("pid").trim().parse().unwrap();
                run.signal(Signal::SIGSTOP);
                eventually("the guardian ends the command", || (!is_there(command)).then_some(()));
                run.signal(Signal::SIGCONT);
                let said = run.end().exits(79).stderr;
                let told: Vec<_> = said.lines().filter(|line| line.contains("lost")).collect();
                assert_eq!(told.len(), 1, "{said}");
                assert!(!said.contains("command was stopped"), "{said}");
            });
        }
    });
}

#[test]
fn a_command_that_is_stopped_past_its_lease_never_continues() {
    let place = Place::new();
    let script = "echo $$ > pid; while :; do echo > beat; sleep 0.01; done";
    let run = place.start(&format!("run -q --url memory: --ttl 1s k -- {script}"));
    let command: i32 = place.content("pid").trim().parse().unwrap();
    place.content("beat");
    killpg(Pid::from_raw(command), Signal::SIGSTOP).unwrap();
    run.signal(Signal::SIGSTOP);
    std::fs::remove_file(place.path("beat")).unwrap();
    eventually("the guardian ends the command", || (!is_there(command)).then_some(()));
    run.signal(Signal::SIGCONT);
    run.end().exits(79);
    assert!(!place.path("beat").exists());
}

#[test]
fn a_lease_that_is_renewed_outlasts_many_of_its_lengths() {
    let place = Place::new();
    place.run("run -q --url memory: --ttl 2s k -- sleep 7").exits(0);
}

#[test]
fn a_fixed_lease_ends_the_command_in_time() {
    let place = Place::new();
    for url in ["memory:".to_owned(), place.url()] {
        let started = Instant::now();
        let run = format!("run --url {url} --lease 1s k -- sleep 600");
        place.run(&run).exits(79).says("the lock is lost: its ");
        let took = started.elapsed();
        assert!(took > Duration::from_millis(600) && took < Duration::from_secs(60), "{took:?}");
    }
}

#[test]
fn a_lease_too_short_for_its_grace_is_refused() {
    let place = Place::new();
    place.run("run -q --url memory: --ttl 6s --grace 5s k true").exits(64).prints("");
    place
        .run("run --url memory: --ttl 6s --grace 5s k true")
        .exits(64)
        .says("--ttl must be at least 18s");
}

#[test]
fn the_end_of_a_fixed_lease_is_not_blamed_on_a_renewal() {
    let place = Place::new();
    for url in [place.url(), "memory:".to_owned()] {
        let run = format!("run --url {url} --lease 2s --status-file status k -- sleep 60");
        let done = place.run(&run).exits(79).says("lease");
        assert!(!done.stderr.contains("renewed"), "{}", done.stderr);
        let status = place.status("status");
        assert_eq!(status["outcome"], "lost");
        let reason = status["reason"].as_str().unwrap();
        assert!(reason.contains("lease") && !reason.contains("renewed"), "{reason}");
    }
}

/// The server ends while a command runs: the user learns why at once, and the exit follows the
/// command.
fn a_dead_server_is_reported_and_does_not_delay_the_end(url: &str, end_server: impl FnOnce()) {
    let place = Place::at(url);
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    let run = place.start(&format!("run -v --ttl 6s --status-file status k -- {script}"));
    let command: i32 = place.content("pid").trim().parse().unwrap();
    end_server();
    eventually("the command is dead", || (!is_there(command)).then_some(()));
    let dead = Instant::now();
    let ended = run.end().exits(79);
    let late = dead.elapsed();
    assert!(late < Duration::from_secs(1), "{url}: {late:?} after its command: {}", ended.stderr);
    let lines: Vec<_> = ended.stderr.lines().collect();
    let at = |what: &str| lines.iter().position(|line| line.contains(what));
    let (failed, lost) = (at("cannot renew the lock"), at("the lock is lost: "));
    assert!(failed.is_some() && failed < lost, "{}", ended.stderr);
    let reason = place.status("status")["reason"].as_str().unwrap().to_owned();
    assert!(lines[lost.unwrap()].ends_with(&reason), "{reason} in {}", ended.stderr);
    let cause = reason.to_lowercase();
    let causes = ["refused", "reset", "broken pipe", "closed", "eof", "disconnected"];
    assert!(causes.iter().any(|word| cause.contains(word)), "no cause in {reason}");
}

/// A server that neither answers nor disconnects: the user learns which server was silent, and for
/// how long.
fn a_silent_server_is_named(url: &str, stop_server: impl FnOnce()) {
    let place = Place::at(url);
    let run = place.start("run --ttl 3s --status-file status k -- echo $$ > pid; sleep 60");
    place.content("pid");
    stop_server();
    let ended = run.end().exits(79);
    let reason = place.status("status")["reason"].as_str().unwrap().to_owned();
    let host = url.split("//").nth(1).unwrap().split(['/', '?']).next().unwrap();
    assert!(reason.contains(host), "{reason}");
    // Our timeout, or that of the engine's client, whichever is first.
    let silent = reason.contains("no answer from") || reason.contains("no response");
    assert!(silent, "{reason}");
    let lost = ended.stderr.lines().find(|line| line.contains("the lock is lost: ")).unwrap();
    assert!(lost.ends_with(&reason), "{reason} in {}", ended.stderr);
}

#[test]
fn a_silent_redis_server_is_named() {
    let server = Server::start();
    a_silent_server_is_named(&server.url(), || server.pause());
}

#[test]
fn a_silent_zookeeper_server_is_named() {
    let servers = Ensemble::single();
    let url = servers.url("silent", Duration::from_secs(6));
    a_silent_server_is_named(&url, || servers[0].pause());
}

#[test]
fn a_dead_redis_server_is_reported() {
    let server = Server::start();
    a_dead_server_is_reported_and_does_not_delay_the_end(&server.url(), || server.kill());
}

#[test]
fn a_dead_zookeeper_server_is_reported() {
    let servers = Ensemble::single();
    let url = servers.url("told", Duration::from_secs(12));
    a_dead_server_is_reported_and_does_not_delay_the_end(&url, || servers[0].kill());
}

#[test]
fn a_dead_etcd_server_is_reported() {
    let servers = lockkeeper_testkit::server::etcd::Servers::start(1);
    a_dead_server_is_reported_and_does_not_delay_the_end(&servers.url(""), || servers[0].kill());
}

#[test]
fn a_dead_database_is_reported() {
    let server = Postgres::start();
    let url = server.url();
    a_dead_server_is_reported_and_does_not_delay_the_end(&url, || server.kill());
    let server = Mariadb::start();
    let url = server.url();
    a_dead_server_is_reported_and_does_not_delay_the_end(&url, || server.kill());
}

#[test]
fn an_engine_that_dies_before_the_release_does_not_keep_the_command() {
    let server = Server::start();
    let place = Place::at(&server.url());
    nix::unistd::mkfifo(&place.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = place.start("run k -- echo > started; read x < go; exit 5");
    place.content("started");
    server.kill();
    std::fs::write(place.path("go"), "\n").unwrap();
    let ended = Instant::now();
    run.end().exits(5).says("did not confirm the release");
    assert!(ended.elapsed() < Duration::from_secs(5), "{:?}", ended.elapsed());
}

/// The command ends before the next renewal.
#[test]
fn a_break_that_only_the_release_notices_is_told() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let run = format!("run k -- {program} break k --yes --why stuck");
    place.run(&run).exits(79).says("broken by").says(": stuck");
}
