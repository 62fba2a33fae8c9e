//! Runs lockkeeper and the lock libraries of other languages against the same locks.
//!
//! - [`arbiter`] observes every critical section and reports violations.
//! - [`driver`] is a process that follows orders; [`ours`] is the one that uses this library, the
//!   others are in `java`, `go`, `node`, `python` and `rust` next to this directory.
//! - [`scenes`] has the tests, [`meeting`] runs them with two clients, [`pairs`] lists the clients.
//! - [`failovers`] is a separate scene: it observes what happens while Redis servers fail over.
//! - [`peers`] does to each of them, alone, what `lockkeeper torture` does to ours, and more.
//! - [`own`] verifies that a careless client is noticed.
//!
//! `interop/run` builds the foreign drivers and starts it.

mod arbiter;
mod driver;
mod failovers;
mod meeting;
mod ours;
mod own;
mod pairs;
mod peers;
mod resource;
mod scenes;
mod store;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use driver::Outcome;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Outcome {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["drive", url, lease] => ours::serve(url, milliseconds(lease)?, false),
        ["drive-broken", url, lease] => ours::serve(url, milliseconds(lease)?, true),
        ["drive-silent", port, _] => own::serve(port.parse().map_err(|_| "which port?")?),
        ["self-check"] => own::check(),
        ["meet", built, rest @ ..] => {
            let broken = rest.contains(&"--broken");
            let wanted: Vec<_> =
                rest.iter().filter(|w| **w != "--broken").map(|w| (*w).to_owned()).collect();
            let arbiter = arbiter::Arbiter::start();
            let mut run = pairs::Run { arbiter, built: built.into(), broken, rows: Vec::new() };
            let outcome = run.meet(&wanted);
            println!("{}", table::head());
            run.rows.iter().for_each(|row| println!("{row}"));
            outcome
        }
        ["peers", built, scenes @ ..] => {
            let arbiter = arbiter::Arbiter::start();
            let run = pairs::Run { arbiter, built: built.into(), broken: false, rows: Vec::new() };
            peers::compare(&run, scenes)
        }
        _ => Err("usage: lockkeeper-interop meet BUILT [--broken] [NAME…] | peers BUILT [SCENE…] | self-check"
            .to_owned()),
    }
}

fn milliseconds(word: &str) -> Outcome<Duration> {
    word.parse().map(Duration::from_millis).map_err(|_| format!("{word} is no number"))
}
