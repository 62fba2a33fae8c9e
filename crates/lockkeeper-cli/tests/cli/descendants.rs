//! No descendant of a command outlives its lock, whatever process groups and sessions it created.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::cell::{COMMANDS, Cell, Fate, Pace, freeze, guardian_of};
use crate::place::{Place, eventually, state_of};

/// Every command meets every fate, some of them at once.
fn every_fate(urls: Option<[&str; 2]>, end_server: impl FnOnce()) {
    let cells = Fate::OF_ONE_LOCK.into_iter().flat_map(|fate| COMMANDS.map(|c| (fate, c)));
    let queue = Mutex::new(cells.enumerate());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some((n, (fate, command))) = { queue.lock().unwrap().next() } {
                    let judged = Cell::start(urls, fate, command, n, Pace::Steady).judge();
                    wrong.lock().unwrap().extend(judged.err());
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().unwrap();
    if urls.is_some() {
        wrong.extend(without_a_server(urls, end_server));
    }
    assert!(wrong.is_empty(), "{} went wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Every command at once, when the server ends.
fn without_a_server(urls: Option<[&str; 2]>, end_server: impl FnOnce()) -> Vec<String> {
    let lease = Duration::from_secs(3);
    std::thread::scope(|scope| {
        let start = |(n, command): (usize, _)| {
            scope.spawn(move || Cell::start(urls, Fate::ServerGone, command, 100 + n, Pace::Steady))
        };
        let starts: Vec<_> = COMMANDS.into_iter().enumerate().map(start).collect();
        let cells: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        end_server();
        // No renewal came after this, so no lease lasts longer than from now on.
        let over = SystemTime::now() + lease;
        let judge = |cell: Cell| {
            scope.spawn(move || {
                let name = cell.name.clone();
                let ended = cell.judge()?;
                if let Ok(late) = ended.worked.duration_since(over) {
                    return Err(format!("{name}: works {late:?} after its lease"));
                }
                let exited = ended.exited - ended.dead;
                match exited < Duration::from_secs(1) {
                    true => Ok(()),
                    false => Err(format!("{name}: exits {exited:?} after its command's death")),
                }
            })
        };
        let judged: Vec<_> = cells.into_iter().map(judge).collect();
        judged.into_iter().filter_map(|judged| judged.join().unwrap().err()).collect()
    })
}

#[test]
fn nothing_outlives_its_lock_on_files() {
    every_fate(None, || {});
}

#[test]
fn nothing_outlives_its_lock_on_redis() {
    let server = Server::start();
    let url = server.url();
    every_fate(Some([&url, &url]), || server.kill());
}

#[test]
fn nothing_outlives_its_lock_on_zookeeper() {
    let servers = Ensemble::single();
    // A session limits a lease to half of its length.
    let [url, next] = [6, 60].map(|s| servers.url("descendants", Duration::from_secs(s)));
    every_fate(Some([&url, &next]), || servers[0].kill());
}

/// A command that starts others in new sessions, faster than they can be found one by one.
#[test]
fn a_command_that_breeds_is_ended_to_the_last() {
    let place = Place::new();
    // They stop by themselves: a failing test must not take the machine with it.
    let breeder = "#!/bin/sh\ntrap '' TERM\n\
                   for i in $(seq 300); do setsid ./worker & done; exec sleep 60\n";
    let worker = "#!/bin/sh\ntrap '' TERM\necho $$ >> pids\nexec sleep 60\n";
    for (name, text) in [("breeder", breeder), ("worker", worker)] {
        std::fs::write(place.path(name), text).unwrap();
        std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for wrapper_dies in [true, false] {
        let run = place.start("run k -- setsid ./breeder & ./breeder");
        eventually("a crowd", || (place.content("pids").lines().count() > 20).then_some(()));
        let victim = if wrapper_dies { run.pid() } else { guardian_of(run.pid()) };
        kill(victim, Signal::SIGKILL).unwrap();
        place.run("run -w 30 k true").exits(0);
        let pids: BTreeSet<i32> =
            place.content("pids").lines().filter_map(|line| line.parse().ok()).collect();
        let left: Vec<_> = pids.iter().copied().filter(|pid| place.has(*pid)).collect();
        for pid in &left {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        assert!(left.is_empty(), "{} of {} are left", left.len(), pids.len());
        std::fs::remove_file(place.path("pids")).unwrap();
    }
}

/// A command that keeps continuing in a new process, so that a process found a moment ago is gone.
#[test]
fn a_command_that_never_stays_is_ended() {
    let place = Place::new();
    // It stops by itself: a failing test must not take the machine with it.
    let walk = "$SIG{TERM} = \"IGNORE\"; open W, \">>\", \"work\"; \
                while (time - $^T < 20) { syswrite W, \"$$\\n\"; fork and exit }";
    for wrapper_dies in [true, false] {
        let run = place.start(&format!("run k -- setsid perl -e '{walk}' & sleep 60"));
        eventually("many of them", || (place.content("work").lines().count() > 100).then_some(()));
        let victim = if wrapper_dies { run.pid() } else { guardian_of(run.pid()) };
        kill(victim, Signal::SIGKILL).unwrap();
        let walked = Instant::now();
        place.run("run -w 10 k -- echo next >> work").exits(0);
        assert!(walked.elapsed() < Duration::from_secs(10), "it ended by itself");
        // A survivor writes every few microseconds: this is time for it to show.
        std::thread::sleep(Duration::from_millis(100));
        assert!(place.content("work").ends_with("next\n"), "it works on");
        std::fs::remove_file(place.path("work")).unwrap();
    }
}

/// Children that want all cores all the time, but less than everyone else does.
struct Load(Vec<Child>);

impl Load {
    fn start() -> Self {
        let cores = std::thread::available_parallelism().map_or(4, usize::from);
        // They stop by themselves: a test that is killed must not leave them behind for long.
        let busy = "while ((SECONDS < 60)); do :; done";
        let start = |_| Command::new("nice").args(["-n", "5", "bash", "-c", busy]).spawn().unwrap();
        Self((0..cores * 2).map(start).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A machine that is busy with other things, workers that never rest, and a guardian that does
/// nothing: the wrapper alone is in time.
#[test]
fn a_busy_machine_ends_a_command_in_time_without_its_guardian() {
    let server = Server::start();
    let url = server.url();
    let _load = Load::start();
    let wrong: Vec<_> = std::thread::scope(|scope| {
        let judge = |(n, command): (usize, _)| {
            let url = &url;
            scope.spawn(move || {
                let urls = Some([&**url, &**url]);
                Cell::start(urls, Fate::GuardianFrozen, command, n, Pace::Restless).judge()
            })
        };
        let judged: Vec<_> = COMMANDS.into_iter().enumerate().map(judge).collect();
        judged.into_iter().filter_map(|judged| judged.join().unwrap().err()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A process may take long to die, or never do, like one that waits in the kernel for a disk. If
/// the store keeps a lock as long as we live, it is not granted to another before, whatever the
/// lease was.
#[test]
fn a_process_that_does_not_die_keeps_the_lock() {
    let servers = Ensemble::single();
    let zookeeper = servers.url("undying", Duration::from_secs(6));
    for urls in [None, Some([zookeeper.as_str(); 2])] {
        let mut cell = Cell::start(urls, Fate::Expiry, COMMANDS[0], 0, Pace::Steady);
        let mut holder = cell.holder.take().unwrap();
        let worker = Pid::from_raw(cell.pids()[1]);
        let began = Instant::now();
        // Dead when it is killed, but it exists until we have waited for it.
        freeze(worker);
        while began.elapsed() < Duration::from_secs(8) {
            assert!(holder.is_running(), "{}: it leaves its worker behind", cell.name);
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(state_of(worker.as_raw()), Some('Z'), "{}", cell.name);
        cell.place.run("run -n k0 true").exits(75);
        waitpid(worker, Some(WaitPidFlag::__WALL)).unwrap();
        holder.end().exits(79);
        cell.place.run("run -n k0 true").exits(0);
    }
}

/// Without its guardian, the command's end, a signal and --max-hold would go unnoticed.
#[test]
fn a_guardian_that_is_stopped_is_let_go_on() {
    let place = Place::new();
    nix::unistd::mkfifo(&place.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = "echo > started; read x < go; exit 5";
    let start = |flags: &str| {
        let run = place.start(&format!("run {flags} k -- {script}"));
        place.content("started");
        std::fs::remove_file(place.path("started")).unwrap();
        let guardian = guardian_of(run.pid());
        kill(guardian, Signal::SIGSTOP).unwrap();
        run
    };
    let run = start("");
    std::fs::write(place.path("go"), "\n").unwrap();
    run.end().exits(5);
    let run = start("");
    run.signal(Signal::SIGTERM);
    run.end().exits(143);
    start("--max-hold 3s").end().exits(124);
    place.run("run -n k true").exits(0);
}

/// We may be started with SIGCHLD ignored, as by daemons that never wait. We do wait.
#[test]
fn a_command_is_waited_for_although_sigchld_is_ignored() {
    let place = Place::new();
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let script = format!("env --ignore-signal=CHLD {lockkeeper} run inner sh -c 'exit 5'");
    // As the command of another run, which ends it if it hangs.
    place.start(&format!("run --max-hold 20s k -- {script}")).end().exits(5);
}

/// A guardian that was stopped for longer than the lease finds outdated orders, and the last one.
#[test]
fn a_guardian_that_was_stopped_does_not_end_a_healthy_command() {
    let place = Place::new();
    nix::unistd::mkfifo(&place.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = place.start("run --url memory: --ttl 4s k -- echo > started; read x < go; exit 5");
    place.content("started");
    let guardian = guardian_of(run.pid());
    // The wrapper renews, and moves the deadline; it only steps in if that does not happen.
    freeze(guardian);
    std::thread::sleep(Duration::from_secs(5));
    ptrace::detach(guardian, None).unwrap();
    std::fs::write(place.path("go"), "\n").unwrap();
    run.end().exits(5);
}
