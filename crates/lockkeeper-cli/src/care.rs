//! Looks after a command while a lock is held for it: signals, stops, deadlines, loss.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use lockkeeper::{Guard, Loss};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg, raise};
use nix::unistd::{Pid, getpgrp};
use tokio::time::{Instant, sleep_until};

use crate::args::OnYield;
use crate::child::{Child, Job};
use crate::exit::{self, Failure};
use crate::leash::{Deadline, Order, Report};
use crate::say::{Say, human};
use crate::signals::Signals;
use crate::terminal::{Terminal, someone_would_continue_us};
use crate::timeline::Timeline;

/// What a command is given to live with.
#[derive(Debug)]
pub(crate) struct Care<'a> {
    /// `None` when an outer run holds the lock.
    pub(crate) guard: Option<&'a Guard>,
    pub(crate) timeline: Timeline,
    /// How often a renewal may move the deadline.
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_yield: OnYield,
    pub(crate) signals: &'a Signals,
    pub(crate) say: Say,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) how: How,
    /// Why the lock was lost, if it was.
    pub(crate) lost: Option<String>,
    pub(crate) max_hold: bool,
    /// Whether it had the terminal, and Ctrl-C ended it: then we end the same way.
    pub(crate) interrupted: bool,
    /// Whether a signal that usually ends a program came through us, or by Ctrl-C.
    pub(crate) asked_to_end: bool,
    /// Whether the command was told that somebody asked for the lock.
    pub(crate) yielded: bool,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Exited(i32),
    Signalled(i32),
}

impl How {
    pub(crate) fn code(self) -> u8 {
        match self {
            How::Exited(code) => u8::try_from(code).unwrap_or(exit::OWN),
            How::Signalled(signal) => exit::signalled(signal),
        }
    }
}

impl Care<'_> {
    /// Runs a command to its end, and its whole group's.
    pub(crate) async fn run(&self, mut job: Job) -> Result<End, Failure> {
        let terminal = Terminal::open();
        let name = job.command[0].to_string_lossy().into_owned();
        job.foreground = terminal.as_ref().is_some_and(Terminal::is_ours);
        let child = Child::start(job, self.deadline())?;
        let mut watch = Watch {
            care: self,
            child,
            terminal,
            lost: None,
            max_hold: false,
            asked_to_end: false,
            yielded: false,
        };
        let ended = watch.until_the_end(&name).await;
        let foreground = watch.take_terminal_back();
        let Watch { child, lost, max_hold, asked_to_end, yielded, .. } = watch;
        child.finish();
        let how = ended?;
        let interrupted = foreground && how == How::Signalled(Signal::SIGINT as i32);
        let asked_to_end = asked_to_end || interrupted;
        Ok(End { how, lost, max_hold, interrupted, asked_to_end, yielded })
    }

    /// What the guardian has to know if we never speak again.
    fn deadline(&self) -> Deadline {
        self.timeline.deadline(self.remaining())
    }

    fn remaining(&self) -> Duration {
        self.guard.map_or(Duration::MAX, Guard::remaining)
    }

    /// The signal to send when somebody asked for the lock.
    async fn asked_to_yield(&self) -> Signal {
        let signal = match self.on_yield {
            OnYield::Term => Signal::SIGTERM,
            OnYield::Usr1 => Signal::SIGUSR1,
            OnYield::Ignore => std::future::pending().await,
        };
        match self.guard {
            Some(guard) => guard.yield_requested().await,
            None => std::future::pending().await,
        }
        signal
    }

    async fn lost(&self) -> Loss {
        match self.guard {
            Some(guard) => guard.lost().await,
            None => std::future::pending().await,
        }
    }
}

struct Watch<'a> {
    care: &'a Care<'a>,
    child: Child,
    terminal: Option<Terminal>,
    lost: Option<String>,
    max_hold: bool,
    asked_to_end: bool,
    yielded: bool,
}

