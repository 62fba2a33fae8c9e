//! `run`: exclusion, ways to acquire, exit codes, the command's environment.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_testkit::server::redis::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place::{Place, is_there};

#[test]
fn two_runs_are_never_in_at_once() {
    let place = Place::new();
    // A process that finds the mark of another holds at the same time.
    let script = "run k -- for i in 1 2 3; do mkdir in || echo overlap; rmdir in; done";
    let runs: Vec<_> = (0..8).map(|_| place.start(script)).collect();
    for run in runs {
        run.end().exits(0).prints("");
    }
}

#[test]
fn the_commands_own_code_passes_through() {
    let place = Place::new();
    for code in [0, 1, 7, 64, 75, 79, 255] {
        place.run(&format!("run k -- exit {code}")).exits(code);
    }
    for signal in [1, 9, 15] {
        place.run(&format!("run k -- kill -{signal} $$; sleep 60")).exits(128 + signal);
    }
}

#[test]
fn a_command_that_cannot_run_is_distinguished_from_a_missing_one() {
    let place = Place::new();
    place.run("run k no-such-command").exits(127).says("no-such-command: command not found");
    std::fs::write(place.path("text"), "not a program").unwrap();
    place.run("run k ./text").exits(126).says("./text: cannot be executed");
    // The lock is free after both.
    place.run("run -n k true").exits(0);
}

#[test]
fn busy_is_75_and_can_be_another_code() {
    let place = Place::new();
    let holder = place.start("run --note nightly k -- sleep 60");
    place.until("k", 1, 0);
    let busy = place.run("run -n k true").exits(75).says("lock \"k\" is busy; held by ");
    let command = format!(" {} running \"sh -c sleep 60\" for ", holder.pid());
    assert!(busy.stderr.contains(&command), "{}", busy.stderr);
    assert!(busy.stderr.ends_with(" (nightly)\n"), "{}", busy.stderr);
    place.run("run -n -q k true").exits(75).prints("");
    place.run("run -n -E 3 k true").exits(3);
    place.run("run -n --skip-ok k true").exits(0).prints("");
    place.run("run -w 0 k true").exits(75);
    let started = Instant::now();
    place.run("run -w 0.3 k true").exits(75).says("busy after 300ms");
    assert!(started.elapsed() >= Duration::from_millis(300));
    place.run("run -w 300ms --skip-ok k true").exits(0);
    drop(holder);
}

