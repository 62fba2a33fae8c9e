//! The guardian: a process between the wrapper and the command that never lets the command outlive
//! its lock.
//!
//! It starts the command in a group of its own, reaps whatever that leaves behind, and ends all that
//! came of it when the wrapper dies (the leash ends) or the deadline comes, even if the wrapper is
//! stopped or the machine slept meanwhile. Orphans come to it, so a process that made a group or a
//! session of its own is still below it, and is found. It has inherited the lock's open file where
//! there is one, and leaves last: so the kernel keeps the lock until then, whatever happened to the
//! wrapper.
//!
//! If it is killed itself, or stopped, the wrapper does the same: [`backstop`](crate::run::backstop).
//!
//! Descriptors are known by number only, except the leash, which is standard input: everything else
//! that must not reach the command is closed on the way there.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::process::exit;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::WaitStatus;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getsid, read, write};

use crate::exit;
use crate::output::tell;
use crate::run::brief::Brief;
use crate::run::descendants::{self, NoChildren, Process};
use crate::run::nested::Host;
use crate::run::protocol::{Deadline, FRAME, Order, Report};
use crate::run::signals;
use crate::run::terminal::Terminal;

/// The hidden verb.
pub(crate) const VERB: &str = "__guardian";

/// What it is called in lists of processes, so that `pkill lockkeeper` does not mean it.
const NAME: &std::ffi::CStr = c"lk-guardian";

/// How often to look for descendants that are not our children, and therefore do not tell us.
const LOOK_AGAIN: u16 = 20;

/// The whole life of a guardian; `args` follow the hidden verb.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ! {
    let Some(brief) = Brief::from_args(args).filter(|brief| !brief.command.is_empty()) else {
        tell(format_args!("{VERB} is not meant to be called; see `lockkeeper run --help`"));
        exit(exit::USAGE.into());
    };
    let _ = prctl::set_name(NAME);
    let prepared = prctl::set_child_subreaper(true);
    if let Err(error) = prepared.and_then(|()| Guardian::start(brief)).and_then(Guardian::watch) {
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
    /// For runs inside this one.
    host: Option<Host>,
    /// How the command ended, once it has.
    end: Option<Report>,
    deadline: Deadline,
    /// Whether all were sent TERM or KILL for the deadline. There is no way back from that.
    ending: bool,
    /// Whether the time of KILL has come.
    killing: bool,
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
        // Without it, runs inside this one ask the engine.
        let host = Host::listen().ok();
        let spawned = brief.spawn(host.as_ref().map(Host::name));
        let group = match spawned {
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
            host,
            end: None,
            deadline: Deadline::NEVER,
            ending: false,
            killing: false,
            leashed: true,
        };
        guardian.obey(Order::Deadline(deadline))?;
        Ok(guardian)
    }

    fn watch(mut self) -> nix::Result<()> {
        loop {
            let childless = self.reap().is_err();
            if self.killing && !childless {
                self.kill_all();
            }
            if let Some(end) = self.end
                && (childless || !self.ending && self.is_over())
            {
                send(end);
                return Ok(());
            }
            self.wait()?;
            // Only consumed; the clock decides, not how often the timer rang.
            let _ = self.timer.wait();
            while let Some(signal) = signals::read(&self.signals) {
                // Meant for the command, if somebody sends it to us.
                if signal != Signal::SIGCHLD {
                    self.signal(signal);
                }
            }
            self.host.iter_mut().for_each(Host::welcome);
            // All of them before the clock: after a stop, the last one is what counts.
            while self.leashed && has_order()? {
                match next_order()? {
                    Some(order) => self.obey(order)?,
                    None => self.leashed = false,
                }
            }
            self.look_at_the_clock()?;
        }
    }

    /// Waits for news from the wrapper, a signal, a run inside this one, or the timer.
    fn wait(&self) -> nix::Result<()> {
        let stdin = io::stdin();
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        if self.leashed {
            fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        if let Some(host) = &self.host {
            fds.push(PollFd::new(host.as_fd(), PollFlags::POLLIN));
        }
        let unobserved = self.end.is_some() || self.killing;
        let limit = if unobserved { PollTimeout::from(LOOK_AGAIN) } else { PollTimeout::NONE };
        match poll(&mut fds, limit) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
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

    /// Ends everyone when the time has come, or when the wrapper is dead.
    fn look_at_the_clock(&mut self) -> nix::Result<()> {
        let now = boot_time();
        if self.killing {
            return Ok(());
        }
        if !self.leashed || now >= self.deadline.kill {
            self.ending = true;
            self.killing = true;
            // `watch` does it, again and again until there is nobody left.
            send(Report::Ended { killed: true });
        } else if now >= self.deadline.term && !self.ending {
            self.ending = true;
            send(Report::Ended { killed: false });
            end_below(Pid::this(), self.group);
        }
        self.set_timer()
    }

    fn set_timer(&mut self) -> nix::Result<()> {
        let next = match (self.killing, self.ending) {
            (true, _) => u64::MAX,
            (false, true) => self.deadline.kill,
            (false, false) => self.deadline.term.min(self.deadline.kill),
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

    /// Kills whoever came of the command, until a look finds nobody who is new.
    fn kill_all(&self) {
        self.signal(Signal::SIGKILL);
        descendants::kill_below(Pid::this(), &[], None);
    }

    /// Takes note of children that ended or stopped: the command, and orphans that came to us.
    fn reap(&mut self) -> Result<(), NoChildren> {
        while let Some(status) = descendants::reap()? {
            match status {
                WaitStatus::Exited(pid, code) if pid == self.group => {
                    self.end = Some(Report::Exited(code));
                }
                WaitStatus::Signaled(pid, signal, _) if pid == self.group => {
                    self.end = Some(Report::Signalled(signal as i32));
                }
                WaitStatus::Stopped(pid, signal) if pid == self.group => self.stopped(signal),
                _ => {}
            }
        }
        Ok(())
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

    /// Whether nobody is left whom we wait for after the command's own end: its group, what it started
    /// in other groups of the session, as shells do with jobs, and runs inside this one. A daemon, which
    /// made a session of its own, may stay.
    fn is_over(&mut self) -> bool {
        killpg(self.group, None) == Err(Errno::ESRCH)
            && !self.host.as_mut().is_some_and(Host::has_guests)
            // Twice: a process whose parent ends while we look may hide from one look.
            && !has_jobs()
            && !has_jobs()
    }
}

/// Asks all below a process to end, once each.
pub(crate) fn end_below(top: Pid, group: Pid) {
    let _ = killpg(group, Signal::SIGTERM);
    descendants::visit(top, |pid| {
        // A run inside this one passes the signal on to its command.
        let is_guardian = fs::read(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim_ascii() == NAME.to_bytes());
        if !is_guardian && Process::look(pid).is_some_and(|process| process.group != group) {
            let _ = kill(pid, Signal::SIGTERM);
        }
        !is_guardian
    });
}

/// Whether a process of our session is left below us.
fn has_jobs() -> bool {
    let session = getsid(None).unwrap_or(Pid::this());
    let mut found = false;
    descendants::visit(Pid::this(), |pid| {
        found |=
            Process::look(pid).is_some_and(|process| process.session == session && !process.zombie);
        !found
    });
    found
}

/// Whether an order is there, or the end of the leash.
fn has_order() -> nix::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error),
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

/// Nanoseconds since the machine was switched on, sleep included.
pub(crate) fn boot_time() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
