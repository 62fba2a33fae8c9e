//! Nothing that came of a command outlives its lock, whatever groups and sessions it made for itself.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::place::{Place, Running, eventually, is_there, state_of};

/// Commands, each with one `./worker` that is not in the command's own group.
const COMMANDS: [(&str, &str); 6] = [
    ("timeout", "timeout 60 ./worker; true"),
    ("setsid", "setsid ./worker & wait"),
    ("daemon", "(setsid sh -c './worker & exec sleep 60' &); exec sleep 60"),
    ("orphan", "(setsid sh -c './worker &' &); exec sleep 60"),
    ("job control", "bash -mc './worker & wait'"),
    ("run inside a run", "$LOCKKEEPER run --ttl 3s inner-$LOCKKEEPER_KEY -- ./worker"),
];

/// What happens to the lock of a command, or to those who keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Expiry,
    Broken,
    ServerGone,
    WrapperKilled,
    GuardianKilled,
    /// Stopped by a signal: the wrapper lets it go on.
    GuardianStopped,
    /// Kept from running by a debugger: nothing lets it go on.
    GuardianFrozen,
    WrapperStopped,
}

const FATES: [Fate; 8] = [
    Fate::Expiry,
    Fate::Broken,
    Fate::ServerGone,
    Fate::WrapperKilled,
    Fate::GuardianKilled,
    Fate::GuardianStopped,
    Fate::GuardianFrozen,
    Fate::WrapperStopped,
];

impl Fate {
    /// A lease that ends, or one that is renewed.
    fn flags(self) -> &'static str {
        match self {
            Fate::Expiry | Fate::GuardianStopped | Fate::GuardianFrozen | Fate::WrapperStopped => {
                "--lease 5s"
            }
            _ => "--ttl 3s",
        }
    }

    fn exit_code(self) -> Option<i32> {
        match self {
            Fate::WrapperKilled => None,
            Fate::GuardianKilled => Some(125),
            _ => Some(79),
        }
    }
}

/// A command with its lock, while something happens to it.
struct Cell {
    name: String,
    place: Place,
    fate: Fate,
    holder: Option<Running>,
}