impl Watch<'_> {
    async fn until_the_end(&mut self, name: &str) -> Result<How, Failure> {
        let care = self.care;
        let mut lost = pin!(care.lost());
        let mut asked = pin!(care.asked_to_yield());
        let started = Instant::now();
        let max_hold = care.max_hold.and_then(|limit| started.checked_add(limit));
        let far = started + Duration::from_secs(365 * 24 * 3600);
        let mut enough = pin!(sleep_until(max_hold.unwrap_or(far)));
        let mut rounds = tokio::time::interval((care.ttl / 20).max(Duration::from_millis(5)));
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let leased = care.guard.is_some_and(|guard| guard.remaining() != Duration::MAX);
        loop {
            tokio::select! {
                report = self.child.report() => match report {
                    Some(Report::Started(_)) => {}
                    Some(Report::Failed(errno)) => return Err(not_started(name, errno)),
                    Some(Report::Stopped(signal)) => self.child_stopped(signal),
                    Some(Report::Ended) => self.child_ended_by_guardian(),
                    Some(Report::Exited(code)) => return Ok(How::Exited(code)),
                    Some(Report::Signalled(signal)) => return Ok(How::Signalled(signal)),
                    None => return Err(Failure::new(
                        exit::OWN,
                        "the guardian was killed; the command was killed too",
                    )),
                },
                signal = care.signals.next() => self.signalled(signal),
                reason = &mut lost, if self.lost.is_none() => self.lock_lost(&reason),
                signal = &mut asked, if !self.yielded => self.give_way(signal),
                () = &mut enough, if max_hold.is_some() && !self.max_hold => {
                    self.max_hold = true;
                    care.say.warn("--max-hold is reached; the command is ended");
                    self.child.order(Order::Deadline(care.timeline.enough(care.remaining())));
                }
                _ = rounds.tick(), if leased && self.lost.is_none() && !self.max_hold => {
                    if let Some(guard) = care.guard && guard.check().is_ok() {
                        self.child.order(Order::Deadline(care.deadline()));
                    }
                }
            }
        }
    }

    fn signalled(&mut self, signal: Signal) {
        match signal {
            // Also if we have not heard of a stop: the report may be on its way.
            Signal::SIGCONT => self.resume(),
            other => {
                self.asked_to_end |=
                    !matches!(other, Signal::SIGTSTP | Signal::SIGUSR1 | Signal::SIGUSR2);
                self.child.order(Order::Signal(other as i32));
            }
        }
    }

    /// Somebody asked for the lock. Nothing was taken away, so when to end is up to the command.
    fn give_way(&mut self, signal: Signal) {
        self.yielded = true;
        self.care.say.warn(format_args!("asked to give way; the command is sent {signal}"));
        self.child.order(Order::Signal(signal as i32));
    }

    fn lock_lost(&mut self, reason: &Loss) {
        let care = self.care;
        care.say.warn(format_args!("the lock is lost: {reason}"));
        self.lost = Some(reason.to_string());
        // A lease that ran out ends the command on the timeline that the guardian has already.
        if !matches!(reason, Loss::Expired | Loss::Ended) {
            self.child.order(Order::Deadline(care.timeline.gone()));
        }
    }

    /// The guardian acted on a deadline, before we did.
    fn child_ended_by_guardian(&mut self) {
        if !self.max_hold && self.lost.is_none() {
            let reason = match self.care.timeline.is_fixed() {
                true => Loss::Ended.to_string(),
                false => "its lease was about to run out, and nothing had renewed it".to_owned(),
            };
            self.care.say.warn(format_args!("the lock is lost: {reason}"));
            self.lost = Some(reason);
        }
    }

    /// Stops with the command when a terminal stopped it, as one job; otherwise goes on renewing.
    fn child_stopped(&mut self, signal: i32) {
        let by_terminal = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU]
            .iter()
            .any(|stop| *stop as i32 == signal);
        if self.terminal.is_none() || !by_terminal {
            return;
        }
        self.take_terminal_back();
        if someone_would_continue_us() {
            stop();
            // Continued: SIGCONT is waiting to be read, and leads to `resume`.
        } else if signal == Signal::SIGTSTP as i32 {
            self.resume();
        }
    }

    /// Takes the terminal back from the command, if it had it. A job in the background must not.
    fn take_terminal_back(&self) -> bool {
        let group = self.child.group();
        let ours =
            self.terminal.as_ref().filter(|tty| group.is_some_and(|g| tty.has_foreground(g)));
        ours.inspect(|terminal| terminal.take_back()).is_some()
    }

    /// Lets a stopped command go on, but only with its lock.
    fn resume(&mut self) {
        if let Some(Err(error)) = self.care.guard.map(Guard::check) {
            let reason = match error {
                lockkeeper::Error::Lost { reason, .. } => reason.to_string(),
                other => other.to_string(),
            };
            self.care
                .say
                .warn(format_args!("the lock was lost while the command was stopped: {reason}"));
            self.lost = Some(reason);
            if !self.care.timeline.ignores_loss() {
                // TERM would need the command to run.
                self.child.order(Order::Deadline(Deadline { term: 0, kill: 0 }));
                return;
            }
        }
        self.child.order(Order::Deadline(self.care.deadline()));
        let foreground = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        self.child.order(Order::Resume { foreground });
    }
}

/// Stops this job: whoever is in our group, and then us.
pub(crate) fn stop() {
    // Our own SIGTSTP is blocked; the SIGCONT that ends the stop also discards it.
    let _ = killpg(getpgrp(), Signal::SIGTSTP);
    let _ = raise(Signal::SIGSTOP);
}

/// Ends as Ctrl-C ends a program, so that the script around us ends too.
pub(crate) fn die_of_interrupt(signals: &Signals) {
    let group: Pid = getpgrp();
    let _ = killpg(group, Signal::SIGINT);
    let _ = signals.original().thread_set_mask();
}

fn not_started(name: &str, errno: i32) -> Failure {
    let errno = Errno::from_raw(errno);
    let why = match errno {
        Errno::ENOENT if name.contains('/') && Path::new(name).exists() => {
            "the program that its first line names is not there"
        }
        Errno::ENOENT => {
            return Failure::new(exit::NOT_FOUND, format!("{name}: command not found"));
        }
        Errno::ENOEXEC => "it is no program, and has no first line such as #!/bin/sh",
        other => other.desc(),
    };
    Failure::new(exit::NOT_EXECUTABLE, format!("{name}: cannot be executed: {why}"))
}

/// How long, for `-v`.
pub(crate) fn times(waited: Duration, held: Duration) -> String {
    format!("waited {}, held {}", human(waited), human(held))
}
