//! The wrapper's side of the socket: starts a guardian, sends it orders, receives its reports.

use std::ffi::{CString, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::prctl;
use nix::sys::signal::SigSet;
use nix::unistd::Pid;
use tokio::net::UnixStream;

use crate::exit::Failure;
use crate::run::backstop::Backstop;
use crate::run::brief::Brief;
use crate::run::descendants;
use crate::run::protocol::{Deadline, FRAME, Order, Report};

/// What to run, and how.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) command: Vec<OsString>,
    /// Added to our own environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The command's signal mask.
    pub(crate) mask: SigSet,
    /// Whether it runs in the terminal's foreground.
    pub(crate) foreground: bool,
    /// The open file whose kernel lock we hold, or the connection to the outer run.
    pub(crate) lock: Option<OwnedFd>,
}

/// A command under a guardian. Dropping it ends the command.
#[derive(Debug)]
pub(crate) struct Child {
    reports: UnixStream,
    /// The same socket: orders are short and sent at once, without the runtime.
    orders: StdStream,
    backstop: Backstop,
    unread: Vec<u8>,
}

impl Child {
    pub(crate) fn start(job: Job, deadline: Deadline) -> Result<Self, Failure> {
        let started = start(job, deadline);
        started.map_err(|error| {
            Failure::own("start /proc/self/exe as a guardian for the command", error)
        })
    }

    /// The next report; `None` if the guardian and all its descendants are dead.
    ///
    /// # Cancel safety
    /// May be dropped at any await; no report is lost.
    pub(crate) async fn report(&mut self) -> Option<Report> {
        loop {
            if let Some((frame, rest)) = self.unread.split_first_chunk::<FRAME>() {
                let report = Report::decode(frame);
                self.unread = rest.to_vec();
                if let Some(Report::Started(pid)) = report {
                    self.backstop.set_group(Pid::from_raw(pid));
                }
                return report;
            }
            if self.reports.readable().await.is_err() {
                return None;
            }
            match self.reports.try_read_buf(&mut self.unread) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n) if n > 0 => {}
                // Reports come before the end, so this guardian was killed.
                _ => {
                    self.take_over().await;
                    return None;
                }
            }
        }
    }

    /// What the wrapper can do without the guardian.
    pub(crate) fn backstop(&self) -> &Backstop {
        &self.backstop
    }

    /// Sends an order to the guardian. If it is dead, `report` returns that.
    pub(crate) fn order(&self, order: Order) {
        let _ = (&self.orders).write(&order.encode());
    }

    /// Kills the guardian and all descendants of the command, and waits for their end.
    ///
    /// When the guardian is dead, its orphans are reparented to us, and theirs after them.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    async fn take_over(&mut self) {
        // Twice: a process whose parent ends during the scan may be missed by it.
        let mut nobody_found = 0;
        while nobody_found < 2 {
            nobody_found = if self.backstop.take_over() { 0 } else { nobody_found + 1 };
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends the guardian, after its last report.
    pub(crate) fn finish(self) {
        self.backstop.finish();
    }
}

fn start(job: Job, deadline: Deadline) -> io::Result<Child> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let orders = ours.try_clone()?;
    let reports = UnixStream::from_std(ours)?;
    // Before it starts, so that there is never a moment without a deadline.
    (&orders).write_all(&Order::Deadline(deadline).encode())?;

    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let brief = Brief {
        stdin: stdin.as_raw_fd(),
        lock: job.lock.as_ref().map(AsRawFd::as_raw_fd),
        foreground: job.foreground,
        mask: job.mask,
        command: job.command,
    };
    let mut files = PosixSpawnFileActions::init()?;
    // Duplicated onto itself: this clears close-on-exec for this one process.
    files.add_dup2(brief.stdin, brief.stdin)?;
    if let Some(lock) = brief.lock {
        files.add_dup2(lock, lock)?;
    }
    files.add_dup2(theirs.as_raw_fd(), 0)?;
    let mut attributes = PosixSpawnAttr::init()?;
    // Its own process group, which the terminal never signals and the shell never stops.
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETPGROUP)?;
    attributes.set_pgroup(Pid::from_raw(0))?;

    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| io::Error::from(Errno::EINVAL));
    // Its own name, so that `pkill -f lockkeeper` does not match it.
    let args = std::iter::once("lk-guardian".into()).chain(brief.to_args());
    let args: Vec<CString> =
        args.map(|arg: OsString| text(arg.into_vec())).collect::<Result<_, _>>()?;
    let environment: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| !job.environment.iter().any(|(ours, _)| name == ours))
        .map(|(name, value)| text([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .chain(job.environment.iter().map(|(name, value)| text(format!("{name}={value}").into())))
        .collect::<Result<_, _>>()?;

    let spared = descendants::children(Pid::this());
    // If the guardian is killed, its descendants are reparented to us.
    prctl::set_child_subreaper(true)?;
    // This very program, even if its file was replaced while we waited for the lock.
    let guardian = posix_spawn(c"/proc/self/exe", &files, &attributes, &args, &environment)?;
    let backstop = Backstop::start(guardian, spared)?;
    Ok(Child { reports, orders, backstop, unread: Vec::new() })
}
