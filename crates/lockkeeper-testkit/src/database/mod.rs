//! Real servers on free ports of this machine, in temporary directories, gone when dropped.
//!
//! They also go when the test process dies, however it dies: a shell waits at the end of a pipe
//! that only this process holds open. A server that many tests share can therefore be a static.
//! A missing program is a failure that names the Debian package; nothing is skipped.

pub mod mariadb;
pub mod postgres;

use std::fmt;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};

/// How long a server may take to start or to stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server process, and the shell that ends it if we cannot.
pub(crate) struct Process {
    child: Child,
    shell: Child,
}

impl Process {
    /// Starts a server whose files are all in `directory`, which goes with it.
    fn start(command: &mut Command, directory: &Path) -> Self {
        // Its own group, so that a key pressed at the terminal is for the tests alone.
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let shell = Command::new("sh")
            .args(["-c", r#"read _; kill -9 "$1"; sleep 1; rm -rf "$2""#, "sh"])
            .arg(child.id().to_string())
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("there is a shell");
        Self { child, shell }
    }

    /// The processes that the server started.
    fn children(&self) -> Vec<Pid> {
        let id = self.child.id();
        let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let ids = list.unwrap_or_default();
        ids.split_whitespace().filter_map(|id| id.parse().ok().map(Pid::from_raw)).collect()
    }

    /// Sends a signal to the server and everything that it started.
    fn signal(&self, signal: Signal) {
        let children = self.children();
        for pid in std::iter::once(pid(&self.child)).chain(children) {
            // One that just ended needs no signal.
            let _ = kill(pid, signal);
        }
    }

    /// Ends it as a power failure would, with everything that it started.
    fn kill(&mut self) {
        let children = self.children();
        // The shell must not kill whoever gets this number next.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
        let started = Instant::now();
        while children.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            assert!(started.elapsed() < PATIENCE, "the server's children do not end");
            sleep(Duration::from_millis(5));
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("process ids fit"))
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.child.id()).finish_non_exhaustive()
    }
}

/// The first of these directories that has the program.
///
/// # Panics
/// When none has, naming the Debian package.
fn program(name: &str, directories: &[&str], package: &str) -> PathBuf {
    let found = directories.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| {
        panic!("there is no {name} in {directories:?}; install the Debian package {package}")
    })
}

/// Runs a program as a user with few rights if we are root, since servers refuse to be root.
fn as_user(user: &str, program: &Path, directory: &Path) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return Command::new(program);
    }
    let found = User::from_name(user).ok().flatten();
    let found = found.unwrap_or_else(|| panic!("there is no user {user}; its package makes one"));
    std::os::unix::fs::chown(directory, Some(found.uid.as_raw()), Some(found.gid.as_raw()))
        .expect("root may give a directory away");
    let mut command = Command::new(program);
    command.uid(found.uid.as_raw()).gid(found.gid.as_raw()).current_dir(directory);
    command
}

/// Waits until a server accepts connections.
fn wait_for_port(port: u16, log: &Path) {
    let started = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if started.elapsed() > PATIENCE {
            panic!(
                "no server on port {port}: {}",
                std::fs::read_to_string(log).unwrap_or_default()
            );
        }
        sleep(Duration::from_millis(20));
    }
}

/// Runs a program to its end, and gives what it printed.
///
/// # Panics
/// When it fails, with what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?} failed: {out}{err}");
    out
}
