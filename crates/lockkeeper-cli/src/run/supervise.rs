//! Supervises a command while a lock is held for it: signals, stops, deadlines, loss.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use lockkeeper::{Client, Guard, Loss, Outage, Outages, YieldRequest};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Changes, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::args::OnYield;
use crate::exit::{self, Failure};
use crate::output::Say;
use crate::run::child::{Child, Job};
use crate::run::end::{End, How};
use crate::run::guardian::boot_time;
use crate::run::protocol::{Deadline, Order, Report};
use crate::run::signals::Signals;
use crate::run::terminal::{Terminal, someone_would_continue_us, stop};
use crate::run::timeline::Timeline;
use crate::run::troubles::Troubles;
use crate::table::plain;

/// The lock and the settings that a command runs under.
#[derive(Debug)]
pub(crate) struct Supervisor<'a> {
    /// `None` if an outer run holds the lock.
    pub(crate) guard: Option<&'a Guard>,
    /// The client that it was acquired with.
    pub(crate) client: Option<&'a Client>,
    pub(crate) timeline: Timeline,
    /// The requested lease.
    pub(crate) ttl: Duration,
    /// Whether the end of the lease is fixed.
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_yield: OnYield,
    pub(crate) signals: &'a Signals,
    pub(crate) say: Say,
}

impl Supervisor<'_> {
    /// Runs a command until it and all processes it left running have ended.
    pub(crate) async fn run(&self, mut job: Job) -> Result<End, Failure> {
        let terminal = Terminal::open();
        let name = job.command[0].to_string_lossy().into_owned();
        job.foreground = terminal.as_ref().is_some_and(Terminal::is_ours);
        let deadline = self.deadline();
        // Before the start: if we were started with SIGCHLD ignored, waiting for a child would
        // fail.
        let changes = signal(SignalKind::child())
            .map_err(|error| Failure::own("listen for the end of the command", error))?;
        let child = Child::start(job, deadline)?;
        let mut watch = Watch {
            supervisor: self,
            child,
            changes,
            terminal,
            deadline,
            stage: Stage::Running,
            troubles: Troubles::new(self.guard, self.client, self.say),
            lost: None,
            max_hold: false,
            asked_to_end: false,
            asked: false,
            yielded: None,
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

    /// The deadline for the guardian, in case we never send another order.
    fn deadline(&self) -> Deadline {
        self.timeline.deadline(self.remaining())
    }

    fn remaining(&self) -> Duration {
        self.guard.map_or(Duration::MAX, Guard::remaining)
    }

    /// Resolves when the holder is asked to yield.
    async fn asked_to_yield(&self) -> YieldRequest {
        match self.guard {
            Some(guard) => guard.yield_requested().await,
            None => std::future::pending().await,
        }
    }

    /// Resolves when the engine stops answering, or answers again.
    async fn outage(&self, outages: &mut Option<Outages>) -> Option<Outage> {
        match outages {
            Some(outages) => outages.changed().await,
            None => std::future::pending().await,
        }
    }

    async fn lost(&self) -> Loss {
        match self.guard {
            Some(guard) => guard.lost().await,
            None => std::future::pending().await,
        }
    }
}

/// How far the end of the command has progressed, by its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Asked,
    Killed,
}

struct Watch<'a> {
    supervisor: &'a Supervisor<'a>,
    child: Child,
    /// Signalled whenever the guardian stops, continues or ends.
    changes: Changes,
    terminal: Option<Terminal>,
    /// The last deadline sent to the guardian.
    deadline: Deadline,
    stage: Stage,
    troubles: Troubles<'a>,
    lost: Option<String>,
    max_hold: bool,
    asked_to_end: bool,
    /// Whether there was a request to yield.
    asked: bool,
    /// The request that was passed on to the command, in words.
    yielded: Option<String>,
}

