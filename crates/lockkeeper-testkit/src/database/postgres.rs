//! A PostgreSQL server with as many databases as there are tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{PATIENCE, Process, as_user, free_port, program, run, wait_for_port};

/// Where Debian puts the programs of each version, newest first.
const BINARIES: [&str; 5] = [
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
    "/usr/bin",
];

/// A server of its own. Its superuser is `postgres`, and needs no password from this machine.
#[derive(Debug)]
pub struct Postgres {
    process: Option<Process>,
    directory: TempDir,
    port: u16,
    settings: Vec<String>,
    databases: AtomicU32,
}

impl Postgres {
    /// Starts a server that does not wait for the disk: tests kill processes, not machines.
    pub fn start() -> Self {
        Self::with(&["fsync=off"])
    }

    /// Starts a server with settings such as `fsync=on`.
    ///
    /// # Panics
    /// When it cannot be started, with its log.
    pub fn with(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("there is room for a temporary directory");
        let initdb = program("initdb", &BINARIES, "postgresql");
        run(as_user("postgres", &initdb, directory.path())
            .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8"])
            .args(["--locale=C", "--pgdata"])
            .arg(directory.path().join("data")));
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
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        format!("postgres://postgres@127.0.0.1:{}/{name}", self.port)
    }

    /// Runs a statement, and gives what it answered, one row per line.
    pub fn psql(&self, database: &str, statement: &str) -> String {
        let mut psql = Command::new(program("psql", &BINARIES, "postgresql-client"));
        psql.args(["--no-psqlrc", "-qtA", "-v", "ON_ERROR_STOP=1", "-U", "postgres"]);
        psql.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-d", database]);
        run(psql.args(["-c", statement])).trim_end().to_owned()
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops every process of the server where it is.
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
        let mut server = as_user(
            "postgres",
            &program("postgres", &BINARIES, "postgresql"),
            self.directory.path(),
        );
        server.arg("-D").arg(self.directory.path().join("data"));
        let port = format!("port={}", self.port);
        let fixed = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=500",
            "logging_collector=off",
        ];
        for setting in fixed.into_iter().chain([port.as_str()]) {
            server.args(["-c", setting]);
        }
        for setting in &self.settings {
            server.args(["-c", setting]);
        }
        let log = std::fs::File::create(self.log()).expect("the directory is ours");
        server.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        self.process = Some(Process::start(&mut server, self.directory.path()));
        wait_for_port(self.port, &self.log());
        let started = Instant::now();
        let ready = program("pg_isready", &BINARIES, "postgresql-client");
        let port = self.port.to_string();
        while !Command::new(&ready)
            .args(["-q", "-h", "127.0.0.1", "-p", &port])
            .status()
            .is_ok_and(|status| status.success())
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

impl Drop for Postgres {
    fn drop(&mut self) {
        self.crash();
    }
}
