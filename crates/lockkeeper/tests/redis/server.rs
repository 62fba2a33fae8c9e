//! Redis servers of the tests' own: on free ports, in temporary directories, gone when dropped.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server.
pub(crate) struct Server {
    child: Child,
    port: u16,
    directory: TempDir,
    arguments: Vec<String>,
}

impl Server {
    /// Starts a server that keeps nothing on disk.
    pub(crate) fn start() -> Self {
        Self::with(&["--save", "", "--appendonly", "no"])
    }

    /// Starts a server with these arguments.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let port = free_port();
        let arguments: Vec<_> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let child = launch(port, &directory, &arguments);
        Self { child, port, directory, arguments }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(port: u16, directory: &TempDir, arguments: &[String]) -> Child {
    let child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--dir", directory.path().to_str().expect("temporary paths are text")])
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed");
    let started = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(started.elapsed() < Duration::from_secs(10), "redis-server does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port can be bound");
    listener.local_addr().expect("it has an address").port()
}
