//! One Redis server or sentinel.

use std::io::{Read, Write};
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::WallClock;
use crate::ports::free_port;
use crate::server::supervised::{Home, Supervised};
use crate::server::{connect, program};

/// Settings that keep nothing on disk.
pub const VOLATILE: [&str; 4] = ["--save", "", "--appendonly", "no"];

/// Settings that keep every write on disk.
pub const DURABLE: [&str; 6] = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// A server, or a sentinel.
#[derive(Debug)]
pub struct Server(Supervised);

impl Server {
    /// Starts a server that keeps nothing on disk.
    ///
    /// # Panics
    /// When it does not start, with its log.
    pub fn start() -> Self {
        Self::with(&VOLATILE)
    }

    /// Starts a server with these arguments.
    ///
    /// # Panics
    /// Same as [`start`](Server::start).
    pub fn with(arguments: &[&str]) -> Self {
        let command = Command::new(program("redis-server", "redis-server"));
        Self::launch(command, &[&["--enable-debug-command", "yes"], arguments].concat())
    }

    /// Starts a server of the oldest version that is supported, with these arguments.
    ///
    /// # Panics
    /// When there is none, and same as [`start`](Server::start).
    pub fn oldest(arguments: &[&str]) -> Self {
        let program = std::env::var("LOCKKEEPER_REDIS_6").unwrap_or_default();
        assert!(
            Path::new(&program).exists(),
            "LOCKKEEPER_REDIS_6 is {program:?}; it names the redis-server of a Redis 6.2, which scripts/test fetches"
        );
        Self::launch(Command::new(program), arguments)
    }

    /// Starts a server that has this clock.
    ///
    /// # Panics
    /// Same as [`start`](Server::start).
    pub fn with_clock(clock: &WallClock, arguments: &[&str]) -> Self {
        let variables =
            clock.environment().map(|(name, path)| format!("{name}={}", path.display()));
        Self::with_environment(&variables.each_ref().map(String::as_str), arguments)
    }

    /// Starts a server with variables, `NAME=value`, in its environment.
    ///
    /// # Panics
    /// Same as [`start`](Server::start).
    pub fn with_environment(variables: &[&str], arguments: &[&str]) -> Self {
        let mut command = Command::new("env");
        command.args(variables).arg(program("redis-server", "redis-server"));
        Self::launch(command, arguments)
    }

    fn launch(mut command: Command, arguments: &[&str]) -> Self {
        let port = free_port();
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]).args(arguments);
        Self(Supervised::start(Home::new(), port, command, answers))
    }

    /// Starts a sentinel with these settings.
    pub(super) fn sentinel(settings: &str) -> Self {
        let (port, home) = (free_port(), Home::new());
        let text = format!("port {port}\nbind 127.0.0.1\n{settings}");
        let mut command = Command::new(program("redis-sentinel", "redis-sentinel"));
        command.arg(home.write("sentinel.conf", &text));
        Self(Supervised::start(home, port, command, answers))
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Sends a command, as an operator would; the answer is empty if there is none.
    ///
    /// # Panics
    /// When redis-cli is not installed.
    pub fn ask(&self, command: &[&str]) -> String {
        // A server that is stopped does not answer at all.
        let output = Command::new("timeout")
            .arg("2")
            .arg(program("redis-cli", "redis-tools"))
            .args(["-p", &self.port().to_string()])
            .args(command)
            .stderr(Stdio::null())
            .output()
            .expect("timeout is installed");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }
}

impl Deref for Server {
    type Target = Supervised;

    fn deref(&self) -> &Supervised {
        &self.0
    }
}

/// A server that still loads its files accepts connections, and answers with an error.
fn answers(port: u16) -> bool {
    // Not read to the end: a sentinel of Redis 7.0 does not know QUIT, and never disconnects.
    let asked = connect(port).and_then(|mut stream| {
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).map(|()| answer)
    });
    asked.is_ok_and(|answer| &answer == b"+PONG\r\n")
}