impl Cell {
    /// Starts the holder, and waits until its worker works.
    fn start(url: Option<&str>, fate: Fate, (name, script): (&str, &str), n: usize) -> Self {
        let place = url.map_or_else(Place::new, Place::at);
        // Deaf to everything that can be refused.
        let worker = "#!/bin/sh\ntrap '' TERM HUP INT\necho $$ >> pids\nexec sleep 60\n";
        let path = place.path("worker");
        std::fs::write(&path, worker).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let script =
            script.replace("$LOCKKEEPER ", &format!("{} ", env!("CARGO_BIN_EXE_lockkeeper")));
        let words = format!("run {} k{n} -- echo $$ >> pids; {script}", fate.flags());
        let name = format!("{name}, {fate:?}, {}", url.unwrap_or("file:"));
        // On a busy machine a lease may be over before the worker is at work.
        let holder = eventually(&format!("{name}: a worker"), || {
            let _ = std::fs::remove_file(place.path("pids"));
            let mut holder = place.start(&words);
            let told = || std::fs::read_to_string(place.path("pids")).unwrap_or_default();
            while holder.is_running() {
                if told().lines().count() == 2 {
                    return Some(holder);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            None
        });
        Self { name, place, fate, holder: Some(holder) }
    }

    fn pids(&self) -> Vec<i32> {
        self.place.content("pids").lines().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Who of them is there, zombies included.
    fn alive(&self) -> Vec<i32> {
        self.pids().into_iter().filter(|pid| is_there(*pid)).collect()
    }

    /// Lets it happen, and says what went wrong.
    fn judge(mut self, n: usize) -> Result<(), String> {
        let mut holder = self.holder.take().unwrap();
        let wrapper = holder.pid();
        let guardian = guardian_of(wrapper);
        // The next holder looks for everyone of the one before. A zombie has ended, and only waits to be
        // waited for, which needs time on a busy machine; the holder leaves none behind.
        let check = "for p in $(cat pids); do read stat 2>/dev/null < /proc/$p/stat && \
                     case \"$stat\" in *') Z '*|*') X '*) ;; *) echo overlap $stat;; esac; done; \
                     echo in";
        // With the usual lease: it is not what is tried here.
        let next = format!("run k{n} -- {check}");
        let early = !matches!(self.fate, Fate::Broken | Fate::ServerGone);
        let mut waiter = early.then(|| self.place.start(&next));
        match self.fate {
            Fate::Expiry | Fate::ServerGone => {}
            Fate::Broken => {
                self.place.run(&format!("break k{n} --yes --why test")).exits(0);
            }
            Fate::WrapperKilled => holder.signal(Signal::SIGKILL),
            Fate::GuardianKilled => kill(guardian, Signal::SIGKILL).unwrap(),
            Fate::GuardianStopped => kill(guardian, Signal::SIGSTOP).unwrap(),
            Fate::GuardianFrozen => freeze(guardian),
            Fate::WrapperStopped => {
                stop(wrapper);
                // By the guardian, in time; then the wrapper gives back what only it can.
                eventually(&self.name, || self.alive().is_empty().then_some(()));
                holder.signal(Signal::SIGCONT);
            }
        }
        while holder.is_running() {
            if self.fate == Fate::GuardianFrozen {
                // One that is debugged is waited for by its debugger first.
                let _ = waitpid(guardian, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let left = match self.fate {
            // Its guardian is still at it.
            Fate::WrapperKilled => Vec::new(),
            _ => self.alive(),
        };
        let ended = holder.end();
        if ended.code != self.fate.exit_code() || !left.is_empty() {
            let (code, said) = (ended.code, ended.stderr);
            return Err(format!("{}: exits with {code:?}, leaves {left:?}: {said}", self.name));
        }
        if self.fate == Fate::ServerGone {
            return Ok(());
        }
        let waiter = waiter.take().unwrap_or_else(|| self.place.start(&next));
        let seen = waiter.end();
        let left = self.alive();
        match seen.stdout.trim_end() == "in" && left.is_empty() {
            true => Ok(()),
            false => Err(format!("{}: {} {left:?}: {}", self.name, seen.stdout, seen.stderr)),
        }
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        for pid in self.alive() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

fn stop(process: Pid) {
    kill(process, Signal::SIGSTOP).unwrap();
    eventually("it stops", || (state_of(process.as_raw()) == Some('T')).then_some(()));
}

/// Keeps a process from running, whatever signals it gets, until it is killed or this thread ends.
fn freeze(process: Pid) {
    ptrace::seize(process, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(process).unwrap();
    eventually("it stops", || (state_of(process.as_raw()) == Some('t')).then_some(()));
}

/// The guardian is the wrapper's only child.
fn guardian_of(wrapper: Pid) -> Pid {
    eventually("a guardian", || {
        let children = std::fs::read_to_string(format!("/proc/{wrapper}/task/{wrapper}/children"));
        children.ok()?.trim().parse().ok().map(Pid::from_raw)
    })
}

/// Every command meets every fate, all at once.
fn every_fate(url: Option<&str>, mut end_server: impl FnMut()) {
    let wrong = Mutex::new(Vec::new());
    let cells: Vec<_> = FATES
        .into_iter()
        .filter(|fate| *fate != Fate::ServerGone)
        .flat_map(|fate| COMMANDS.map(|command| (fate, command)))
        .collect();
    let queue = Mutex::new(cells.into_iter().enumerate());
    let one_after_the_other = || {
        while let Some((n, (fate, command))) = { queue.lock().unwrap().next() } {
            if let Err(error) = Cell::start(url, fate, command, n).judge(n) {
                wrong.lock().unwrap().push(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(one_after_the_other);
        }
    });
    if url.is_some() {
        let mut cells = COMMANDS.iter().enumerate();
        let cells: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = cells
                .by_ref()
                .map(|(n, command)| {
                    scope.spawn(move || Cell::start(url, Fate::ServerGone, *command, 100 + n))
                })
                .collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        end_server();
        let gone = Instant::now();
        std::thread::scope(|scope| {
            for cell in cells {
                let wrong = &wrong;
                scope.spawn(move || {
                    let judged = cell.judge(0);
                    // No renewal came after this, so no lease lasts longer.
                    let late = gone.elapsed() > Duration::from_secs(4);
                    let late = late.then(|| format!("late: {:?}", gone.elapsed()));
                    wrong.lock().unwrap().extend(judged.err().into_iter().chain(late));
                });
            }
        });
    }
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} went wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn nothing_outlives_its_lock_on_files() {
    every_fate(None, || {});
}

#[test]
fn nothing_outlives_its_lock_on_redis() {
    let server = Server::start();
    every_fate(Some(&server.url()), || server.kill());
}

#[test]
fn nothing_outlives_its_lock_on_zookeeper() {
    let servers = Ensemble::single();
    let url = servers.url("descendants", Duration::from_secs(6));
    every_fate(Some(&url), || servers[0].kill());
}

/// A command that starts others in sessions of their own, faster than they can be looked for one by one.
#[test]
fn a_command_that_breeds_is_ended_to_the_last() {
    let place = Place::new();
    // They stop by themselves: a test that fails must not take the machine along.
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
        let left: Vec<_> = pids.iter().copied().filter(|pid| is_there(*pid)).collect();
        for pid in &left {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        assert!(left.is_empty(), "{} of {} are left", left.len(), pids.len());
        std::fs::remove_file(place.path("pids")).unwrap();
    }
}

/// A machine that is busy with other things, and a guardian that does nothing: the wrapper is in time
/// alone, with more threads that never rest than there are cores.
#[test]
fn a_busy_machine_ends_a_command_in_time_without_its_guardian() {
    let server = Server::start();
    let url = server.url();
    let over = AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(4, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores * 2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let wrong: Vec<_> = (0..6)
            .flat_map(|n| {
                let cell = Cell::start(Some(&url), Fate::GuardianFrozen, COMMANDS[n], n);
                cell.judge(n).err()
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

/// A process may take long to die, or never do, as one that waits in the kernel for a disk. Where the
/// store keeps a lock for as long as we live, nobody is let in before, whatever the lease was.
#[test]
fn a_process_that_does_not_die_keeps_the_lock() {
    let servers = Ensemble::single();
    let zookeeper = servers.url("undying", Duration::from_secs(6));
    for url in [None, Some(zookeeper.as_str())] {
        let mut cell = Cell::start(url, Fate::Expiry, COMMANDS[0], 0);
        let mut holder = cell.holder.take().unwrap();
        let worker = Pid::from_raw(cell.pids()[1]);
        let began = Instant::now();
        // Dead for everyone else when it is killed, but there until we have waited for it.
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

/// Without its guardian nobody would hear of the command's end, nor of a signal, nor of --max-hold.
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

/// Whoever starts us may have ignored SIGCHLD, as daemons do that wait for nobody. We do wait.
#[test]
fn a_command_is_waited_for_although_sigchld_is_ignored() {
    let place = Place::new();
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let script = format!("env --ignore-signal=CHLD {lockkeeper} run inner sh -c 'exit 5'");
    // As the command of another run, which ends it if it hangs.
    place.run(&format!("run --max-hold 20s k -- {script}")).exits(5);
}

/// A guardian that was stopped for longer than the lease finds orders that are old, and the last one.
#[test]
fn a_guardian_that_was_stopped_does_not_end_a_healthy_command() {
    let place = Place::new();
    nix::unistd::mkfifo(&place.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = place.start("run --url memory: --ttl 4s k -- echo > started; read x < go; exit 5");
    place.content("started");
    let guardian = guardian_of(run.pid());
    // The wrapper renews, and moves the deadline; it only steps in where that does not happen.
    freeze(guardian);
    std::thread::sleep(Duration::from_secs(5));
    ptrace::detach(guardian, None).unwrap();
    std::fs::write(place.path("go"), "\n").unwrap();
    run.end().exits(5);
}
