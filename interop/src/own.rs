//! A test of the test: clients with the classic mistakes, which must be noticed.
//!
//! One releases without checking the owner. The other does everything right, but publishes its
//! releases on the wrong channel, so that no waiter is woken.

use std::process::Command;

use crate::arbiter::Arbiter;
use crate::driver::{Outcome, Program};
use crate::pairs::Run;
use crate::scenes::{self, LONG, kind};
use crate::store::Store;

/// Fails unless both mistakes are noticed, and correct behaviour passes.
pub(crate) fn check() -> Outcome {
    let store = Store::redis();
    let mut run =
        Run { arbiter: Arbiter::start(), built: Default::default(), broken: false, rows: vec![] };
    let fight = |run: &Run, name: &str| {
        let mut drivers = run.ours(&store.url()).start_many(LONG, 4)?;
        let sides = (&mut drivers[..], &mut [][..]);
        scenes::exclusion(&run.arbiter, sides, &[kind("mutex")], name, (100, 0), 3)
    };
    let right = fight(&run, "right")?;
    eprintln!("passed: clients that look whose lock it is: {right}");
    run.broken = true;
    match fight(&run, "broken") {
        Err(problem) if problem.contains("was let in beside") => {
            eprintln!("noticed: a release that does not look whose lock it is: {problem}");
        }
        other => return Err(format!("a careless release was not noticed: {other:?}")),
    }
    run.broken = false;
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let hosts = store.hosts();
    let (_, port) = hosts.split_once(':').ok_or("no port")?;
    let silent = Program::new([&me.display().to_string(), "drive-silent", port]);
    let mut waiter = run.ours(&store.url()).start(LONG)?;
    for (holder, name) in [(run.ours(&store.url()), "told"), (silent, "silent")] {
        let mut holder = holder.start(LONG)?;
        let sides = ((&mut holder, "mutex"), (&mut waiter, "mutex"));
        match (name, scenes::wake(&store, sides.0, sides.1, name, 1)) {
            ("told", Ok(time)) => eprintln!("passed: a release that is told: {time}"),
            ("silent", Err(problem)) if problem.contains("not woken") => {
                eprintln!("noticed: a release that tells the wrong channel: {problem}");
            }
            (name, outcome) => return Err(format!("{name}: {outcome:?}")),
        }
    }
    Ok(())
}

/// Sends a command to a Redis server, as an operator would.
fn cli(port: u16, command: &[&str]) {
    let answer = Command::new("redis-cli").args(["-p", &port.to_string()]).args(command).output();
    assert!(answer.is_ok_and(|answer| answer.status.success()), "redis-cli failed: {command:?}");
}

/// A client with the right keys and the wrong channel.
pub(crate) fn serve(port: u16) -> Outcome {
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["acquire", _, name] => {
                let lease = LONG.as_millis().to_string();
                cli(port, &["HSET", name, "00000000-0000-4000-8000-000000000000:1", "1"]);
                cli(port, &["PEXPIRE", name, &lease]);
                println!("held 0");
            }
            ["release", _, name] => {
                cli(port, &["DEL", name]);
                cli(port, &["PUBLISH", &format!("redisson_lock_channel:{{{name}}}"), "0"]);
                println!("released");
            }
            other => println!("error what is {other:?}?"),
        }
    }
    Ok(())
}
