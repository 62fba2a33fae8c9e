//! The controlling terminal: its foreground group, and whether a stopped job would be continued.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, killpg, raise};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};

use crate::run::descendants::Process;
use crate::run::signals::Signals;

/// The terminal of this session. Callers have SIGTTOU blocked.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
}

impl Terminal {
    /// `None` without one, as under cron.
    pub(crate) fn open() -> Option<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
        options.open("/dev/tty").ok().map(|tty| Self { tty })
    }

    /// Whether a group is in the foreground of the terminal.
    pub(crate) fn has_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Whether our group is. A shell without job control starts a background job in its own group,
    /// with /dev/null as standard input: then the terminal belongs to the shell.
    pub(crate) fn is_ours(&self) -> bool {
        self.has_foreground(getpgrp()) && !reads_nothing()
    }

    /// Puts a group into the foreground. Fails if the terminal was hung up, which does no harm.
    pub(crate) fn give_to(&self, group: Pid) {
        let _ = tcsetpgrp(&self.tty, group);
    }

    /// Puts us into the foreground.
    pub(crate) fn take_back(&self) {
        self.give_to(getpgrp());
    }
}

/// Whether our standard input is `/dev/null`.
fn reads_nothing() -> bool {
    let about = |path: &str| fs::metadata(path).map(|about| about.rdev()).ok();
    about("/dev/stdin").is_some_and(|device| Some(device) == about("/dev/null"))
}

/// Whether a process that stops itself can expect to be continued: a shell of the same session, in
/// another group, manages our job. The kernel spares orphaned groups for the same reason.
pub(crate) fn someone_would_continue_us() -> bool {
    let (session, group) = (getsid(None), getpgrp());
    let mut ancestor = getppid();
    while ancestor.as_raw() > 0 && getsid(Some(ancestor)) == session {
        if getpgid(Some(ancestor)) != Ok(group) {
            return true;
        }
        let Some(process) = Process::look(ancestor) else { return false };
        ancestor = process.parent;
    }
    false
}

/// Stops this job: the other processes of our group, and then us.
pub(crate) fn stop() {
    // Our own SIGTSTP is blocked; the SIGCONT that ends the stop also discards it.
    let _ = killpg(getpgrp(), Signal::SIGTSTP);
    let _ = raise(Signal::SIGSTOP);
}

/// Ends as Ctrl-C ends a program, so that the calling script ends too.
pub(crate) fn die_of_interrupt(signals: &Signals) {
    let _ = killpg(getpgrp(), Signal::SIGINT);
    let _ = signals.original().thread_set_mask();
}
