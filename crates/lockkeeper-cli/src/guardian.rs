//! The guardian: a process between the wrapper and the command that never lets the command outlive
//! its lock.
//!
//! It starts the command in a group of its own, reaps whatever that leaves behind, and ends the whole
//! group when the wrapper dies (the leash ends) or the deadline comes, even if the wrapper is stopped
//! or the machine slept meanwhile. It has inherited the lock's open file where there is one, and leaves
//! only after the group: so the kernel keeps the lock until then, whatever happened to the wrapper.
//!
//! A parent-death signal would reach the command alone, not its children; the leash reaches them all.
//!
//! Descriptors are known by number only, except the leash, which is standard input: everything else
//! that must not reach the command is closed on the way there.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::exit;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, read, write};

use crate::exit;
use crate::leash::{Deadline, FRAME, Order, Report};
use crate::say::tell;
use crate::signals;
use crate::terminal::Terminal;

/// The hidden verb.
pub(crate) const VERB: &str = "__guardian";

/// What it is called in lists of processes, so that `pkill lockkeeper` does not mean it.
const NAME: &std::ffi::CStr = c"lk-guardian";

/// How often to look for group members that are not our children, and therefore do not tell us.
const LOOK_AGAIN: u16 = 20;

/// What the wrapper tells a guardian on its command line.
#[derive(Debug)]
pub(crate) struct Brief {
    /// Where the command's standard input waits.
    pub(crate) stdin: RawFd,
    /// The lock's open file, kept but never touched.
    pub(crate) lock: Option<RawFd>,
    /// Whether the command belongs into the terminal's foreground.
    pub(crate) foreground: bool,
    /// The command's signal mask.
    pub(crate) mask: SigSet,
    /// The command.
    pub(crate) command: Vec<OsString>,
}

impl Brief {
    /// The command line, from the hidden verb on.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let lock = self.lock.map_or_else(|| "-".to_owned(), |fd| fd.to_string());
        let place = if self.foreground { "foreground" } else { "background" };
        let mask = signals::mask_to_text(&self.mask);
        [VERB.to_owned(), self.stdin.to_string(), lock, place.to_owned(), mask]
            .into_iter()
            .map(OsString::from)
            .chain(self.command.iter().cloned())
            .collect()
    }

    fn from_args(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut text = || args.next()?.into_string().ok();
        Some(Self {
            stdin: text()?.parse().ok()?,
            lock: text()?.parse().ok(),
            foreground: text()? == "foreground",
            mask: signals::mask_from_text(&text()?),
            command: args.collect(),
        })
    }
}

/// The whole life of a guardian; `args` follow the hidden verb.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ! {
    let Some(brief) = Brief::from_args(args).filter(|brief| !brief.command.is_empty()) else {
        tell(format_args!("{VERB} is not meant to be called; see `lockkeeper run --help`"));
        exit(exit::USAGE.into());
    };
    // Both may fail on a very old kernel; then orphans are simply not reaped here.
    let _ = prctl::set_name(NAME);
    let _ = prctl::set_child_subreaper(true);
    if let Err(error) = Guardian::start(brief).and_then(Guardian::watch) {
        tell(format_args!("the guardian failed: {error}"));
        exit(exit::OWN.into());
    }
    exit(0)
}

struct Guardian {
    signals: SignalFd,
    timer: TimerFd,
    terminal: Option<Terminal>,
    /// The command, which leads the group of the same number.
    group: Pid,
    /// How the command ended, once it has.
    end: Option<Report>,
    deadline: Deadline,
    /// Whether the group was sent TERM for its deadline. There is no way back from that.
    ending: bool,
    /// Whether the wrapper lives.
    leashed: bool,
}

impl Guardian {
    fn start(brief: Brief) -> nix::Result<Self> {
        let mut wanted = signals::unignored(&signals::FORWARDED);
        wanted.add(Signal::SIGCHLD);
        // The wrapper's mask came along, so nothing was missed before this.
        let (signals, _) = signals::block(wanted)?;
        let timer = TimerFd::new(
            timerfd::ClockId::CLOCK_BOOTTIME,
            TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
        )?;
        // The first order was sent before we were: there is no moment without a deadline.
        let Some(Order::Deadline(deadline)) = next_order()? else { exit(0) };
        let terminal = brief.foreground.then(Terminal::open).flatten();
        let group = match spawn(&brief) {
            Ok(pid) => pid,
            Err(errno) => {
                send(Report::Failed(errno as i32));
                exit(0);
            }
        };
        // The command may have asked for the terminal before this; `stopped` makes up for it.
        if let Some(terminal) = &terminal {
            terminal.give_to(group);
        }
        send(Report::Started(group.as_raw()));
        let mut guardian = Self {
            signals,
            timer,
            terminal,
            group,
            end: None,
            deadline: Deadline::NEVER,
            ending: false,
            leashed: true,
        };
        guardian.obey(Order::Deadline(deadline))?;
        Ok(guardian)
    }

    fn watch(mut self) -> nix::Result<()> {
        loop {
            self.reap();
            if let Some(end) = self.end
                && self.group_is_gone()
            {
                send(end);
                return Ok(());
            }
            let (leash, signal, timer) = self.wait()?;
            if timer {
                // Only consumed; the clock decides, not how often the timer rang.
                let _ = self.timer.wait();
            }
            if signal {
                while let Some(signal) = signals::read(&self.signals) {
                    // Meant for the command, if somebody sends it to us.
                    if signal != Signal::SIGCHLD {
                        self.signal(signal);
                    }
                }
            }
            if leash {
                match next_order()? {
                    Some(order) => self.obey(order)?,
                    None => self.leashed = false,
                }
            }
            self.look_at_the_clock()?;
        }
    }

