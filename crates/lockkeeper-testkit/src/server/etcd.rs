//! etcd, one member or a cluster, from Debian's packages `etcd-server` and `etcd-client`.
//!
//! What all tests of a program share is never dropped, so a [`Warden`] sees to the end of each member.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use super::Warden;
use crate::ports::free_port;

/// How long a server may take to serve.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of one or more members.
#[derive(Debug)]
pub struct Servers {
    members: Vec<Member>,
    /// Its end is the directory's.
    _cleaner: ChildStdin,
}

#[derive(Debug)]
struct Member {
    client: u16,
    arguments: Vec<String>,
    running: Mutex<Option<Warden>>,
}

impl Servers {
    /// Starts so many members and waits until they serve.
    pub fn start(members: usize) -> Self {
        Self::with(members, &[])
    }

    /// As `start`, with more arguments for every member.
    #[expect(clippy::zombie_processes, reason = "the cleaner ends when this process has")]
    pub fn with(members: usize, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made").keep();
        let cleaner = Command::new("sh")
            .args(["-c", CLEAN, "sh"])
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell can be started");
        let ports: Vec<_> = (0..members).map(|_| (free_port(), free_port())).collect();
        let cluster: Vec<_> = ports
            .iter()
            .enumerate()
            .map(|(n, (_, peer))| format!("m{n}=http://127.0.0.1:{peer}"))
            .collect();
        let member = |(n, (client, peer)): (usize, &(u16, u16))| {
            let secure = more.contains(&"--cert-file");
            let client_url = format!("http{}://127.0.0.1:{client}", if secure { "s" } else { "" });
            let peer_url = format!("http://127.0.0.1:{peer}");
            let data = directory.join(format!("m{n}"));
            let mut arguments: Vec<_> = [
                ("--name", format!("m{n}")),
                ("--data-dir", data.display().to_string()),
                ("--listen-client-urls", client_url.clone()),
                ("--advertise-client-urls", client_url),
                ("--listen-peer-urls", peer_url.clone()),
                ("--initial-advertise-peer-urls", peer_url),
                ("--initial-cluster", cluster.join(",")),
                ("--log-level", "error".to_owned()),
                ("--logger", "zap".to_owned()),
            ]
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect();
            arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
            Member { client: *client, arguments, running: Mutex::default() }
        };
        let members = ports.iter().enumerate().map(member).collect();
        let cleaner = cleaner.stdin.expect("it was asked for");
        let servers = Self { members, _cleaner: cleaner };
        (0..servers.members.len()).for_each(|n| servers.members[n].spawn());
        (0..servers.members.len()).for_each(|n| servers.wait_until_healthy(n));
        servers
    }

    /// `host:port` of a member.
    pub fn address(&self, n: usize) -> String {
        format!("127.0.0.1:{}", self.members[n].client)
    }

    /// A URL of all members, with options.
    pub fn url(&self, options: &str) -> String {
        let addresses: Vec<_> = (0..self.members.len()).map(|n| self.address(n)).collect();
        format!("etcd://{}{options}", addresses.join(","))
    }

    /// Sends a signal to a member.
    pub fn signal(&self, n: usize, signal: Signal) {
        let running = self.members[n].running();
        let pid = running.as_ref().expect("the member runs").pid();
        kill(pid, signal).expect("it can be signalled");
    }

    /// Kills a member.
    pub fn kill(&self, n: usize) {
        drop(self.members[n].running().take().expect("the member runs"));
    }

    /// Starts a member again after it was killed, with what it has on disk.
    pub fn restart(&self, n: usize) {
        self.members[n].spawn();
        self.wait_until_healthy(n);
    }

    /// Runs `etcdctl` with these arguments against all members, and returns what it printed.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let output = self.ctl_command(arguments).output().expect(MISSING_CTL);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `etcdctl` with these arguments, to be started.
    pub fn ctl_command(&self, arguments: &[&str]) -> Command {
        let addresses: Vec<_> = (0..self.members.len()).map(|n| self.address(n)).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(addresses.join(",")).args(arguments);
        command
    }

    /// Which member leads.
    pub fn leader(&self) -> usize {
        let started = Instant::now();
        loop {
            // One line for each that answers: address, id, version, size, whether it leads, …
            let output = self.ctl_command(&["endpoint", "status"]).output().expect(MISSING_CTL);
            let status = String::from_utf8_lossy(&output.stdout);
            let leads = |line: &&str| line.split(", ").nth(4) == Some("true");
            let leader = status.lines().find(leads).and_then(|line| line.split(", ").next());
            let known = (0..self.members.len()).find(|n| Some(&*self.address(*n)) == leader);
            if let Some(n) = known {
                return n;
            }
            assert!(started.elapsed() < PATIENCE, "nobody leads: {status}");
        }
    }

    /// The leases that there are.
    pub fn leases(&self) -> usize {
        // The first line says how many.
        self.ctl(&["lease", "list"]).lines().skip(1).filter(|line| !line.is_empty()).count()
    }

    /// Everything that is stored, one key per line.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.ctl(&["get", "", "--from-key", "--keys-only"]);
        keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// How many unary requests the first member was sent, by its own count.
    pub fn requests(&self) -> usize {
        self.requests_of("grpc_type=\"unary\"")
    }

    /// How many of those whose description contains this, for instance `etcdserverpb.Maintenance`.
    pub fn requests_of(&self, what: &str) -> usize {
        let text = self.members[0].page("/metrics").expect("a member shows its metrics");
        let count = |line: &str| -> Option<usize> {
            let rest = line.strip_prefix("grpc_server_started_total")?;
            rest.contains(what).then(|| rest.rsplit_once(' ')?.1.parse().ok())?
        };
        text.lines().filter_map(count).sum()
    }

    fn wait_until_healthy(&self, n: usize) {
        let started = Instant::now();
        while !self.members[n].is_healthy() {
            assert!(started.elapsed() < PATIENCE, "member {n} does not serve");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Servers that are shared by all tests of a program are never dropped, so what they leave on disk is
/// removed when the program's end is seen, after the servers had a moment to die of the same.
const CLEAN: &str = r#"trap '' HUP INT QUIT TERM; cat >/dev/null; sleep 2; rm -rf "$1""#;

const MISSING_CTL: &str = "etcdctl can be run; it is in Debian's package etcd-client";

impl Member {
    fn spawn(&self) {
        let found = Command::new("etcd").arg("--version").output();
        assert!(found.is_ok(), "etcd cannot be run; it is in Debian's package etcd-server");
        let warden = Warden::start("etcd", &self.arguments, Path::new("/dev/null"));
        *self.running() = Some(warden);
    }

    /// Whether it serves and knows a leader, by its own word.
    fn is_healthy(&self) -> bool {
        if self.arguments.iter().any(|argument| argument == "--cert-file") {
            return TcpStream::connect(("127.0.0.1", self.client)).is_ok();
        }
        self.page("/health").is_ok_and(|answer| answer.contains(r#""health":"true""#))
    }

    /// What it shows to a browser.
    fn page(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.client))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn running(&self) -> MutexGuard<'_, Option<Warden>> {
        self.running.lock().expect("nothing panics under this lock")
    }
}
