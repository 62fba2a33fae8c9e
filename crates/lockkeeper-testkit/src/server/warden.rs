//! A process that ends with the test process, however that ends.
//!
//! What tests share is never dropped, so a shell waits for the end of a pipe and then kills what it
//! started. Servers of a single test are better off as a [`Server`](super::Server).

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
        // The shell waits for what it killed: only then is its port free.
        let script =
            r#"log=$1; shift; "$@" >"$log" 2>&1 & echo $!; read -r _; kill -9 $!; wait $!"#;
        let mut shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(log)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
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

impl Drop for Warden {
    fn drop(&mut self) {
        self.kill();
        let shell = self.shell.get_mut().expect("nothing panics under this lock");
        drop(shell.stdin.take());
        let _ = shell.wait();
    }
}