    /// Waits for news from the wrapper, a signal, or the timer; each says whether it is there.
    fn wait(&self) -> nix::Result<(bool, bool, bool)> {
        let stdin = io::stdin();
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        if self.leashed {
            fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        let unobserved = self.end.is_some() || !self.leashed;
        let limit = if unobserved { PollTimeout::from(LOOK_AGAIN) } else { PollTimeout::NONE };
        match poll(&mut fds, limit) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        let ready = |n: usize| fds.get(n).is_some_and(|fd| fd.any().unwrap_or(false));
        Ok((ready(2), ready(0), ready(1)))
    }

    fn obey(&mut self, order: Order) -> nix::Result<()> {
        match order {
            Order::Deadline(new) if self.ending => {
                self.deadline.kill = self.deadline.kill.min(new.kill);
            }
            Order::Deadline(new) => self.deadline = new,
            Order::Signal(number) => {
                if let Ok(signal) = Signal::try_from(number) {
                    self.signal(signal);
                }
            }
            Order::Resume { foreground } => {
                if foreground {
                    self.terminal = self.terminal.take().or_else(Terminal::open);
                    self.terminal.iter().for_each(|terminal| terminal.give_to(self.group));
                }
                self.signal(Signal::SIGCONT);
            }
        }
        self.set_timer()
    }

    /// Ends the group when its time has come, or when the wrapper is dead.
    fn look_at_the_clock(&mut self) -> nix::Result<()> {
        let now = boot_time();
        if !self.leashed || now >= self.deadline.kill {
            if self.leashed && !self.ending {
                send(Report::Ended);
            }
            self.ending = true;
            // Again and again: the group may just have got a new member.
            self.signal(Signal::SIGKILL);
            self.deadline.kill = now + 20_000_000;
        } else if now >= self.deadline.term && !self.ending {
            self.ending = true;
            send(Report::Ended);
            self.signal(Signal::SIGTERM);
        }
        self.set_timer()
    }

    fn set_timer(&mut self) -> nix::Result<()> {
        let next = if self.ending {
            self.deadline.kill
        } else {
            self.deadline.term.min(self.deadline.kill)
        };
        if next == u64::MAX {
            return self.timer.unset();
        }
        // A time of zero would switch the timer off.
        let at = TimeSpec::from_duration(Duration::from_nanos(next.max(1)));
        self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }

    fn signal(&self, signal: Signal) {
        // It fails when the group is gone, or has changed its user; there is nothing to do about either.
        let _ = killpg(self.group, signal);
    }

    /// Takes note of children that ended or stopped: the command, and orphans that came to us.
    fn reap(&mut self) {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        loop {
            match waitpid(None, Some(flags)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.group => {
                    self.end = Some(Report::Exited(code));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.group => {
                    self.end = Some(Report::Signalled(signal as i32));
                }
                Ok(WaitStatus::Stopped(pid, signal)) if pid == self.group => self.stopped(signal),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    fn stopped(&self, signal: Signal) {
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        let terminal = self.terminal.as_ref();
        if wants_terminal && terminal.is_some_and(|tty| tty.has_foreground(self.group)) {
            // It asked before it was given the terminal. Now it has it.
            self.signal(Signal::SIGCONT);
        } else {
            send(Report::Stopped(signal as i32));
        }
    }

    /// Whether nobody is left, also of runs inside this one, whose groups are others.
    fn group_is_gone(&self) -> bool {
        killpg(self.group, None) == Err(Errno::ESRCH) && !has_guardians_among_children()
    }
}

/// The next order; `None` when the wrapper is dead.
fn next_order() -> nix::Result<Option<Order>> {
    let mut frame = [0; FRAME];
    let mut filled = 0;
    while filled < FRAME {
        match read(io::stdin(), &mut frame[filled..]) {
            Ok(0) | Err(Errno::ECONNRESET) => return Ok(None),
            Ok(n) => filled += n,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Order::decode(&frame))
}

fn send(report: Report) {
    // It fails when the wrapper is dead, which the leash says as well.
    let _ = write(io::stdin(), &report.encode());
}

fn spawn(brief: &Brief) -> nix::Result<Pid> {
    let mut files = PosixSpawnFileActions::init()?;
    files.add_dup2(brief.stdin, 0)?;
    files.add_close(brief.stdin)?;
    if let Some(lock) = brief.lock {
        files.add_close(lock)?;
    }
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETPGROUP
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF,
    )?;
    attributes.set_pgroup(Pid::from_raw(0))?;
    attributes.set_sigmask(&brief.mask)?;
    // Ignored in every Rust program; other programs count on dying of it.
    attributes.set_sigdefault(&SigSet::from_iter([Signal::SIGPIPE]))?;
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| Errno::EINVAL);
    let args: Vec<CString> =
        brief.command.iter().map(|arg| text(arg.clone().into_vec())).collect::<Result<_, _>>()?;
    let environment: Vec<CString> = std::env::vars_os()
        .map(|(name, value)| text([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<_, _>>()?;
    posix_spawnp(&args[0], &files, &attributes, &args, &environment)
}

/// Nanoseconds since the machine was switched on, sleep included.
pub(crate) fn boot_time() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether another guardian came to us when its wrapper died, and is still at work.
fn has_guardians_among_children() -> bool {
    let me = std::process::id();
    let children = fs::read_to_string(format!("/proc/self/task/{me}/children"));
    children.is_ok_and(|children| {
        children.split_whitespace().any(|pid| {
            let name = fs::read(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim_ascii() == NAME.to_bytes())
        })
    })
}
