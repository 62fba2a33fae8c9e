//! A server process, and the shell that supervises it.
//!
//! Servers that all tests of a program share are never dropped. So a shell waits for the end of a
//! pipe that only this process holds open, and then kills the server and removes its directory.
//!
//! Easy to get wrong: whatever ends the tests (a closed terminal, a timeout) must not end the shell
//! before it has done its work. It is in its own process group, ignores all signals that can be
//! ignored, and its first line of output may no longer have a reader.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use tempfile::TempDir;

/// How long a server may take to start or to stop. A busy machine starts a JVM slowly.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// A server that does not outlive the tests. Killed when dropped.
#[derive(Debug)]
pub struct Supervised {
    /// Its program and arguments; nothing else of it is used.
    command: Command,
    port: u16,
    ready: fn(u16) -> bool,
    // In this order: a server dies before its directory.
    running: Mutex<Option<Process>>,
    home: Home,
}

impl Supervised {
    /// Starts a server and waits until it reports that it is ready.
    pub(super) fn start(home: Home, port: u16, command: Command, ready: fn(u16) -> bool) -> Self {
        let server = Self::spawn(home, port, command, ready);
        server.wait_until_ready();
        server
    }

    /// Starts one of several servers that become ready only together.
    pub(super) fn spawn(home: Home, port: u16, command: Command, ready: fn(u16) -> bool) -> Self {
        let running = Mutex::new(Some(Process::start(&home, &command)));
        Self { command, port, ready, running, home }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The directory of its files. What it printed is in `log`.
    pub fn directory(&self) -> &Path {
        self.home.path()
    }

    /// The id of its process, unless it was killed.
    pub fn pid(&self) -> Option<Pid> {
        self.running().as_ref().map(|process| process.pid)
    }

    /// Stops it and its children with `SIGSTOP`: connections stay open, without answers.
    pub fn pause(&self) {
        if let Some(process) = &*self.running() {
            process.pause();
        }
    }

    /// Continues it, with `SIGCONT`.
    pub fn resume(&self) {
        if let Some(process) = &*self.running() {
            process.signal(Signal::SIGCONT);
        }
    }

    /// Kills it and its children with `SIGKILL`; returns when they are dead.
    pub fn kill(&self) {
        drop(self.running().take());
    }

    /// Starts it again on the same port, with the data in its directory; waits until it is ready.
    ///
    /// # Panics
    /// When it does not start, with its log.
    pub fn restart(&self) {
        self.kill();
        *self.running() = Some(Process::start(&self.home, &self.command));
        self.wait_until_ready();
    }

    /// What it printed.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// # Panics
    /// When it ends instead, or takes too long, with its log.
    pub(super) fn wait_until_ready(&self) {
        let started = Instant::now();
        while !(self.ready)(self.port) {
            let has_ended = self.running().as_ref().is_some_and(|process| has_ended(process.pid));
            assert!(!has_ended, "{:?} ended at once: {}", self.command, self.log());
            assert!(
                started.elapsed() < PATIENCE,
                "{:?} is not ready: {}",
                self.command,
                self.log()
            );
            sleep(Duration::from_millis(10));
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Process>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The directory of a server, and the user that owns it and runs the server.
#[derive(Debug)]
pub(super) struct Home {
    directory: TempDir,
    user: Option<User>,
}

impl Home {
    /// A directory of ours.
    pub(super) fn new() -> Self {
        let directory = TempDir::with_prefix("lockkeeper-");
        Self { directory: directory.expect("there is room for a directory"), user: None }
    }

    /// A directory of this user if we are root, for servers that refuse to run as root.
    pub(super) fn of(user: &str) -> Self {
        let home = Self::new();
        if !nix::unistd::geteuid().is_root() {
            return home;
        }
        let found = User::from_name(user).ok().flatten();
        let user = found.unwrap_or_else(|| panic!("there is no user {user}; its package adds one"));
        chown(home.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .expect("root may give a directory away");
        Self { user: Some(user), ..home }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file, and returns its path.
    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).expect("there is room for a file");
        path
    }

    /// A program that runs here, as the user of this directory.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        // MariaDB removes temporary tables of other servers that it finds next to its own.
        command.current_dir(self.path()).env("TMPDIR", self.path()).process_group(0);
        if let Some(user) = &self.user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command
    }
}

/// A running process.
#[derive(Debug)]
struct Process {
    shell: Child,
    /// The server's pid, which the shell does not reap before it is asked to, so that it is not
    /// reused.
    pid: Pid,
}

/// A line asks the shell to kill the server; the end of its input also to remove the directory.
///
/// If the shell itself is killed, the kernel kills the server; a server that was started too late
/// for that detects that its parent has changed. PostgreSQL does not start again while one of its
/// children lives. If nothing reaps these, they stay zombies.
const SUPERVISE: &str = r#"
trap '' HUP INT QUIT TERM PIPE
directory=$1; shift
(
    trap - HUP INT QUIT TERM PIPE
    exec setpriv --pdeathsig KILL sh -c '[ $PPID = $0 ] && exec "$@"' $$ "$@"
) >>"$directory/log" 2>&1 &
echo $!
over=; read -r _ || over=yes
kill -STOP $!
children=$(cat /proc/$!/task/$!/children)
kill -KILL $! $children
wait $!
for child in $children; do
    while stat=$(cat /proc/$child/stat) && [ "${stat##*) Z*}" ]; do sleep 0.01; done
done
[ -z "$over" ] || rm -rf "$directory"
"#;

impl Process {
    fn start(home: &Home, command: &Command) -> Self {
        let mut shell =
            supervise(home, command).stdout(Stdio::piped()).spawn().expect("there is a shell");
        let mut line = String::new();
        let output = shell.stdout.take().expect("it is a pipe");
        BufReader::new(output).read_line(&mut line).expect("the shell tells the id");
        let pid = Pid::from_raw(line.trim().parse().expect("a shell knows its children"));
        Self { shell, pid }
    }

    fn pause(&self) {
        let started = Instant::now();
        loop {
            // Only a server that is already stopped starts no more children.
            let was_stopped = has_stopped(self.pid);
            if self.signal(Signal::SIGSTOP).into_iter().all(has_stopped) && was_stopped {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "process {} does not stop", self.pid);
            sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal to the server and its children, and returns their ids.
    fn signal(&self, signal: Signal) -> Vec<Pid> {
        let children = format!("/proc/{0}/task/{0}/children", self.pid);
        let children = fs::read_to_string(children).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        let all: Vec<_> = std::iter::once(self.pid).chain(children.map(Pid::from_raw)).collect();
        for pid in &all {
            // A process that has just ended needs no signal.
            let _ = kill(*pid, signal);
        }
        all
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A child that is started while the shell scans for children would survive.
        self.pause();
        if let Some(mut input) = self.shell.stdin.take() {
            // Fails if the shell was killed; then the kernel killed the server.
            let _ = input.write_all(b"\n");
        }
        let _ = self.shell.wait();
    }
}

fn supervise(home: &Home, command: &Command) -> Command {
    let mut shell = home.command("sh");
    shell.args(["-c", SUPERVISE, "sh"]).arg(home.path());
    shell.arg(command.get_program()).args(command.get_args());
    shell.stdin(Stdio::piped()).stderr(Stdio::null());
    shell
}

/// The state of a process, as `ps` shows it; `None` if there is none.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn has_ended(pid: Pid) -> bool {
    matches!(state(pid), None | Some('Z'))
}

fn has_stopped(pid: Pid) -> bool {
    has_ended(pid) || state(pid) == Some('T')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that only KILL ends.
    fn stubborn() -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP INT QUIT TERM; exec sleep 600"]);
        command
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < Duration::from_secs(30), "{what}");
            sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_server_does_not_outlive_its_shell_however_that_is_treated() {
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
            let home = Home::new();
            let mut process = Process::start(&home, &stubborn());
            kill(Pid::from_raw(i32::try_from(process.shell.id()).unwrap()), signal).unwrap();
            // Like the end of the test process.
            drop(process.shell.stdin.take());
            until(&format!("left behind after {signal}"), || has_ended(process.pid));
            if signal != Signal::SIGKILL {
                until(&format!("its directory is left after {signal}"), || !home.path().exists());
            }
        }
    }

    #[test]
    fn a_server_whose_starter_dies_before_it_knows_the_id_is_killed() {
        let (reader, unread) = std::io::pipe().unwrap();
        drop(reader);
        let home = Home::new();
        let mut shell = supervise(&home, &stubborn()).stdout(unread).spawn().unwrap();
        drop(shell.stdin.take());
        // It reached the end of its script, where it waited for the processes it had killed.
        shell.wait().unwrap();
        assert!(!home.path().exists());
    }

    #[test]
    fn children_are_paused_resumed_and_killed_with_their_server() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $! >child; wait"]);
        let server = Supervised::spawn(Home::new(), 1, command, |_| true);
        let file = server.directory().join("child");
        until("it has a child", || {
            fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
        });
        let child = Pid::from_raw(fs::read_to_string(&file).unwrap().trim().parse().unwrap());
        server.pause();
        assert_eq!((state(server.pid().unwrap()), state(child)), (Some('T'), Some('T')));
        server.resume();
        until("it goes on", || state(child) == Some('S'));
        server.pause();
        server.kill();
        assert!(has_ended(child));
        assert_eq!(server.pid(), None);
    }
}