impl Watch<'_> {
    async fn until_the_end(&mut self, name: &str) -> Result<How, Failure> {
        let supervisor = self.supervisor;
        let mut lost = pin!(supervisor.lost());
        let mut asked = pin!(supervisor.asked_to_yield());
        let mut outages = supervisor.client.map(Client::outages);
        let started = Instant::now();
        let max_hold = supervisor.max_hold.and_then(|limit| started.checked_add(limit));
        let far = started + Duration::from_secs(365 * 24 * 3600);
        let mut enough = pin!(sleep_until(max_hold.unwrap_or(far)));
        // Much more often than a renewal may move the deadline.
        let lease = supervisor.guard.and_then(Guard::lease).unwrap_or(supervisor.ttl);
        let mut rounds = tokio::time::interval((lease / 20).max(Duration::from_millis(5)));
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let leased = supervisor.guard.is_some_and(|guard| guard.remaining() != Duration::MAX);
        self.set_backstop();
        loop {
            let step_in = self.until_step_in();
            tokio::select! {
                report = self.child.report() => match report {
                    Some(Report::Started(_)) => {}
                    Some(Report::Failed(errno)) => return Err(not_started(name, errno)),
                    Some(Report::Stopped(signal)) => self.child_stopped(signal),
                    Some(Report::Ended { killed }) => {
                        self.deadline_reached(if killed { Stage::Killed } else { Stage::Asked });
                    }
                    Some(Report::Exited(code)) => return Ok(self.ended(How::Exited(code))),
                    Some(Report::Signalled(signal)) => {
                        return Ok(self.ended(How::Signalled(signal)));
                    }
                    None if self.child.backstop().fired() => return Ok(self.ended_by_us()),
                    None => return Err(Failure::new(
                        exit::OWN,
                        "the guardian was killed; the command was killed too",
                    )),
                },
                _ = self.changes.recv() => self.child.backstop().wake_guardian(),
                signal = supervisor.signals.next() => self.signalled(signal),
                reason = &mut lost, if self.lost.is_none() => self.lock_lost(&reason),
                outage = supervisor.outage(&mut outages), if self.lost.is_none() => {
                    self.troubles.tell_outage(outage);
                }
                request = &mut asked, if !self.asked => self.give_way(&request),
                () = &mut enough, if max_hold.is_some() && !self.max_hold => {
                    self.max_hold = true;
                    supervisor.say.warn("--max-hold is reached; the command is ended");
                    self.order_deadline(supervisor.timeline.enough(supervisor.remaining()));
                }
                _ = rounds.tick(), if supervisor.guard.is_some() && self.lost.is_none() => {
                    self.troubles.tell_failed_renewals();
                    if leased && !self.max_hold && supervisor.guard.is_some_and(|g| g.check().is_ok()) {
                        self.order_deadline(supervisor.deadline());
                    }
                }
                () = tokio::time::sleep(step_in.unwrap_or_default()), if step_in.is_some() => {
                    self.child.backstop().ask_to_end();
                    self.deadline_reached(Stage::Asked);
                }
            }
        }
    }

    fn order_deadline(&mut self, deadline: Deadline) {
        self.child.order(Order::Deadline(deadline));
        // A moment in the past means now, and the guardian is not late before it could receive the
        // order.
        let now = boot_time();
        self.deadline = Deadline { term: deadline.term.max(now), kill: deadline.kill.max(now) };
        self.set_backstop();
    }

    fn set_backstop(&self) {
        let late = self.supervisor.timeline.late(self.deadline);
        self.child.backstop().set(self.deadline.kill, late.kill);
    }

    /// How long until the guardian is late with TERM; `None` if it cannot be.
    fn until_step_in(&self) -> Option<Duration> {
        let at = self.supervisor.timeline.late(self.deadline).term;
        (self.stage == Stage::Running && at < self.deadline.kill)
            .then(|| Duration::from_nanos(at.saturating_sub(boot_time())))
    }

    /// The command ended, perhaps because we killed it before the guardian could report the
    /// deadline.
    fn ended(&mut self, how: How) -> How {
        if self.child.backstop().fired() {
            self.deadline_reached(Stage::Killed);
        }
        how
    }

    /// We killed the command and the guardian, which was late.
    fn ended_by_us(&mut self) -> How {
        self.deadline_reached(Stage::Killed);
        match self.child.backstop().end() {
            Some(Report::Exited(code)) => How::Exited(code),
            Some(Report::Signalled(signal)) => How::Signalled(signal),
            // The guardian knew how, and can no longer report it.
            _ => How::Signalled(Signal::SIGKILL as i32),
        }
    }

    fn signalled(&mut self, signal: Signal) {
        match signal {
            // Even if we do not know of a stop: the report may be on its way.
            Signal::SIGCONT => self.resume(),
            other => {
                self.asked_to_end |=
                    !matches!(other, Signal::SIGTSTP | Signal::SIGUSR1 | Signal::SIGUSR2);
                self.child.order(Order::Signal(other as i32));
            }
        }
    }

    /// The holder was asked to yield. Nothing was taken away, so the command decides when to end.
    fn give_way(&mut self, request: &YieldRequest) {
        self.asked = true;
        let asked = format!("asked to give way{request}");
        // The reason is somebody else's text.
        let told = plain(&asked);
        let say = self.supervisor.say;
        let Some(signal) = self.supervisor.on_yield.signal() else {
            return say.warn(format_args!("{told}; the command is not told (--on-yield ignore)"));
        };
        say.warn(format_args!("{told}; the command is sent {signal}"));
        self.child.order(Order::Signal(signal as i32));
        self.yielded = Some(asked);
    }

    fn lock_lost(&mut self, reason: &Loss) {
        let supervisor = self.supervisor;
        // A lease that ran out ends the command on the timeline that the guardian already has.
        let lost = match reason {
            Loss::Expired => self.troubles.with_cause(&reason.to_string()),
            Loss::Ended => reason.to_string(),
            _ => {
                self.order_deadline(supervisor.timeline.gone());
                reason.to_string()
            }
        };
        // The reason of a break is somebody else's text.
        supervisor.say.warn(format_args!("the lock is lost: {}", plain(&lost)));
        self.lost = Some(lost);
    }

    /// The deadline has passed, and we did not know that the lock is lost.
    fn deadline_reached(&mut self, stage: Stage) {
        self.stage = stage;
        if !self.max_hold && self.lost.is_none() {
            let reason = match self.supervisor.fixed {
                true => Loss::Ended.to_string(),
                false => self
                    .troubles
                    .with_cause("its lease was about to run out, and nothing had renewed it"),
            };
            self.supervisor.say.warn(format_args!("the lock is lost: {reason}"));
            self.lost = Some(reason);
        }
    }

    /// Stops together with the command if a terminal stopped it, as one job; otherwise keeps
    /// renewing.
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
            // Continued: SIGCONT is pending, and leads to `resume`.
        } else if signal == Signal::SIGTSTP as i32 {
            self.resume();
        }
    }

    /// Takes the terminal back from the command, if it had it. A background job must not.
    fn take_terminal_back(&self) -> bool {
        let group = self.child.backstop().group();
        let ours =
            self.terminal.as_ref().filter(|tty| group.is_some_and(|g| tty.has_foreground(g)));
        ours.inspect(|terminal| terminal.take_back()).is_some()
    }

    /// Continues a stopped command, but only with its lock.
    fn resume(&mut self) {
        if let Some(Err(error)) = self.supervisor.guard.map(Guard::check) {
            let reason = match error {
                lockkeeper::Error::Lost { reason, .. } => reason.to_string(),
                other => other.to_string(),
            };
            // The guardian may have reported it first. The command may have been stopped too, but
            // as long as we run, we renew its lock.
            if self.lost.is_none() {
                let say = self.supervisor.say;
                say.warn(format_args!("the lock was lost while lockkeeper was stopped: {reason}"));
                self.lost = Some(reason);
            }
            if !self.supervisor.timeline.ignores_loss() {
                // A stopped command could not handle TERM.
                self.order_deadline(Deadline { term: 0, kill: 0 });
                return;
            }
        }
        self.order_deadline(self.supervisor.deadline());
        let foreground = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        self.child.order(Order::Resume { foreground });
    }
}

fn not_started(name: &str, errno: i32) -> Failure {
    let errno = Errno::from_raw(errno);
    let why = match errno {
        // Nothing is wrong with the command: this machine, or this user, has no resources for it
        // now.
        Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => {
            return Failure::own(format_args!("start {name}"), errno.desc());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_room_is_not_the_commands_fault() {
        let code = |errno: Errno| not_started("job", errno as i32).code;
        for errno in [Errno::EAGAIN, Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE] {
            assert_eq!(code(errno), exit::OWN, "{errno}");
        }
        for errno in [Errno::EACCES, Errno::ENOEXEC, Errno::E2BIG] {
            assert_eq!(code(errno), exit::NOT_EXECUTABLE, "{errno}");
        }
        assert_eq!(code(Errno::ENOENT), exit::NOT_FOUND);
    }
}