#[test]
fn a_waiting_run_starts_when_the_lock_is_free() {
    let place = Place::new();
    let first = place.start("run k -- read line < go; echo first");
    nix::unistd::mkfifo(&place.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    place.until("k", 1, 0);
    let second = place.start("run -w 30 -v k -- echo second");
    place.until("k", 1, 1);
    std::fs::write(place.path("go"), "\n").unwrap();
    first.end().exits(0).prints("first");
    second.end().exits(0).says("waited").prints("second");
}

#[test]
fn readers_share_and_writers_do_not() {
    let place = Place::new();
    let _reader = place.start("run -s k -- sleep 60");
    place.until("k", 1, 0);
    place.run("run -s -n k -- echo in").exits(0).prints("in");
    place.run("run -x -n k true").exits(75);
}

#[test]
fn a_limit_lets_so_many_in() {
    let place = Place::new();
    let _one = place.start("run --limit 2 k -- sleep 60");
    let _two = place.start("run --limit 2 k -- sleep 60");
    place.until("k", 2, 0);
    place.run("run -n --limit 2 k true").exits(75);
    place.run("run -n --limit 3 k true").exits(64).says("semaphore");
}

#[test]
fn the_command_learns_about_its_lock_and_inherits_nothing_of_ours() {
    let place = Place::new();
    let files = "ls /proc/self/fd | wc -w";
    let script = format!(
        "echo $LOCKKEEPER_KEY $LOCKKEEPER_HELD $LOCKKEEPER_URL; \
         test $LOCKKEEPER_FENCE -gt 0 && test -n $LOCKKEEPER_OWNER && {files}"
    );
    let mut command = place.lockkeeper(&format!("run a/b -- {script}"));
    command.env("LOCKKEEPER_KEY", "a run around this one");
    let output = command.output().unwrap();
    let without_us = Command::new("sh").args(["-c", files]).stdin(Stdio::null()).output().unwrap();
    let without_us = String::from_utf8(without_us.stdout).unwrap();
    let expected = format!("a/b 1 {}\n{without_us}", place.url());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

/// The kernel has one lock for all changes to control groups, and a busy machine keeps it for seconds: a
/// run that waits for it ends its command late.
#[test]
fn a_command_stays_in_the_control_group_of_its_caller() {
    let place = Place::new();
    let ours = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    place.run("run k -- cat /proc/self/cgroup").exits(0).prints(ours.trim_end());
}

#[test]
fn input_and_output_pass_through_untouched() {
    let place = Place::new();
    let mut command = place.lockkeeper("run k -- cat; echo err >&2");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(output.stdout, bytes);
    assert_eq!(output.stderr, b"err\n");
}

#[test]
fn only_c_uses_a_shell() {
    let place = Place::new();
    let echo = |args: &[&str]| {
        let output = place.lockkeeper("run k").args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(echo(&["echo", "$HOME;", "*"]), "$HOME; *\n");
    assert_eq!(echo(&["--", "echo", "-n"]), "");
    assert_eq!(echo(&["-c", "echo $((1 + 1)) | cat"]), "2\n");
}

#[test]
fn max_hold_ends_the_command_with_124() {
    let place = Place::new();
    place
        .run("run --max-hold 0.2 --status-file status k -- sleep 60")
        .exits(124)
        .says("--max-hold is reached");
    let status = place.status("status");
    assert_eq!((&status["outcome"], &status["child_signal"]), (&"max-hold".into(), &15.into()));
    // A command that ignores TERM is killed after the grace.
    let script = "trap '' TERM; while :; do sleep 0.05; done";
    place
        .run(&format!("run -q --max-hold 0.2 --grace 0.2 --status-file status k -- {script}"))
        .exits(124);
    assert_eq!(place.status("status")["child_signal"], 9);
}

#[test]
fn the_status_file_tells_what_an_exit_code_cannot() {
    let place = Place::new();
    place.run("run --status-file status k -- exit 75").exits(75);
    let status = place.status("status");
    assert_eq!(status["outcome"], "done");
    assert_eq!((&status["child_code"], &status["exit_code"]), (&75.into(), &75.into()));
    assert!(status["fence"].as_u64().unwrap() > 0 && status["held"].as_f64().unwrap() > 0.0);
    assert_eq!((&status["key"], &status["url"]), (&"k".into(), &place.url().into()));

    let _holder = place.start("run k -- sleep 60");
    place.until("k", 1, 0);
    place.run("run -n --skip-ok --status-file status k true").exits(0);
    let status = place.status("status");
    assert_eq!((&status["outcome"], &status["exit_code"]), (&"busy".into(), &0.into()));
    // Only complete files, and nothing next to them.
    let left: Vec<_> = std::fs::read_dir(place.path("")).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
    // An unwritable file is detected before the command runs.
    place
        .run("run --status-file no/such/dir other -- echo ran")
        .exits(125)
        .says("no/such/dir")
        .prints("");
}

#[test]
fn json_is_said_at_the_end() {
    let place = Place::new();
    let done = place.run("run --json k -- exit 3").exits(3);
    let said: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    assert_eq!(said["child_code"], 3);
}

#[test]
fn a_status_goes_to_a_device_or_a_link_without_replacing_it() {
    let place = Place::new();
    let said = place.run("run --status-file /dev/stdout k true").exits(0).stdout;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap()["outcome"], "done");
    std::fs::write(place.path("status"), "").unwrap();
    std::os::unix::fs::symlink("status", place.path("link")).unwrap();
    place.run("run --status-file link k -- exit 3").exits(3);
    assert_eq!(place.status("status")["child_code"], 3);
    assert!(place.path("link").is_symlink());
    // A directory is detected before the command is started, a pipe without a reader is not.
    let refused = "cannot write the status file";
    place.run("run --status-file run k -- echo started").exits(125).says(refused).prints("");
    nix::unistd::mkfifo(&place.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    place.run("run --status-file pipe k -- exit 3").exits(3).says(refused);
}

#[test]
fn a_program_that_cannot_be_executed_is_said_why() {
    let place = Place::new();
    for (text, why) in [
        ("#!/no/such/interpreter\n", "the program that its first line names is not there"),
        ("true\n", "no first line such as #!/bin/sh"),
    ] {
        let path = place.path("script");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        place.run("run k ./script").exits(126).says(why);
    }
}

#[test]
fn an_owner_enters_again_below_its_own_run() {
    let place = Place::new();
    let inner = "lockkeeper run -n --owner me k -- 'echo inside'";
    let inner = inner
        .replacen("lockkeeper", env!("CARGO_BIN_EXE_lockkeeper"), 1)
        .replace("-- ", "-- sh -c ");
    place.run(&format!("run --owner me k -- {inner}")).exits(0).prints("inside");
    // Another owner does not, and neither does the same one under another key's lock.
    let other = inner.replace("--owner me", "--owner you");
    place.run(&format!("run --owner me k -- {other}")).exits(75);
}

#[test]
fn a_daemon_of_a_finished_run_acquires_like_any_other() {
    let place = Place::new();
    let ours = env!("CARGO_BIN_EXE_lockkeeper");
    // It outlives its run, and has its environment.
    let daemon = format!(
        "until test -e go; do sleep 0.01; done; {ours} run -n --owner me k -- echo inside; echo $? > code"
    );
    let script = format!("run --owner me k -- setsid sh -c '{daemon}' > out 2>&1 &");
    place.run(&script).exits(0);
    let holder = place.start("run k -- sleep 60");
    place.until("k", 1, 0);
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(place.content("code"), "75\n");
    assert!(!place.content("out").contains("inside"));
    drop(holder);
}

#[test]
fn a_run_keeps_its_lock_for_a_daemon_that_entered_it() {
    let place = Place::new();
    let ours = env!("CARGO_BIN_EXE_lockkeeper");
    nix::unistd::mkfifo(&place.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let inner = "echo > entered; read x < go; echo > left";
    let daemon = format!("{ours} run -n --owner me k -- sh -c \"{inner}\"");
    // The command itself ends as soon as the daemon has started.
    let script = format!(
        "setsid sh -c '{daemon}' > out 2>&1 & until test -e entered; do sleep 0.01; done; exit 5"
    );
    let run = place.start(&format!("run --owner me k -- {script}"));
    place.content("entered");
    place.run("run -w 0.5 k true").exits(75);
    std::fs::write(place.path("go"), "\n").unwrap();
    run.end().exits(5);
    assert!(place.path("left").exists());
    place.run("run -n k true").exits(0);
}

#[test]
fn a_wait_limit_covers_an_engine_that_is_not_there_yet() {
    let server = Server::start();
    let place = Place::at(&server.url());
    server.kill();
    // Without a limit there is nothing to wait for.
    let started = Instant::now();
    place.run("run k true").exits(69);
    place.run("run -n k true").exits(69);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let started = Instant::now();
    let refused = place.run("run -w 1s k true").exits(69).says("waiting for redis://127.0.0.1");
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    let last = refused.stderr.lines().last().unwrap();
    assert!(last.contains("the wait is over") && last.contains("refused"), "{}", refused.stderr);
    // So does `acquire`.
    place.run("acquire k").exits(69);
    let started = Instant::now();
    let refused = place.run("acquire -w 1s k").exits(69).says("waiting for redis://127.0.0.1");
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    assert!(refused.stderr.contains("the wait is over"), "{}", refused.stderr);
    let acquiring = place.start("acquire -w 60 other");
    let mut waiting = place.lockkeeper("run -w 60 k -- echo in").spawn().unwrap();
    let mut said = String::new();
    BufReader::new(waiting.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("lockkeeper: waiting for redis://127.0.0.1"), "{said}");
    server.restart();
    let done = waiting.wait_with_output().unwrap();
    assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(0), b"in\n".as_slice()));
    let handle = acquiring.end().exits(0).stdout;
    place.run(&format!("release {handle}")).exits(0);
}

/// The key may hold something that is no lock: then there is no other way to acquire it.
#[test]
fn data_at_a_key_is_answered_with_what_to_do() {
    let server = Server::start();
    let place = Place::at(&server.url());
    server.ask(&["SET", "text", "hello"]);
    server.ask(&["RPUSH", "list", "1"]);
    for (key, advice) in [
        ("text", "choose another key, or add ?layout=string to the URL"),
        ("list", "a list is there, which is no lock: choose another key"),
    ] {
        for verb in ["run KEY true", "run --shared KEY true", "acquire KEY", "show KEY"] {
            let said = place.run(&verb.replace("KEY", key)).exits(64).says(advice);
            assert!(!said.stderr.contains("in the same way"), "{}", said.stderr);
        }
    }
    let holder = place.start("run k -- echo > in; sleep 60");
    place.content("in");
    place.run("run --shared -n k true").exits(64).says("in the same way");
    holder.signal(Signal::SIGTERM);
    holder.end().exits(143);
}

#[test]
fn a_run_that_waits_for_its_outer_run_reports_it() {
    let place = Place::new();
    let script = format!("run k -- exec {} run k true", env!("CARGO_BIN_EXE_lockkeeper"));
    let mut outer = place.lockkeeper(&script).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(outer.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("give both the same --owner"), "{said}");
    kill(Pid::from_raw(i32::try_from(outer.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(outer.wait().unwrap().code(), Some(143));
}

/// Others share a read lock or a semaphore, so an inner run must not hold more than that.
#[test]
fn a_run_inside_a_run_enters_as_the_same_kind_or_not_at_all() {
    let server = Server::start();
    let ours = env!("CARGO_BIN_EXE_lockkeeper");
    for place in [Place::new(), Place::at(&server.url())] {
        let nested = |outer: &str, inner: &str| {
            place.run(&format!(
                "run {outer} --owner me k -- {ours} run -n {inner} --owner me k true"
            ))
        };
        for (outer, inner) in
            [("-s", "-x"), ("-s", ""), ("--limit 2", ""), ("--limit 2", "--limit 3")]
        {
            nested(outer, inner).exits(64).says("ask for the same kind in both");
        }
        for (outer, inner) in
            [("", ""), ("-s", "-s"), ("-x", "-x"), ("-x", "-s"), ("--limit 2", "--limit 2")]
        {
            nested(outer, inner).exits(0);
        }
    }
}

/// Everyone sees a note, however long it is.
#[test]
fn a_long_note_does_no_harm() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let note = "x".repeat(70_000);
    let holder = place.start(&format!("run --note {note} k -- echo > in; sleep 60"));
    place.content("in");
    for look in ["ls", "show k"] {
        let seen = place.run(look).exits(0);
        assert!(seen.stdout.contains("xxx…") && seen.stdout.len() < 2_000, "{}", seen.stdout.len());
    }
    let busy = place.run("run -n k true").exits(75);
    assert!(busy.stderr.len() < 2_000, "{}", busy.stderr.len());
    holder.signal(Signal::SIGTERM);
    holder.end().exits(143);
}

#[test]
fn the_lock_stays_until_the_whole_group_is_gone() {
    let place = Place::new();
    // The command ends at once; its child stays until it is told to end.
    nix::unistd::mkfifo(&place.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut run = place.start("run k -- sh -c 'echo $$ > pid; read line < go' & exit 5");
    let grandchild: i32 = place.content("pid").trim().parse().unwrap();
    place.run("run -n k true").exits(75);
    assert!(run.is_running() && is_there(grandchild));
    std::fs::write(place.path("go"), "\n").unwrap();
    run.end().exits(5);
    assert!(!is_there(grandchild));
    place.run("run -n k true").exits(0);
}
