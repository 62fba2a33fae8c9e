//! Real servers for tests: each on a free port, in a directory of its own, gone when dropped.

pub mod database;
pub mod etcd;
mod mariadb;
mod pgbouncer;
mod postgres;
pub mod redis;
mod supervised;
pub mod zookeeper;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::ports::free_port;

pub use redis::{Persistence, redis};
pub use supervised::Warden;

/// How long a server may take to start, or to stop when it is asked to.
const PATIENCE: Duration = Duration::from_secs(15);

/// How to run a server.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// The program.
    pub program: &'static str,
    /// The Debian package that it is in.
    pub package: &'static str,
    /// Its arguments, given its port and the directory for its data.
    pub arguments: fn(u16, &Path) -> Vec<String>,
    /// Whether it is ready to be used, asked over a new connection.
    pub ready: fn(TcpStream) -> io::Result<bool>,
}

/// What a restarted server finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// What it left on disk.
    Kept,
    /// Nothing.
    Lost,
}

/// A server that runs. Stopped when dropped.
#[derive(Debug)]
pub struct Server {
    recipe: Recipe,
    port: u16,
    dir: TempDir,
    child: Child,
}

impl Server {
    /// Starts a server and waits until it is ready.
    ///
    /// # Panics
    /// When the program is not installed, with a message that names the package; when it does not
    /// start, with what it said.
    pub fn start(recipe: Recipe) -> Self {
        let dir = TempDir::with_prefix("lockkeeper-").expect("there is room for a directory");
        let port = free_port();
        let child = spawn(recipe, port, dir.path());
        let mut server = Self { recipe, port, dir, child };
        server.wait_until_ready();
        server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Stops it without its noticing, with `SIGSTOP`. Connections stay open.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it run again, with `SIGCONT`.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills it with `SIGKILL`; returns when it is dead.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("a child can be waited for");
    }

    /// Kills it if it still runs and starts it again on the same port; waits until it is ready.
    ///
    /// # Panics
    /// As [`start`](Server::start).
    pub fn restart(&mut self, data: Data) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
        if data == Data::Lost {
            self.dir = TempDir::with_prefix("lockkeeper-").expect("there is room for a directory");
        }
        self.child = spawn(self.recipe, self.port, self.dir.path());
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("{} ended at once ({status}): {}", self.recipe.program, self.said());
            }
            let stream = TcpStream::connect_timeout(&self.address(), PATIENCE);
            if stream.and_then(self.recipe.ready).unwrap_or(false) {
                return;
            }
            let waited = started.elapsed();
            assert!(waited < PATIENCE, "{} is not ready: {}", self.recipe.program, self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("process ids are small"));
        kill(pid, signal).unwrap_or_else(|e| panic!("cannot send {signal}: {e}"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // One that is paused hears nothing else first.
        self.signal(Signal::SIGCONT);
        self.signal(Signal::SIGTERM);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(recipe: Recipe, port: u16, dir: &Path) -> Child {
    let log = std::fs::File::create(dir.join("log")).expect("a new directory takes files");
    let again = log.try_clone().expect("a file can be opened twice");
    let spawned = Command::new(recipe.program)
        .args((recipe.arguments)(port, dir))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(again)
        .spawn();
    spawned.unwrap_or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => panic!(
            "{} is not installed; on Debian: apt-get install {}",
            recipe.program, recipe.package
        ),
        _ => panic!("cannot start {}: {error}", recipe.program),
    })
}
