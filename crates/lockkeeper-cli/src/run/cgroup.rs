//! A control group for a command, where we may make one: `cgroup.kill` ends everything in it in one step,
//! faster than a process can fork, and also processes of other users.
//!
//! The promise does not rest on it: a process can be moved to another control group, and usually only root
//! may make one. The guardian also kills its descendants one by one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::run::guardian::boot_time;

/// A control group below our own. Made by the wrapper, used by the guardian too.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// `None` where we may not, and where the kernel (before 5.14) cannot kill a whole group.
    pub(crate) fn make() -> Option<Self> {
        let name = format!("lockkeeper-{}-{}", std::process::id(), boot_time());
        let cgroup = Self { path: ours()?.join(name) };
        fs::create_dir(&cgroup.path).ok()?;
        if !cgroup.path.join("cgroup.kill").exists() {
            cgroup.remove();
            return None;
        }
        Some(cgroup)
    }

    /// The one that the wrapper made.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves this process in, so that what it starts is in from the beginning.
    pub(crate) fn enter(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), "0")
    }

    /// Moves this process back to where it came from.
    pub(crate) fn leave(&self) -> io::Result<()> {
        fs::write(self.path.with_file_name("cgroup.procs"), "0")
    }

    /// Kills whoever is in.
    pub(crate) fn kill(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Removes it. Whoever is still in, a daemon that may stay, goes where it would be without us.
    pub(crate) fn remove(&self) {
        // First those of runs inside this one, if they were killed before they could do it.
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                Self::at(entry.path()).remove();
            }
        }
        let inside = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines() {
            let _ = fs::write(self.path.with_file_name("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// Where our own control group is mounted.
fn ours() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    // … mount point, options, …, a lone dash, type, …
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let path = Path::new(mount.split(' ').nth(4)?).join(group);
    path.join("cgroup.procs").exists().then_some(path)
}
