//! A command with a lock and a worker that escaped from the command's process group, and what may
//! happen to them.
//!
//! The work is a file that the worker appends to, and to which the next holder appends a line
//! before it does anything else. Whatever the worker did after that is behind this line: the order
//! of the effects decides, not what the kernel reports about a process, and no clock.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, mkfifo};

use crate::place::{Place, Running, eventually, state_of};

/// Commands, each with one `./worker` that is not in the command's own group.
pub(crate) const COMMANDS: [(&str, &str); 6] = [
    ("timeout", "timeout 60 ./worker; true"),
    ("setsid", "setsid ./worker & wait"),
    ("daemon", "(setsid sh -c './worker & exec sleep 60' &); exec sleep 60"),
    ("orphan", "(setsid sh -c './worker &' &); exec sleep 60"),
    ("job control", "bash -mc './worker & wait'"),
    ("run inside a run", "$LOCKKEEPER run --ttl 3s inner-$LOCKKEEPER_KEY -- ./worker"),
];

/// What happens to the lock of a command, or to the processes that keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Expiry,
    Broken,
    ServerGone,
    WrapperKilled,
    GuardianKilled,
    /// Stopped by a signal: the wrapper continues it.
    GuardianStopped,
    /// Stopped by a debugger: nothing continues it.
    GuardianFrozen,
    WrapperStopped,
}

impl Fate {
    /// All but the end of the server, which ends the locks of all.
    pub(crate) const OF_ONE_LOCK: [Fate; 7] = [
        Fate::Expiry,
        Fate::Broken,
        Fate::WrapperKilled,
        Fate::GuardianKilled,
        Fate::GuardianStopped,
        Fate::GuardianFrozen,
        Fate::WrapperStopped,
    ];

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

/// How hard a worker works.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// A hundred times a second.
    Steady,
    /// Without a pause: it always wants a core.
    Restless,
}

impl Pace {
    /// Ignores every signal that can be ignored, and ends after a minute by itself.
    fn worker(self) -> String {
        let pause = match self {
            Pace::Steady => "read -rt 0.01 -u 3",
            Pace::Restless => ":",
        };
        format!(
            "#!/bin/bash\ntrap '' TERM HUP INT\necho $$ >> pids\nexec 3<>never\n\
             while ((SECONDS < 60)) && echo $$ >> work; do {pause}; done\n"
        )
    }
}

/// A command with its lock, while something happens to it.
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) place: Place,
    /// The engine of the next holder.
    next: String,
    key: String,
    fate: Fate,
    pub(crate) holder: Option<Running>,
}

/// When the worker did something for the last time, when it was dead and reaped, and when the
/// command that held the lock had ended.
///
/// A process that was killed does nothing any more, but the kernel may need long to end it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) worked: SystemTime,
    pub(crate) dead: Instant,
    pub(crate) exited: Instant,
}

