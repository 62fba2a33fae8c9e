//! Real servers for tests: started on free ports in temporary directories, stopped on drop.
//!
//! A server also ends when the test process does, however that ends: a shell waits for the end of a
//! pipe and then kills what it started.

pub mod zookeeper;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A server process that does not outlive the test.
#[derive(Debug)]
pub struct Process {
    /// The shell that kills it when we are gone.
    warden: Mutex<Child>,
    pid: Pid,
}

impl Process {
    /// Starts a program. Its output goes to a file.
    ///
    /// # Panics
    /// When there is no shell.
    pub fn start(program: &str, arguments: &[String], log: &std::path::Path) -> Self {
        let script = r#"log=$1; shift; "$@" >"$log" 2>&1 & echo $!; read -r _; kill -9 $! 2>&-"#;
        let mut warden = Command::new("sh")
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
        let output = warden.stdout.take().expect("it is a pipe");
        BufReader::new(output).read_line(&mut line).expect("the shell says what it started");
        let pid = Pid::from_raw(line.trim().parse().expect("a shell knows its children"));
        Self { warden: Mutex::new(warden), pid }
    }

    /// Stops it as a debugger would: its connections stay open, and nobody answers.
    pub fn stop(&self) {
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

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let warden = self.warden.get_mut().expect("nothing panics under this lock");
        drop(warden.stdin.take());
        let _ = warden.wait();
    }
}

/// Ports that nobody uses at the moment.
///
/// # Panics
/// When there is none.
pub fn free_ports<const N: usize>() -> [u16; N] {
    // All are held until all are known, so that they differ.
    let held = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    held.map(|port| port.local_addr().expect("it is bound").port())
}
