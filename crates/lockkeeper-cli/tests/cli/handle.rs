//! `acquire`, `renew`, `release`: a lock across the calls of a script.

use std::process::Command;

use lockkeeper_testkit::server::redis::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::place::{Place, eventually};

#[test]
fn a_handle_holds_from_acquire_to_release() {
    let place = Place::new();
    let handle = place.run("acquire k --lease 1h").exits(0).stdout;
    place.run("run -n k true").exits(75);
    place.run(&format!("renew {handle}")).exits(0);
    place.run(&format!("release {handle}")).exits(0);
    place.run("run -n k true").exits(0);
    place.run(&format!("release {handle}")).exits(79).says("this handle is no longer held");
    place.run(&format!("renew {handle}")).exits(79);
    assert_eq!(std::fs::read_dir(place.path("run/lockkeeper")).unwrap().count(), 0);
}

#[test]
fn a_handle_whose_lock_was_broken_is_not_renewed() {
    let place = Place::new();
    let handle = place.run("acquire k --lease 1h").exits(0).stdout;
    place.run("break k --yes --why test").exits(0);
    place.run("run -n k true").exits(0);
    place.run(&format!("renew {handle}")).exits(79);
}

#[test]
fn an_engine_that_does_not_answer_confirms_neither_a_renewal_nor_a_release() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let handle = place.run("acquire k --lease 1h").exits(0).stdout;
    server.pause();
    place.run(&format!("renew {handle}")).exits(69).says("could not be renewed");
    place.run(&format!("release {handle}")).exits(69).says("did not confirm the release");
    server.resume();
    // The holder continues with it.
    place.run("run -w 30 k true").exits(0);
}

#[test]
fn a_handle_is_found_from_another_environment() {
    let place = Place::new();
    let handle = place.run("acquire k").exits(0).stdout;
    place.run("run -n k true").exits(75);
    // As in a cron job.
    let mut other = place.lockkeeper("acquire other");
    let second = other.env_remove("XDG_RUNTIME_DIR").output().unwrap();
    let second = String::from_utf8(second.stdout).unwrap();
    for handle in [handle, second] {
        place.run(&format!("release {handle}")).exits(0);
    }
    place.run("run -n k true").exits(0);
    place.run("run -n other true").exits(0);
}

#[test]
fn a_handle_of_another_user_is_said_to_be_that() {
    let place = Place::new();
    let handle = place.run("acquire k").exits(0).stdout;
    let (id, fence) = (&handle[..16], handle.trim().rsplit('-').next().unwrap());
    let theirs = nix::unistd::geteuid().as_raw() + 4_000_000;
    for verb in ["renew", "release"] {
        place
            .run(&format!("{verb} {id}-{theirs}-{fence}"))
            .exits(64)
            .says(&format!("belongs to another user (uid {theirs})"));
    }
    place.run(&format!("release {handle}")).exits(0);
}

#[test]
fn acquire_reports_busy_as_run_does() {
    let place = Place::new();
    let handle = place.run("acquire k").exits(0).stdout;
    place.run("acquire -n k").exits(75).says("busy; held by ");
    place.run("acquire -w 0.1 -E 9 k").exits(9);
    let waiter = place.start("acquire k");
    place.until("k", 1, 1);
    place.run(&format!("release {handle}")).exits(0);
    let second = waiter.end().exits(0).stdout;
    place.run(&format!("release {second}")).exits(0);
}

#[test]
fn a_handle_that_cannot_be_printed_is_not_held() {
    let place = Place::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut acquire = place.lockkeeper("acquire k");
    let done = acquire.stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(125), "{said}");
    assert!(said.contains("cannot print the handle, so the lock was released"), "{said}");
    place.run("run -n k true").exits(0);
}

#[test]
fn a_lock_that_could_not_be_released_is_not_acquired() {
    let place = Place::new();
    let holder = place.start("run k sleep 600");
    place.until("k", 1, 0);
    // No socket can be created there, which is detected before the lock is acquired.
    let deep = place.path(&"d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let done = place.lockkeeper("acquire k").env("XDG_RUNTIME_DIR", deep).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(125) && said.contains("cannot listen at"), "{said}");
    holder.signal(Signal::SIGTERM);
    holder.end().exits(143);
}

#[test]
fn a_waiting_acquire_that_is_killed_leaves_no_holder_behind() {
    let place = Place::new();
    let handle = place.run("acquire k").exits(0).stdout;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let waiter = place.start("acquire k");
        place.until("k", 1, 1);
        waiter.signal(signal);
        place.until("k", 1, 0);
    }
    place.run(&format!("release {handle}")).exits(0);
}