impl Cell {
    /// Starts the holder at the first URL, and waits until its worker works. The other URL is for
    /// the next holder, whose lease must not be short: it is not under test here.
    pub(crate) fn start(
        urls: Option<[&str; 2]>,
        fate: Fate,
        (name, script): (&str, &str),
        n: usize,
        pace: Pace,
    ) -> Self {
        let place = urls.map_or_else(Place::new, |[url, _]| Place::at(url));
        let next = urls.map_or_else(|| place.url(), |[_, next]| next.to_owned());
        let path = place.path("worker");
        std::fs::write(&path, pace.worker()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        mkfifo(&place.path("never"), Mode::S_IRWXU).unwrap();
        let script =
            script.replace("$LOCKKEEPER ", &format!("{} ", env!("CARGO_BIN_EXE_lockkeeper")));
        let key = format!("k{n}");
        let words = format!("run {} {key} -- echo $$ >> pids; {script}", fate.flags());
        let name = format!("{name}, {fate:?}, {}", place.url());
        // On a busy machine a lease may be over before the worker has started.
        let holder = eventually(&format!("{name}: a worker"), || {
            for left in ["pids", "work"] {
                let _ = std::fs::remove_file(place.path(left));
            }
            let mut holder = place.start(&words);
            while holder.is_running() {
                let told = std::fs::read_to_string(place.path("pids")).unwrap_or_default();
                if told.lines().count() == 2 && place.path("work").exists() {
                    return Some(holder);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            None
        });
        Self { name, place, next, key, fate, holder: Some(holder) }
    }

    /// The command, and its worker.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.place.content("pids").lines().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Which of them exist, zombies included.
    fn alive(&self) -> Vec<i32> {
        self.pids().into_iter().filter(|pid| self.place.has(*pid)).collect()
    }

    /// Lets it happen, and returns what went wrong.
    pub(crate) fn judge(mut self) -> Result<Ended, String> {
        let mut holder = self.holder.take().unwrap();
        let wrapper = holder.pid();
        let guardian = guardian_of(wrapper);
        let next = format!("run --url {} {} -- echo next >> work; echo in", self.next, self.key);
        let early = !matches!(self.fate, Fate::Broken | Fate::ServerGone);
        let mut waiter = early.then(|| self.place.start(&next));
        match self.fate {
            Fate::Expiry | Fate::ServerGone => {}
            Fate::Broken => {
                self.place.run(&format!("break {} --yes --why test", self.key)).exits(0);
            }
            Fate::WrapperKilled => holder.signal(Signal::SIGKILL),
            Fate::GuardianKilled => kill(guardian, Signal::SIGKILL).unwrap(),
            Fate::GuardianStopped => kill(guardian, Signal::SIGSTOP).unwrap(),
            Fate::GuardianFrozen => freeze(guardian),
            Fate::WrapperStopped => {
                stop(wrapper);
                // By the guardian, in time; then the wrapper releases what only it can.
                eventually(&self.name, || self.alive().is_empty().then_some(()));
                holder.signal(Signal::SIGCONT);
            }
        }
        let mut dead = None;
        let happened = Instant::now();
        while holder.is_running() && happened.elapsed() < Duration::from_secs(60) {
            if self.fate == Fate::GuardianFrozen {
                // A traced process is first waited for by its debugger.
                let _ = waitpid(guardian, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
            }
            if dead.is_none() && self.alive().is_empty() {
                dead = Some(Instant::now());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let exited = Instant::now();
        let left = match self.fate {
            // Its guardian is not done yet.
            Fate::WrapperKilled => Vec::new(),
            _ => self.alive(),
        };
        if holder.is_running() {
            return Err(format!("{}: never ends, leaves {left:?}", self.name));
        }
        let ended = holder.end();
        if ended.code != self.fate.exit_code() || !left.is_empty() {
            let (code, said) = (ended.code, ended.stderr);
            return Err(format!("{}: exits with {code:?}, leaves {left:?}: {said}", self.name));
        }
        let worked = std::fs::metadata(self.place.path("work")).unwrap().modified().unwrap();
        let ended = Ended { worked, dead: dead.unwrap_or(exited), exited };
        if self.fate == Fate::ServerGone {
            return Ok(ended);
        }
        let waiter = waiter.take().unwrap_or_else(|| self.place.start(&next));
        let seen = waiter.end();
        let left = self.alive();
        if seen.stdout.trim_end() != "in" || !left.is_empty() {
            return Err(format!("{}: {} {left:?}: {}", self.name, seen.stdout, seen.stderr));
        }
        let work = self.place.content("work");
        match work.lines().rev().take_while(|line| *line != "next").count() {
            0 => Ok(ended),
            late => Err(format!("{}: wrote {late} times beside the next holder", self.name)),
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
pub(crate) fn freeze(process: Pid) {
    ptrace::seize(process, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(process).unwrap();
    eventually("it stops", || (state_of(process.as_raw()) == Some('t')).then_some(()));
}

/// The guardian is the wrapper's only child.
pub(crate) fn guardian_of(wrapper: Pid) -> Pid {
    eventually("a guardian", || {
        let children = std::fs::read_to_string(format!("/proc/{wrapper}/task/{wrapper}/children"));
        children.ok()?.trim().parse().ok().map(Pid::from_raw)
    })
}
