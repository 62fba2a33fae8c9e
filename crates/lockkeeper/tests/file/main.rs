//! All tests of lock files.

mod conformance;
mod faults;
mod storm;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper::Client;
use lockkeeper::engines::file::Files;
use lockkeeper_testkit::holder::{Holder, Program};
use nix::fcntl::{FcntlArg, fcntl};
use tempfile::TempDir;

/// The length of an epoch's area.
const AREA: u64 = 16 << 20;

/// A directory of locks, and the lock file of `key`.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn url(&self) -> String {
        format!("file://{}", self.directory.path().display())
    }

    fn client(&self) -> Client {
        Client::new(Files::open(self.directory.path()).unwrap())
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("key.lock")
    }

    fn holder(&self, arguments: &[&str]) -> Holder {
        Holder::start(&Program::test(module_path!()), &self.url(), "key", arguments)
    }
}

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

/// A small separate file system.
struct Mounted {
    at: PathBuf,
}

impl Mounted {
    fn new(at: &Path, options: &str) -> Self {
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(at).status().unwrap();
        assert!(done.success(), "root can mount a file system in memory");
        fs::set_permissions(at, fs::Permissions::from_mode(0o700)).unwrap();
        Self { at: at.to_owned() }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(&self.at).status();
    }
}

/// Locks a byte of a file as long as it is open.
fn try_byte(file: &File, byte: i64) -> bool {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).is_ok()
}

fn as_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("not tried, because only root can: {what}");
    }
    root
}
