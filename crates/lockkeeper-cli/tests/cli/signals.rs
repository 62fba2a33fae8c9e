//! Signals to the wrapper: forwarded, or obeyed while there is nothing to forward them to.

use nix::sys::signal::Signal;

use crate::place::{Place, eventually, state_of};

#[test]
fn signals_are_forwarded_to_the_whole_group() {
    let place = Place::new();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        let name = signal.as_str().trim_start_matches("SIG").to_owned();
        let member = format!(
            "trap \"echo {name} >> got; exit 9\" {name}; echo >> ready; while :; do sleep 0.02; done"
        );
        // A shell makes its background children ignore these two.
        let members = if matches!(signal, Signal::SIGINT | Signal::SIGQUIT) { 1 } else { 2 };
        let other = if members == 2 { format!("sh -c '{member}' &") } else { String::new() };
        let run = place.start(&format!("run k -- {other} {member}"));
        eventually("all members are ready", || {
            (place.content("ready").len() == members).then_some(())
        });
        run.signal(signal);
        run.end().exits(9);
        assert_eq!(place.content("got"), format!("{name}\n").repeat(members));
        for file in ["ready", "got"] {
            std::fs::remove_file(place.path(file)).unwrap();
        }
    }
}

#[test]
fn a_signal_while_waiting_ends_the_wait_and_starts_nothing() {
    let place = Place::new();
    let holder = place.start("run k -- sleep 60");
    place.until("k", 1, 0);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let waiter = place.start("run --status-file status k -- echo started > started");
        place.until("k", 1, 1);
        waiter.signal(signal);
        waiter.end().exits(128 + signal as i32).prints("");
        place.until("k", 1, 0);
        assert_eq!(place.status("status")["outcome"], "interrupted");
        std::fs::remove_file(place.path("status")).unwrap();
    }
    drop(holder);
    place.run("run -w 10 k true").exits(0);
    assert!(!place.path("started").exists());
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let place = Place::new();
    let script = "grep SigIgn /proc/self/status; kill -HUP $PPID; echo survived";
    let ours = place.lockkeeper("run k -- unused");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" run k sh -c \"$1\""]);
    shell.arg(ours.get_program()).arg(script).env("LOCKKEEPER_URL", place.url());
    let text = String::from_utf8(shell.output().unwrap().stdout).unwrap();
    let ignored = text.lines().next().unwrap().trim_start_matches("SigIgn:\t");
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 1, 1, "{text}");
    assert!(text.ends_with("survived\n"), "{text}");
}

#[test]
fn the_command_starts_with_the_mask_that_we_were_started_with() {
    let place = Place::new();
    let blocked = |words: &[&str]| {
        let ours = place.lockkeeper("");
        let mut command = std::process::Command::new("env");
        command.args(words).arg(ours.get_program());
        command.args(["run", "k", "grep", "SigBlk", "/proc/self/status"]);
        let output = command.env("LOCKKEEPER_URL", place.url()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(blocked(&[]), "SigBlk:\t0000000000000000\n");
    assert_eq!(blocked(&["--block-signal=USR1"]), "SigBlk:\t0000000000000200\n");
}

#[test]
fn a_stop_reaches_the_command_and_continue_checks_first() {
    let place = Place::new();
    nix::unistd::mkfifo(&place.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // One process: a shell that is just starting another one does not appear stopped.
    let run = place.start("run k -- echo $$ > pid; exec cat go");
    let command: i32 = place.content("pid").trim().parse().unwrap();
    eventually("cat", || {
        let name = std::fs::read_to_string(format!("/proc/{command}/comm")).ok()?;
        (name == "cat\n").then_some(())
    });
    run.signal(Signal::SIGTSTP);
    eventually("the command stops", || (state_of(command) == Some('T')).then_some(()));
    run.signal(Signal::SIGCONT);
    std::fs::write(place.path("go"), "done\n").unwrap();
    run.end().exits(0).prints("done");
}
