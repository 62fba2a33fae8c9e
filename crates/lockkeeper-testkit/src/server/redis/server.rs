//! One Redis server that a test may kill, freeze, start again and ask.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use tempfile::TempDir;

use crate::ports::free_port;
use crate::server::Warden;

/// What keeps nothing on disk.
pub const VOLATILE: [&str; 4] = ["--save", "", "--appendonly", "no"];

/// What keeps every write on disk.
pub const DURABLE: [&str; 6] = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// How long a server may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server, or a sentinel. It does not outlive the test, also where it is shared by all of them.
#[derive(Debug)]
pub struct Server {
    port: u16,
    directory: TempDir,
    program: String,
    arguments: Vec<String>,
    running: Mutex<Option<Warden>>,
}

impl Server {
    /// Starts a server that keeps nothing on disk.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub fn start() -> Self {
        Self::with(&VOLATILE)
    }

    /// Starts a server with these arguments.
    ///
    /// # Panics
    /// As [`start`](Server::start).
    pub fn with(arguments: &[&str]) -> Self {
        let port = free_port();
        let port_text = port.to_string();
        let own = ["--port", &port_text, "--bind", "127.0.0.1", "--enable-debug-command", "yes"];
        Self::launch("redis-server", port, directory(), [&own, arguments].concat())
    }

    /// Starts a server of the oldest version that is supported, with these arguments.
    ///
    /// # Panics
    /// When there is none, and as [`start`](Server::start).
    pub fn oldest(arguments: &[&str]) -> Self {
        let program = std::env::var("LOCKKEEPER_REDIS_6").unwrap_or_default();
        assert!(
            Path::new(&program).exists(),
            "LOCKKEEPER_REDIS_6 is {program:?}; it names the redis-server of a Redis 6.2, which scripts/test fetches"
        );
        let port = free_port();
        let port_text = port.to_string();
        let own = ["--port", &port_text, "--bind", "127.0.0.1"];
        Self::launch(&program, port, directory(), [&own, arguments].concat())
    }

    /// Starts a server with variables, `NAME=value`, in its environment.
    ///
    /// # Panics
    /// As [`start`](Server::start).
    pub fn with_environment(variables: &[&str], arguments: &[&str]) -> Self {
        let port = free_port();
        let port_text = port.to_string();
        let own = ["redis-server", "--port", &port_text, "--bind", "127.0.0.1"];
        Self::launch("env", port, directory(), [variables, &own, arguments].concat())
    }

    pub(super) fn launch(
        program: &str,
        port: u16,
        directory: TempDir,
        arguments: Vec<&str>,
    ) -> Self {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let program = program.to_owned();
        let server = Self { port, directory, program, arguments, running: Mutex::default() };
        server.restart();
        server
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens, as clients write it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The id of its process, while it runs.
    pub fn pid(&self) -> Option<Pid> {
        self.running().as_ref().map(Warden::pid)
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts it again after it was killed, on the same port and directory.
    ///
    /// # Panics
    /// As [`start`](Server::start).
    pub fn restart(&self) {
        let log = self.directory.path().join("server.log");
        let mut arguments = self.arguments.clone();
        if self.program != "redis-sentinel" {
            arguments.extend(["--dir".to_owned(), self.directory.path().display().to_string()]);
        }
        *self.running() = Some(Warden::start(&self.program, &arguments, &log));
        eventually("the server listens", || {
            let answers = TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && self.ask(&["PING"]) == "PONG";
            answers.then_some(()).ok_or_else(|| {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let hint = "on Debian: apt-get install redis-server redis-sentinel redis-tools";
                format!("{} said {said:?}; if it is not installed, {hint}", self.program)
            })
        });
    }

    /// Kills it with `SIGKILL`; returns when it is dead.
    pub fn kill(&self) {
        let running = self.running().take();
        drop(running);
    }

    /// Stops it without ending it, with `SIGSTOP`.
    pub fn freeze(&self) {
        if let Some(running) = &*self.running() {
            running.pause();
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        if let Some(running) = &*self.running() {
            running.resume();
        }
    }

    /// Asks it something, as an operator would; the answer is empty if there is none.
    ///
    /// # Panics
    /// When redis-cli is not installed.
    pub fn ask(&self, command: &[&str]) -> String {
        // A server that is stopped does not answer at all.
        let output = Command::new("timeout")
            .args(["2", "redis-cli", "-p", &self.port.to_string()])
            .args(command)
            .stderr(Stdio::null())
            .output()
            .expect("timeout is installed");
        let missing = output.status.code() == Some(127);
        assert!(!missing, "redis-cli is not installed; on Debian: apt-get install redis-tools");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Warden>> {
        self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

pub(super) fn directory() -> TempDir {
    TempDir::with_prefix("lockkeeper-").expect("there is room for a directory")
}

/// Waits until something is so; if it never is, says how it was instead.
///
/// # Panics
/// When it is not so after half a minute.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    loop {
        match is_so() {
            Ok(()) => return,
            Err(how) => assert!(started.elapsed() < PATIENCE, "not so: {what}; but {how}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
