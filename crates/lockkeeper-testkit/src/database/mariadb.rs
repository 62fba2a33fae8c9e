//! A MariaDB server with as many databases as there are tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{PATIENCE, Process, as_user, free_port, program, run, wait_for_port};

const BINARIES: [&str; 3] = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];

/// A server of its own. Its `root` needs no password from this machine.
#[derive(Debug)]
pub struct Mariadb {
    process: Option<Process>,
    directory: TempDir,
    port: u16,
    settings: Vec<String>,
    databases: AtomicU32,
}

impl Mariadb {
    /// Starts a server that does not wait for the disk: tests kill processes, not machines.
    pub fn start() -> Self {
        Self::with(&["innodb-flush-log-at-trx-commit=2"])
    }

    /// Starts a server with settings such as `innodb-flush-log-at-trx-commit=1`.
    ///
    /// # Panics
    /// When it cannot be started, with its log.
    pub fn with(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("there is room for a temporary directory");
        let install = program("mariadb-install-db", &BINARIES, "mariadb-server");
        run(as_user("mysql", &install, directory.path())
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", directory.path().join("data").display())));
        let mut server = Self {
            process: None,
            directory,
            port: free_port(),
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            databases: AtomicU32::new(0),
        };
        server.resume_service();
        server
    }

    /// The URL of a new database.
    pub fn url(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.run("mysql", &format!("CREATE DATABASE {name}"));
        format!("mysql://root@127.0.0.1:{}/{name}", self.port)
    }

    /// Runs a statement, and gives what it answered, one row per line.
    pub fn run(&self, database: &str, statement: &str) -> String {
        let mut client = Command::new(program("mariadb", &BINARIES, "mariadb-client"));
        client.args(["--no-defaults", "-N", "-B", "-u", "root", "-h", "127.0.0.1"]);
        client.args(["-P", &self.port.to_string(), "-D", database, "-e", statement]);
        run(&mut client).trim_end().to_owned()
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops the server where it is.
    pub fn freeze(&self) {
        self.process().signal(Signal::SIGSTOP);
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.process().signal(Signal::SIGCONT);
    }

    /// Kills the server without warning. What was committed is on disk, as far as the kernel knows.
    pub fn crash(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts a server that crashed again, on the same port, and waits until it has recovered.
    ///
    /// # Panics
    /// When it does not come back, with its log.
    pub fn resume_service(&mut self) {
        let place = self.directory.path();
        let mut server = as_user("mysql", &program("mariadbd", &BINARIES, "mariadb-server"), place);
        server.arg("--no-defaults");
        server.arg(format!("--datadir={}", place.join("data").display()));
        server.arg(format!("--socket={}", place.join("socket").display()));
        server.arg(format!("--pid-file={}", place.join("pid").display()));
        server.args(["--bind-address=127.0.0.1", "--max-connections=500", "--skip-log-bin"]);
        server.arg(format!("--port={}", self.port));
        server.args(self.settings.iter().map(|setting| format!("--{setting}")));
        let log = std::fs::File::create(self.log()).expect("the directory is ours");
        server.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        self.process = Some(Process::start(&mut server, place));
        wait_for_port(self.port, &self.log());
        let started = Instant::now();
        let admin = program("mariadb-admin", &BINARIES, "mariadb-client");
        let port = self.port.to_string();
        while !Command::new(&admin)
            .args(["--no-defaults", "-s", "-u", "root", "-h", "127.0.0.1", "-P", &port, "ping"])
            .output()
            .is_ok_and(|output| output.status.success())
        {
            assert!(started.elapsed() < PATIENCE, "{:?}", std::fs::read_to_string(self.log()));
            sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it is running unless it crashed")
    }
}

impl Drop for Mariadb {
    fn drop(&mut self) {
        self.crash();
    }
}
