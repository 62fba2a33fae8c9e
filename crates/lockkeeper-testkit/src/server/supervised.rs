//! A process that ends with the test process, however that ends.
//!
//! What tests share is never dropped, so a shell waits for the end of a pipe and then kills what it
//! started. Servers of a single test are better off as a [`Server`](super::Server).
//!
//! Easy to get wrong: the shell is in the process group of the tests. A signal to that group (a terminal
//! that is closed, a time limit) must not end it before it has done its work, because a server may
//! ignore what ends a shell; and neither must its own word about the server's id, when the one who
//! should read it is gone already.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process that does not outlive the test.
#[derive(Debug)]
pub struct Warden {
    /// Kills it when we are gone.
    shell: Mutex<Child>,
    pid: Pid,
}

impl Warden {
    /// Starts a program. Its output goes to a file.
    ///
    /// # Panics
    /// When there is no shell.
    pub fn start(program: &str, arguments: &[String], log: &std::path::Path) -> Self {
        let mut shell = shell(program, arguments, log)
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let mut line = String::new();
        let output = shell.stdout.take().expect("it is a pipe");
        BufReader::new(output).read_line(&mut line).expect("the shell says what it started");
        let pid = Pid::from_raw(line.trim().parse().expect("a shell knows its children"));
        Self { shell: Mutex::new(shell), pid }
    }

    /// The id of the process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Stops it as a debugger would: its connections stay open, and nobody answers.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills it, without a chance to say goodbye.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        // It may be dead already.
        let _ = kill(self.pid, signal);
    }
}

fn shell(program: &str, arguments: &[String], log: &std::path::Path) -> Command {
    // If the shell is killed all the same, the kernel kills what it started; whether it was killed
    // before the kernel was told is seen by the parent. The shell waits for what it killed: only then
    // is its port free.
    let script = r#"
        trap '' HUP INT QUIT TERM PIPE
        log=$1; shift
        (
            trap - HUP INT QUIT TERM PIPE
            exec setpriv --pdeathsig KILL sh -c '[ $PPID = $0 ] && exec "$@"' $$ "$@"
        ) >"$log" 2>&1 &
        echo $!
        read -r _
        kill -9 $!
        wait $!"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(log).arg(program).args(arguments);
    shell.stdin(Stdio::piped()).stderr(Stdio::null());
    shell
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.kill();
        let shell = self.shell.get_mut().expect("nothing panics under this lock");
        drop(shell.stdin.take());
        let _ = shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// What only KILL ends, as long as it lives.
    fn stubborn() -> [String; 2] {
        ["-c", "trap '' HUP INT QUIT TERM; exec sleep 600"].map(str::to_owned)
    }

    /// A zombie is gone as well: it waits for whoever inherited it.
    fn until_gone(pid: Pid, why: &str) {
        let started = Instant::now();
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        while stat().is_some_and(|stat| !stat.contains(") Z ")) {
            assert!(started.elapsed() < Duration::from_secs(30), "left behind after {why}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_server_does_not_outlive_its_shell_however_that_is_treated() {
        let directory = tempfile::tempdir().unwrap();
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
            let warden = Warden::start("sh", &stubborn(), &directory.path().join("log"));
            let shell = warden.shell.lock().unwrap().id();
            kill(Pid::from_raw(i32::try_from(shell).unwrap()), signal).unwrap();
            // What the end of the test process does.
            drop(warden.shell.lock().unwrap().stdin.take());
            until_gone(warden.pid(), signal.as_str());
        }
    }

    #[test]
    fn a_server_whose_starter_dies_before_it_knows_the_id_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let (reader, unread) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = shell("sh", &stubborn(), &directory.path().join("log"));
        let mut shell = command.stdout(unread).spawn().unwrap();
        drop(shell.stdin.take());
        // It came to the end of its script, where it waited for what it had killed.
        let status = shell.wait().unwrap();
        assert_eq!(status.code(), Some(128 + Signal::SIGKILL as i32), "{status}");
    }
}
