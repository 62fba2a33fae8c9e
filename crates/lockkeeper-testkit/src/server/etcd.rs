//! etcd, one member or a cluster, from Debian's packages `etcd-server` and `etcd-client`.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::process::Command;
use std::time::{Duration, Instant};

use super::supervised::{Home, Supervised};
use super::{accepts, ask, hosts, program, run};
use crate::ports::free_port;

/// A cluster of one or more members.
#[derive(Debug)]
pub struct Servers(Vec<Member>);

/// One of them.
#[derive(Debug)]
pub struct Member(Supervised);

impl Servers {
    /// Starts this many members and waits until they serve.
    pub fn start(members: usize) -> Self {
        Self::with(members, &[])
    }

    /// Like `start`, with additional arguments for every member.
    pub fn with(members: usize, more: &[&str]) -> Self {
        Self::advertised(members, more, |peer| peer)
    }

    /// Like `with`; the members reach each other at the addresses that are returned for their own.
    pub fn advertised(
        members: usize,
        more: &[&str],
        mut address: impl FnMut(SocketAddr) -> SocketAddr,
    ) -> Self {
        let peers: Vec<SocketAddr> =
            (0..members).map(|_| (Ipv4Addr::LOCALHOST, free_port()).into()).collect();
        let peers: Vec<_> = peers
            .into_iter()
            .map(|peer| (format!("http://{peer}"), format!("http://{}", address(peer))))
            .collect();
        let cluster: Vec<_> =
            peers.iter().enumerate().map(|(n, (_, peer))| format!("m{n}={peer}")).collect();
        // With TLS, it shows its health only to clients with a certificate.
        let secure = more.contains(&"--cert-file");
        let (scheme, ready): (_, fn(u16) -> bool) =
            if secure { ("https", accepts) } else { ("http", is_healthy) };
        let member = |(n, (own, advertised)): (usize, &(String, String))| {
            let port = free_port();
            let url = format!("{scheme}://127.0.0.1:{port}");
            let mut etcd = Command::new(program("etcd", "etcd-server"));
            etcd.args(["--name", &format!("m{n}"), "--data-dir", "data"]);
            etcd.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
            etcd.args(["--listen-peer-urls", own, "--initial-advertise-peer-urls", advertised]);
            etcd.args(["--initial-cluster", &cluster.join(",")]);
            etcd.args(["--log-level", "error", "--logger", "zap"]).args(more);
            Member(Supervised::spawn(Home::new(), port, etcd, ready))
        };
        let servers = Self(peers.iter().enumerate().map(member).collect());
        servers.iter().for_each(|member| member.wait_until_ready());
        servers
    }

    /// A URL of all members, with options.
    pub fn url(&self, options: &str) -> String {
        format!("etcd://{}{options}", hosts(self))
    }

    /// Runs `etcdctl` with these arguments against all members, and returns its output.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        run(&mut self.ctl_command(arguments))
    }

    /// `etcdctl` with these arguments, to be started.
    pub fn ctl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("etcdctl", "etcd-client"));
        command.env("ETCDCTL_API", "3").args(["--endpoints", &hosts(self)]).args(arguments);
        command
    }

    /// Which member leads.
    ///
    /// # Panics
    /// When none does for a minute.
    pub fn leader(&self) -> usize {
        let started = Instant::now();
        loop {
            // One line for each that answers: address, id, version, size, whether it leads, …
            let output = self.ctl_command(&["endpoint", "status"]).output();
            let status = output.expect("etcdctl can be run").stdout;
            let status = String::from_utf8_lossy(&status);
            let leads = |line: &&str| line.split(", ").nth(4) == Some("true");
            let leader = status.lines().find(leads).and_then(|line| line.split(", ").next());
            let leads = |member: &Member| leader == Some(&member.address().to_string());
            if let Some(n) = self.iter().position(leads) {
                return n;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "nobody leads: {status}");
        }
    }

    /// The number of leases.
    pub fn leases(&self) -> usize {
        // The first line says how many.
        self.ctl(&["lease", "list"]).lines().skip(1).filter(|line| !line.is_empty()).count()
    }

    /// Everything that is stored, one key per line.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.ctl(&["get", "", "--from-key", "--keys-only"]);
        keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// How many unary requests the first member has received, by its own count.
    pub fn requests(&self) -> usize {
        self.requests_of("grpc_type=\"unary\"")
    }

    /// How many of those have a description that contains this, for instance
    /// `etcdserverpb.Maintenance`.
    pub fn requests_of(&self, what: &str) -> usize {
        let text = page(self[0].port(), "/metrics").expect("a member shows its metrics");
        let count = |line: &str| -> Option<usize> {
            let rest = line.strip_prefix("grpc_server_started_total")?;
            rest.contains(what).then(|| rest.rsplit_once(' ')?.1.parse().ok())?
        };
        text.lines().filter_map(count).sum()
    }
}

impl Deref for Servers {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.0
    }
}

impl Deref for Member {
    type Target = Supervised;

    fn deref(&self) -> &Supervised {
        &self.0
    }
}

/// Whether a member serves and knows a leader.
fn is_healthy(port: u16) -> bool {
    page(port, "/health").is_ok_and(|answer| answer.contains(r#""health":"true""#))
}

/// An HTTP page of a member.
fn page(port: u16, path: &str) -> std::io::Result<String> {
    ask(port, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}
