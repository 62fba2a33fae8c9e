//! `torture`: clean runs, mutants that must be caught, and what is left afterwards.

use lockkeeper_testkit::bugs::Bug;
use lockkeeper_testkit::server::redis::Server;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::place::{Place, eventually};
use crate::terminal::Session;

fn figures(json: &str) -> Value {
    let report: Value = serde_json::from_str(json).expect("it prints JSON");
    report["rows"][0].clone()
}

#[test]
fn a_run_says_what_it_will_do_and_what_it_found() {
    let place = Place::new();
    let done = place.run("torture --seconds 2 --clients 2 --kinds mutex,multi --faults stop,kill");
    let done = done.exits(0).says("2 client processes use locks of these kinds: mutex, multi");
    let done = done.says("faults of the clients and their connections: stop, kill");
    let done = done.says("nothing is done to the servers");
    assert!(done.stdout.contains("VIOLATIONS"), "{}", done.stdout);
    // Nothing is left: no lock, no process.
    assert_eq!(place.run("ls torture- --json").exits(0).stdout.trim(), "[]");
}

#[test]
fn a_server_is_tortured_through_proxies_and_left_clean() {
    let (place, server) = (Place::new(), Server::start());
    let url = server.url();
    let words = format!("torture {url} --seconds 4 --clients 2 --ttl 1s --json");
    let figures = figures(&place.run(&words).exits(0).stdout);
    assert!(figures["cycles"].as_u64() > Some(0), "{figures}");
    assert!(figures["faults"].as_u64() > Some(0), "{figures}");
    assert_eq!(figures["violations"], 0, "{figures}");
    let repeat = figures["repeat"].as_str().expect("it is a command");
    assert!(repeat.contains(&format!("--seed {}", figures["seed"])), "{repeat}");
    assert_eq!(place.run(&format!("ls torture- --json --url {url}")).exits(0).stdout.trim(), "[]");
}

#[test]
fn each_fault_has_a_row_and_a_command_that_repeats_it() {
    let place = Place::new();
    let words = "torture --local file --clients 2 --seconds 4 --each --faults stop,drop --json";
    let report: Value = serde_json::from_str(&place.run(words).exits(0).stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("a list");
    let faults: Vec<_> = rows.iter().map(|row| row["fault"].as_str().unwrap()).collect();
    assert_eq!(faults, ["stop", "drop", "stop,drop"]);
    for row in rows {
        let repeat = row["repeat"].as_str().expect("it is a command");
        assert!(repeat.ends_with(&format!("--faults {}", row["fault"].as_str().unwrap())), "{row}");
        let caused = row["faults_by_name"].as_object().expect("a map");
        assert!(caused.keys().all(|name| row["fault"].as_str().unwrap().contains(name)), "{row}");
    }
}

#[test]
fn kinds_have_weights() {
    let place = Place::new();
    let words = "torture --seconds 1 --cycles 200 --kinds mutex=9,multi --faults none --json";
    let figures = figures(&place.run(words).exits(0).stdout);
    let repeat = figures["repeat"].as_str().expect("it is a command");
    assert!(repeat.contains("--kinds mutex=9,multi"), "{repeat}");
    place.run("torture --kinds mutex=0").exits(64).says("a weight is a number from 1 to 100");
}

#[test]
fn a_fault_that_is_not_possible_is_refused_with_those_that_are() {
    let place = Place::new();
    // There is no proxy before a directory.
    let done = place.run("torture --faults reset").exits(64);
    done.says("there is no fault \"reset\" here; it is none, or some of: stop, kill, block, drop");
}

#[test]
fn servers_elsewhere_need_a_yes() {
    let place = Place::new();
    let done = place.run("torture redis://192.0.2.1").exits(64);
    done.says("nothing is done to the servers").says("say --yes");
}

#[test]
fn a_terminal_shows_progress_and_is_asked_about_servers_elsewhere() {
    let place = Place::new();
    let mut session = Session::at(&place);
    session.keys("lk torture --kinds mutex --clients 2 --seconds 2\n");
    session.shows("0 violations; ");
    session.shows("VIOLATIONS");
    session.keys("lk torture redis://192.0.2.1\n");
    session.shows("Put this load on them? [y/N]");
    session.keys("n\n");
    session.shows("nothing was done");
}

#[test]
fn enough_cycles_end_a_run_early() {
    let place = Place::new();
    let words = "torture --local file --seconds 10m --cycles 50 --faults none --json";
    let figures = figures(&place.run(words).exits(0).stdout);
    assert!(figures["cycles"].as_u64() >= Some(50), "{figures}");
    assert_eq!(figures["faults"], 0, "{figures}");
}

/// With real processes. The next test has all mutants, in simulated systems.
#[test]
fn a_mutant_is_caught_at_a_real_server() {
    let place = Place::new();
    let words = "torture --local redis --seconds 1m --mutant fence-per-client";
    let found = place.run(words).exits(1).stdout;
    for part in
        ["holds, fence", "repeat with: lockkeeper torture --local redis --seconds 60s --seed"]
    {
        assert!(found.contains(part), "{found}");
    }
}

#[test]
fn every_mutant_is_caught_and_its_seed_repeats_it() {
    let place = Place::new();
    for bug in Bug::ALL {
        let name = bug.name();
        let words = format!("torture --mutant {name} --seed 1 --seconds 1m");
        let found = place.run(&words).exits(1).stdout;
        let repeat = found.lines().find_map(|line| line.strip_prefix("repeat with: lockkeeper "));
        let repeat = repeat.unwrap_or_else(|| panic!("{name}: {found}"));
        let again = place.run(repeat).exits(1).stdout;
        let window = |text: &str| text.split_once("\n\n").map(|(_, window)| window.to_owned());
        assert_eq!(window(&again), window(&found), "{name}");
    }
    let clean = place.run("torture --simulate --cycles 50 --seed 1").exits(0).stdout;
    assert!(clean.contains("simulation"), "{clean}");
}

#[test]
fn an_interrupted_run_takes_its_clients_with_it() {
    let place = Place::new();
    let run = place.start("torture --seconds 10m --clients 2");
    let clients = eventually("it has clients", || {
        let children = format!("/proc/{0}/task/{0}/children", run.pid());
        let children = std::fs::read_to_string(children).ok()?;
        let pids: Vec<i32> =
            children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        (pids.len() == 2).then_some(pids)
    });
    run.signal(Signal::SIGINT);
    run.end().exits(130);
    assert!(!clients.into_iter().any(|pid| place.has(pid)));
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_run() {
    let place = Place::new();
    let refused = place.run("torture --simulate --seconds 1h --report missing/report.html");
    refused.exits(125).says("cannot write missing/report.html");
}
