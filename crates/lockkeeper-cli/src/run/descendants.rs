//! The descendants of a process, whatever process groups and sessions they created.
//!
//! The kernel reparents an orphan to its nearest ancestor that is a subreaper. So no process leaves
//! the tree below a subreaper, and a subreaper without children has no descendants either: that is
//! the only check without a race. What is read from /proc may be outdated, so callers scan again
//! until nothing is left.

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What the kernel reports about a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) parent: Pid,
    pub(crate) group: Pid,
    pub(crate) session: Pid,
    /// Whether it has ended, and was not yet reaped by its parent.
    pub(crate) zombie: bool,
    /// Whether it was stopped by a signal, and SIGCONT would continue it.
    pub(crate) stopped: bool,
    /// Whether it is stopped by a debugger.
    pub(crate) traced: bool,
}

impl Process {
    /// `None` when it is gone.
    pub(crate) fn look(pid: Pid) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain anything, so count from its end.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let (zombie, stopped, traced) = (matches!(state, "Z" | "X"), state == "T", state == "t");
        let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
        Some(Self {
            parent: number()?,
            group: number()?,
            session: number()?,
            zombie,
            stopped,
            traced,
        })
    }
}

/// Passes all descendants of a process to `each`, parents first. `each` returns whether to descend
/// further.
pub(crate) fn visit(top: Pid, mut each: impl FnMut(Pid) -> bool) {
    let mut found = children(top);
    while let Some(pid) = found.pop() {
        if each(pid) {
            found.extend(children(pid));
        }
    }
}

/// Kills all descendants of a process, except `spared` with their descendants, and except `kept`
/// alone; returns whether it found any.
pub(crate) fn kill_below(top: Pid, spared: &[Pid], kept: Option<Pid>) -> bool {
    let mut found = false;
    visit(top, |pid| {
        if spared.contains(&pid) {
            return false;
        }
        if kept == Some(pid) {
            return true;
        }
        found = true;
        // A process with a pending KILL cannot fork, so its children are listed after that.
        let _ = kill(pid, Signal::SIGKILL);
        true
    });
    found
}

/// Whether a process is a descendant of another.
pub(crate) fn is_below(pid: Pid, top: Pid) -> bool {
    let mut at = pid;
    // A parent that ends on the way up breaks the chain; the next iteration finds the new parent.
    for _ in 0..1000 {
        match Process::look(at) {
            Some(process) if process.parent == top => return true,
            Some(process) if process.parent.as_raw() <= 1 => return false,
            Some(process) => at = process.parent,
            None if at == pid => return false,
            None => at = pid,
        }
    }
    false
}

/// The next child of ours that has ended or stopped; `None` if there is none at the moment.
pub(crate) fn reap() -> Result<Option<WaitStatus>, NoChildren> {
    // Whatever signal its end sends.
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::__WALL;
    match waitpid(None, Some(flags)) {
        Ok(WaitStatus::StillAlive) => Ok(None),
        Ok(status) => Ok(Some(status)),
        Err(Errno::ECHILD) => Err(NoChildren),
        Err(_) => Ok(None),
    }
}

/// We have no children, and, as a subreaper, no descendants.
#[derive(Debug)]
pub(crate) struct NoChildren;

/// The children of all threads of a process, zombies included.
pub(crate) fn children(of: Pid) -> Vec<Pid> {
    if !LISTED.with(|listed| *listed) {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        return all
            .filter_map(|entry| number(entry.file_name().to_str()?))
            .filter(|pid| Process::look(*pid).is_some_and(|process| process.parent == of))
            .collect();
    }
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(number).collect::<Vec<_>>()).collect()
}

thread_local! {
    /// Whether this kernel lists the children of a process (`CONFIG_PROC_CHILDREN`).
    static LISTED: bool = fs::exists("/proc/thread-self/children").unwrap_or(false);
}

fn number(text: &str) -> Option<Pid> {
    text.parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_in_a_session_of_its_own_is_below_us_and_can_be_killed() {
        // A shell that leaves one child in a new session and waits for it.
        let script = "setsid sh -c 'echo $$; exec sleep 600' & wait";
        let mut shell =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = Vec::new();
        let mut out = shell.stdout.take().unwrap();
        while !said.ends_with(b"\n") {
            let mut byte = [0];
            out.read_exact(&mut byte).unwrap();
            said.push(byte[0]);
        }
        let deep = number(String::from_utf8(said).unwrap().trim()).unwrap();
        let top = Pid::from_raw(i32::try_from(shell.id()).unwrap());
        assert!(is_below(deep, top) && is_below(deep, Pid::this()));
        assert!(!is_below(Pid::this(), top) && !is_below(Pid::from_raw(1), top));
        let process = Process::look(deep).unwrap();
        assert_eq!((process.session, process.group, process.zombie), (deep, deep, false));
        assert_eq!(children(top), [deep]);
        assert!(!kill_below(top, &[deep], None));
        assert!(!kill_below(top, &[], Some(deep)));
        assert!(kill_below(top, &[], None));
        // The shell sees its child end.
        shell.wait().unwrap();
        assert!(Process::look(deep).is_none_or(|process| process.zombie));
    }
}