#[test]
fn a_lease_ends_by_itself_unless_renewed() {
    let place = Place::new();
    let short = place.run("acquire a --lease 0.3").exits(0).stdout;
    let long = place.run("acquire b --lease 0.3").exits(0).stdout;
    place.run(&format!("renew {long} --lease 1h")).exits(0);
    place.until("a", 0, 0);
    place.until("b", 1, 0);
    place.run(&format!("release {short}")).exits(79);
    place.run(&format!("release {long}")).exits(0);
}

#[test]
fn a_handle_ends_with_the_process_it_is_bound_to() {
    let place = Place::new();
    let mut bound_to = Command::new("sleep").arg("600").spawn().unwrap();
    place.run(&format!("acquire k --lease 1h --pid {}", bound_to.id())).exits(0);
    place.until("k", 1, 0);
    bound_to.kill().unwrap();
    bound_to.wait().unwrap();
    place.until("k", 0, 0);
}

#[test]
fn a_lost_lock_is_79_with_the_reason() {
    let place = Place::new();
    let handle = place.run("acquire k --ttl 300ms").exits(0).stdout;
    place.run("break k --yes --why test").exits(0);
    eventually("the holder learns of it", || {
        (place.run(&format!("renew {handle}")).code == Some(79)).then_some(())
    });
    place.run(&format!("release {handle}")).exits(79).says("broken by").says(": test");
}

#[test]
fn json_names_everything_that_belongs_to_a_handle() {
    let place = Place::new();
    let told: Value =
        serde_json::from_str(&place.run("acquire k --json --owner me").exits(0).stdout).unwrap();
    assert_eq!((&told["key"], &told["owner"]), (&"k".into(), &"me".into()));
    assert_eq!((&told["url"], &told["lease"]), (&place.url().into(), &300.0.into()));
    assert!(told["fence"].as_u64().unwrap() > 0);
    // TERM to the holder releases.
    kill(Pid::from_raw(told["pid"].as_i64().unwrap() as i32), Signal::SIGTERM).unwrap();
    place.until("k", 0, 0);
}

#[test]
fn a_holder_keeps_nothing_open_for_others() {
    let place = Place::new();
    let ours = place.lockkeeper("");
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 9> other; flock 9; \"$0\" acquire k"]).arg(ours.get_program());
    for (name, value) in ours.get_envs() {
        value.map(|value| shell.env(name, value));
    }
    let output = shell.current_dir(place.path("")).output().unwrap();
    let handle = String::from_utf8(output.stdout).unwrap();
    let mut flock = Command::new("flock");
    let free = flock.args(["-n", "other", "true"]).current_dir(place.path("")).status().unwrap();
    assert!(free.success());
    place.run(&format!("release {handle}")).exits(0);
}

#[test]
fn nothing_is_acquired_if_standard_output_is_closed() {
    let place = Place::new();
    let ours = place.lockkeeper("");
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" acquire k >&-"]).arg(ours.get_program());
    for (name, value) in ours.get_envs() {
        value.map(|value| shell.env(name, value));
    }
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("standard output is closed"), "{said}");
    place.run("run -n k true").exits(0);
}

#[test]
fn a_process_alone_is_enough_to_bind_a_handle_to() {
    let place = Place::new();
    let mut bound_to = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = bound_to.id();
    let told = place.run(&format!("acquire k --json --pid {pid}")).exits(0).stdout;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["lease"], Value::Null, "as long as that process lives");
    let both = place.run(&format!("acquire both --json --lease 1h --pid {pid}")).exits(0).stdout;
    assert_eq!(serde_json::from_str::<Value>(&both).unwrap()["lease"], 3600.0);
    // Killed but not reaped: a zombie, which does no work any more.
    bound_to.kill().unwrap();
    place.until("k", 0, 0);
    place.until("both", 0, 0);
    place.run(&format!("acquire k --pid {pid}")).exits(64).says("there is no process");
    bound_to.wait().unwrap();
}
