//! The guardian: a process between the wrapper and the command that never lets the command outlive
//! its lock.
//!
//! It starts the command in its own process group, reaps everything the command leaves behind, and
//! ends all descendants when the wrapper dies (the socket closes) or the deadline passes, even if
//! the wrapper is stopped or the machine was suspended meanwhile. It is a subreaper, so a process
//! that created its own group or session is still its descendant and is found. It inherits the
//! lock's open file, if there is one, and exits last: so the kernel keeps the lock until then,
//! whatever happened to the wrapper.
//!
//! If it is killed itself, or stopped, the wrapper does the same:
//! [`backstop`](crate::run::backstop).
//!
//! Descriptors are known by number only, except the socket to the wrapper, which is standard input:
//! everything that must not reach the command is closed on exec.

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

/// Its name in process lists, so that `pkill lockkeeper` does not match it.
const NAME: &std::ffi::CStr = c"lk-guardian";

/// How often to scan for descendants that are not our children, whose end we are not notified of.
const LOOK_AGAIN: u16 = 20;

/// The entry point of a guardian; `args` follow the hidden verb.
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
    /// The command, which leads the process group of the same number.
    group: Pid,
    /// For runs inside this one.
    host: Option<Host>,
    /// How the command ended, once it has.
    end: Option<Report>,
    deadline: Deadline,
    /// Whether TERM or KILL was sent because of the deadline. That is final.
    ending: bool,
    /// Whether the time for KILL has come.
    killing: bool,
    /// Whether the wrapper lives.
    connected: bool,
}

impl Guardian {
    fn start(brief: Brief) -> nix::Result<Self> {
        let mut wanted = signals::unignored(&signals::FORWARDED);
        wanted.add(Signal::SIGCHLD);
        // The wrapper's mask was inherited, so no signal was missed before this.
        let (signals, _) = signals::block(wanted)?;
        let timer = TimerFd::new(
            timerfd::ClockId::CLOCK_BOOTTIME,
            TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
        )?;
        // The first order was sent before we were started: there is never a moment without a
        // deadline.
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
        // The command may have tried to use the terminal before this; `stopped` makes up for it.
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
            connected: true,
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
            // Only consumed; the clock decides, not the number of timer expirations.
            let _ = self.timer.wait();
            while let Some(signal) = signals::read(&self.signals) {
                // Meant for the command, if it was sent to us.
                if signal != Signal::SIGCHLD {
                    self.signal(signal);
                }
            }
            self.host.iter_mut().for_each(Host::welcome);
            // All of them before the clock: after a stop, only the last one counts.
            while self.connected && has_order()? {
                match next_order()? {
                    Some(order) => self.obey(order)?,
                    None => self.connected = false,
                }
            }
            self.look_at_the_clock()?;
        }
    }

    /// Waits for an order, a signal, a run inside this one, or the timer.
    fn wait(&self) -> nix::Result<()> {
        let stdin = io::stdin();
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        if self.connected {
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

    /// Ends all descendants when the deadline has passed, or the wrapper is dead.
    fn look_at_the_clock(&mut self) -> nix::Result<()> {
        let now = boot_time();
        if self.killing {
            return Ok(());
        }
        if !self.connected || now >= self.deadline.kill {
            self.ending = true;
            self.killing = true;
            // `watch` does it, repeatedly until nothing is left.
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
        // A time of zero would disarm the timer.
        let at = TimeSpec::from_duration(Duration::from_nanos(next.max(1)));
        self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }

    fn signal(&self, signal: Signal) {
        // Fails if the group is gone or has changed its user; nothing can be done about either.
        let _ = killpg(self.group, signal);
    }

    /// Kills all descendants of the command, until a scan finds no new ones.
    fn kill_all(&self) {
        self.signal(Signal::SIGKILL);
        descendants::kill_below(Pid::this(), &[], None);
    }

    /// Reaps children that ended or stopped: the command, and orphans that were reparented to us.
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

    /// Whether nothing is left that we wait for after the command's own end: its group, processes
    /// in other groups of the session, such as a shell's jobs, and runs inside this one. A daemon,
    /// which created its own session, may stay.
    fn is_over(&mut self) -> bool {
        killpg(self.group, None) == Err(Errno::ESRCH)
            && !self.host.as_mut().is_some_and(Host::has_guests)
            // Twice: a process whose parent ends during the scan may be missed by it.
            && !has_jobs()
            && !has_jobs()
    }
}

/// Asks all descendants of a process to end, once each.
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

/// Whether we have a descendant in our own session.
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

/// Whether an order can be read, or the end of the stream.
fn has_order() -> nix::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The next order; `None` if the wrapper is dead.
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
    // Fails if the wrapper is dead, which the socket reports as well.
    let _ = write(io::stdin(), &report.encode());
}

/// Nanoseconds since boot, suspend included.
pub(crate) fn boot_time() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
