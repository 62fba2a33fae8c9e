//! The wrapper's own control over the command: a thread that kills it at the deadline.
//!
//! The guardian does the same at the same moment, in another process; the later of the two finds
//! the work done. This side depends neither on the guardian, which may be stopped, nor on the async
//! runtime, which may be busy: the margin between KILL and the end of the lease only has to be
//! enough for one of the two to be scheduled. A guardian that is stopped, or has not ended after a
//! quarter of the margin, is killed too, because only its parent can wait for its descendants.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::run::descendants::{self, NoChildren, Process};
use crate::run::guardian::{boot_time, end_below};
use crate::run::protocol::Report;

/// The pause between two scans for remaining descendants.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The guardian and its descendants, shared with the thread.
#[derive(Debug)]
pub(crate) struct Backstop {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    timer: TimerFd,
    guardian: Pid,
    /// Our earlier children, which do not belong to the command.
    spared: Vec<Pid>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When all descendants of the guardian are killed, in boot time.
    kill: u64,
    /// When the guardian is killed as well.
    late: u64,
    /// Whether the deadline has passed.
    fired: bool,
    /// Whether the run has ended: nothing is killed any more.
    over: bool,
    /// Whether the guardian was killed and reaped, so that its pid may soon be reused.
    replaced: bool,
    /// The command, which leads the process group of the same number, once it runs.
    group: Option<Pid>,
    /// How the command ended, if we reaped it.
    end: Option<Report>,
}

impl Backstop {
    pub(crate) fn start(guardian: Pid, spared: Vec<Pid>) -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
        let state = State {
            kill: u64::MAX,
            late: u64::MAX,
            fired: false,
            over: false,
            replaced: false,
            group: None,
            end: None,
        };
        let shared = Arc::new(Shared { timer, guardian, spared, state: Mutex::new(state) });
        let watched = shared.clone();
        let thread =
            thread::Builder::new().name("backstop".to_owned()).spawn(move || watched.watch())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Moves the deadline, unless it has passed.
    pub(crate) fn set(&self, kill: u64, late: u64) {
        let mut state = self.shared.state();
        if state.fired {
            (state.kill, state.late) = (state.kill.min(kill), state.late.min(late));
        } else {
            (state.kill, state.late) = (kill, late);
            self.shared.wake_at(kill);
        }
    }

    /// Whether the deadline has passed.
    pub(crate) fn fired(&self) -> bool {
        self.shared.state().fired
    }

    /// The command's process group, once it runs.
    pub(crate) fn group(&self) -> Option<Pid> {
        self.shared.state().group
    }

    pub(crate) fn set_group(&self, group: Pid) {
        self.shared.state().group = Some(group);
    }

    /// How the command ended, if we reaped it.
    pub(crate) fn end(&self) -> Option<Report> {
        self.shared.state().end
    }

    /// Continues a guardian that was stopped: until then, the command's end is not noticed.
    pub(crate) fn wake_guardian(&self) {
        let state = self.shared.state();
        let guardian = self.shared.guardian;
        if !state.replaced && Process::look(guardian).is_some_and(|process| process.stopped) {
            let _ = kill(guardian, Signal::SIGCONT);
        }
    }

    /// Asks all descendants of the command to end, in place of a guardian that does not.
    pub(crate) fn ask_to_end(&self) {
        let state = self.shared.state();
        if let (Some(group), false) = (state.group, state.replaced) {
            end_below(self.shared.guardian, group);
        }
    }

    /// Kills the guardian and all descendants of the command that exist at the moment; false if
    /// there are none left.
    pub(crate) fn take_over(&self) -> bool {
        let mut state = self.shared.state();
        self.shared.kill_all(&mut state, true)
    }

    /// Ends the guardian, which has nothing left to do.
    pub(crate) fn finish(mut self) {
        let mut state = self.shared.state();
        state.over = true;
        if !state.replaced {
            // A guardian that was stopped at this moment would keep us waiting.
            let _ = kill(self.shared.guardian, Signal::SIGKILL);
            let _ = waitpid(self.shared.guardian, None);
            state.replaced = true;
        }
        self.shared.wake_at(1);
        drop(state);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Backstop {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.wake_at(1);
    }
}

impl Shared {
    /// The thread.
    fn watch(&self) {
        loop {
            // Fails if a signal interrupts it. The clock decides, not the number of timer
            // expirations.
            let _ = self.timer.wait();
            let now = boot_time();
            // Locked until all were killed, so that nothing is killed after the end of the run.
            let mut state = self.state();
            if state.over {
                return;
            }
            if now >= state.kill {
                state.fired = true;
                let late = now >= state.late || self.guardian_is_stopped();
                self.kill_all(&mut state, late);
                self.wake_at(now.saturating_add(nanos(LOOK_AGAIN)));
            }
        }
    }

    /// Kills all descendants of the command, and the guardian too if it is `late`; false if there
    /// are none left.
    fn kill_all(&self, state: &mut State, late: bool) -> bool {
        if late && !std::mem::replace(&mut state.replaced, true) {
            let _ = kill(self.guardian, Signal::SIGKILL);
        }
        let kept = (!state.replaced).then_some(self.guardian);
        let mut found = descendants::kill_below(Pid::this(), &self.spared, kept);
        if state.replaced {
            // They were reparented to us, or will be when the guardian is dead.
            loop {
                match descendants::reap() {
                    Err(NoChildren) => return false,
                    Ok(None) => break,
                    Ok(Some(status)) => state.note(status),
                }
                found = true;
            }
        }
        found
    }

    /// Whether it is stopped, for an unknown time.
    fn guardian_is_stopped(&self) -> bool {
        Process::look(self.guardian).is_some_and(|process| process.stopped || process.traced)
    }

    fn wake_at(&self, at: u64) {
        // A time of zero would disarm the timer.
        let at = TimeSpec::from_duration(Duration::from_nanos(at.clamp(1, i64::MAX as u64)));
        let _ = self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

impl State {
    fn note(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::Exited(pid, code) if Some(pid) == self.group => {
                self.end = Some(Report::Exited(code));
            }
            WaitStatus::Signaled(pid, signal, _) if Some(pid) == self.group => {
                self.end = Some(Report::Signalled(signal as i32));
            }
            _ => {}
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
