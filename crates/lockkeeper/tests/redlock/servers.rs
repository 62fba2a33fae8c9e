//! Several independent Redis servers, and what can happen to one of them.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lockkeeper_testkit::proxy::Proxy;
pub(crate) use lockkeeper_testkit::server::redis::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Some servers.
pub(crate) struct Servers(Vec<Server>);

impl Servers {
    /// Starts servers that keep nothing on disk.
    pub(crate) fn start(count: usize) -> Self {
        Self((0..count).map(|_| Server::start()).collect())
    }

    /// Uses servers that were started already.
    pub(crate) fn of(servers: Vec<Server>) -> Self {
        Self(servers)
    }

    pub(crate) fn url(&self) -> String {
        url(self.iter().map(|server| address(server.port())))
    }

    /// The URL with one server behind a proxy that delays everything, each way.
    pub(crate) fn url_with_slow(&self, slow: usize, latency: Duration) -> String {
        let target = address(self[slow].port());
        let (sender, receiver) = std::sync::mpsc::channel();
        // The proxy lives as long as the test program.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be started").block_on(async {
                let proxy = Proxy::start(target).await;
                proxy.latency(latency);
                sender.send(proxy.address()).expect("somebody wants it");
                std::future::pending::<()>().await;
            });
        });
        let proxy = receiver.recv().expect("the proxy starts");
        let addresses = self.iter().map(|server| address(server.port()));
        url(addresses.enumerate().map(|(at, own)| if at == slow { proxy } else { own }))
    }
}

impl Deref for Servers {
    type Target = [Server];
    fn deref(&self) -> &[Server] {
        &self.0
    }
}

/// The URL of a Redlock over these addresses.
pub(crate) fn url(addresses: impl Iterator<Item = SocketAddr>) -> String {
    let hosts: Vec<_> = addresses.map(|address| address.to_string()).collect();
    format!("redlock://{}", hosts.join(","))
}

pub(crate) fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A process that is stopped and resumed in turn, until this is dropped.
pub(crate) struct Flapping {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flapping {
    pub(crate) fn start(pid: Pid) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                // It may be dead already.
                let _ = kill(pid, Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(fastrand::u64(50..600)));
                let _ = kill(pid, Signal::SIGCONT);
                std::thread::sleep(Duration::from_millis(fastrand::u64(50..600)));
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Flapping {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
