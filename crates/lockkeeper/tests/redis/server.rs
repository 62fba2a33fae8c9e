//! Redis servers of the tests' own: on free ports, in temporary directories, and never left behind.
//!
//! A shell stands between: it kills its server when its input ends, which it does when the test
//! process ends, however that happens.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub(crate) use lockkeeper_testkit::ports::free_port;
use tempfile::TempDir;

/// What keeps nothing on disk.
pub(crate) const VOLATILE: [&str; 4] = ["--save", "", "--appendonly", "no"];

/// What keeps every write on disk.
pub(crate) const DURABLE: [&str; 6] =
    ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// How long a server may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server.
pub(crate) struct Server {
    port: u16,
    directory: TempDir,
    program: &'static str,
    arguments: Vec<String>,
    running: Mutex<Option<Running>>,
}

struct Running {
    shell: Child,
    /// Its end is the server's.
    _input: Option<ChildStdin>,
    pid: String,
}

impl Server {
    /// Starts a server that keeps nothing on disk.
    pub(crate) fn start() -> Self {
        Self::with(&VOLATILE)
    }

    /// Starts a server with these arguments.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let port = free_port();
        let port_text = port.to_string();
        let own = ["--port", &port_text, "--bind", "127.0.0.1", "--enable-debug-command", "yes"];
        Self::launch("redis-server", port, tempfile::tempdir().unwrap(), [&own, arguments].concat())
    }

    /// Starts a server with variables in its environment.
    pub(crate) fn with_environment(variables: &[&str], arguments: &[&str]) -> Self {
        let port = free_port();
        let port_text = port.to_string();
        let own = ["redis-server", "--port", &port_text, "--bind", "127.0.0.1"];
        let command = [variables, &own, arguments].concat();
        Self::launch("env", port, tempfile::tempdir().unwrap(), command)
    }

    fn launch(program: &'static str, port: u16, directory: TempDir, arguments: Vec<&str>) -> Self {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let server = Self { port, directory, program, arguments, running: Mutex::default() };
        server.restart();
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The id of its process, while it runs.
    pub(crate) fn pid(&self) -> String {
        let running = self.running.lock().unwrap();
        running.as_ref().map(|running| running.pid.clone()).expect("it runs")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts it again after it was killed, on the same port and directory.
    pub(crate) fn restart(&self) {
        let mut shell = Command::new("sh")
            .args([
                "-c",
                r#""$@" >server.log & echo $!; exec >&-; cat >/dev/null; kill -9 $! 2>&-"#,
                "sh",
            ])
            .arg(self.program)
            .args(&self.arguments)
            .current_dir(self.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let mut pid = String::new();
        let output = shell.stdout.take().expect("its output is a pipe");
        BufReader::new(output).read_line(&mut pid).expect("it says the id of the server");
        let input = shell.stdin.take();
        let pid = pid.trim().to_owned();
        *self.running.lock().unwrap() = Some(Running { shell, _input: input, pid });
        let log = || fs::read_to_string(self.directory.path().join("server.log"));
        eventually("the server listens", || {
            let answer = TcpStream::connect(("127.0.0.1", self.port)).is_ok() && {
                self.ask(&["PING"]) == "PONG"
            };
            answer.then_some(()).ok_or_else(|| format!("{:?}", log()))
        });
    }

    /// Kills it with -9.
    pub(crate) fn kill(&self) {
        if let Some(mut running) = self.running.lock().unwrap().take() {
            running.signal("-KILL");
            drop(running._input.take());
            let _ = running.shell.wait();
            // The shell does not wait for its child, and a port is free only when that is dead.
            eventually("nobody listens", || {
                let is_there = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
                (!is_there).then_some(()).ok_or("somebody still does".to_owned())
            });
        }
    }

    /// Stops it without ending it.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        if let Some(running) = &*self.running.lock().unwrap() {
            running.signal(signal);
        }
    }

    /// Asks it something, as an operator would.
    pub(crate) fn ask(&self, command: &[&str]) -> String {
        cli(self.port, command)
    }
}

impl Running {
    fn signal(&self, signal: &str) {
        let _ = Command::new("kill").args([signal, &self.pid]).stderr(Stdio::null()).status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One master, two replicas and three sentinels.
pub(crate) struct Sentinels {
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
}

impl Sentinels {
    pub(crate) fn start() -> Self {
        let master = Server::start();
        let port = master.port.to_string();
        let replica = || {
            let following =
                ["--replicaof", "127.0.0.1", port.as_str(), "--repl-diskless-sync-delay", "0"];
            Server::with(&[&VOLATILE[..], &following].concat())
        };
        let servers = vec![master, replica(), replica()];
        eventually("both replicas follow", || {
            let info = servers[0].ask(&["INFO", "replication"]);
            (info.matches("state=online").count() == 2).then_some(()).ok_or(info)
        });
        let sentinels: Vec<_> = (0..3).map(|_| Self::sentinel(&port)).collect();
        eventually("the sentinels know each other and the replicas", || {
            let known: Vec<_> = sentinels
                .iter()
                .map(|sentinel| sentinel.ask(&["SENTINEL", "CKQUORUM", "main"]))
                .chain(sentinels.iter().map(|s| {
                    let replicas =
                        s.ask(&["SENTINEL", "REPLICAS", "main"]).matches("runid").count();
                    format!("OK 3 usable, {replicas} replicas")
                }))
                .collect();
            let ready = known.iter().all(|answer| answer.starts_with("OK 3"))
                && known[3..].iter().all(|answer| answer.contains("2 replicas"));
            ready.then_some(()).ok_or(format!("{known:?}"))
        });
        Self { servers, sentinels }
    }

    fn sentinel(master: &str) -> Server {
        let (port, directory) = (free_port(), tempfile::tempdir().unwrap());
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 4000\n"
        );
        fs::write(directory.path().join("sentinel.conf"), text).unwrap();
        Server::launch("redis-sentinel", port, directory, vec!["sentinel.conf"])
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> =
            self.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }

    /// The server that is the master now.
    pub(crate) fn master(&self) -> &Server {
        let mut master = None;
        eventually("there is a master", || {
            let answer = self.sentinels[0].ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
            let port = answer.lines().nth(1).and_then(|port| port.trim().parse::<u16>().ok());
            master = self.servers.iter().find(|server| Some(server.port) == port);
            let is_master = master.is_some_and(|m| m.ask(&["ROLE"]).starts_with("master"));
            is_master.then_some(()).ok_or(answer)
        });
        master.expect("it was found")
    }
}

/// Three masters, each with a replica.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let clustered = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let more = ["--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"];
        let arguments = [&VOLATILE[..], &clustered, &more].concat();
        let servers: Vec<_> = (0..6).map(|_| Server::with(&arguments)).collect();
        let addresses: Vec<_> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .expect("redis-cli is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Self { servers };
        cluster.settled();
        cluster
    }

    /// Waits until every server agrees that all is well.
    pub(crate) fn settled(&self) {
        eventually("the cluster is whole", || {
            let states: Vec<_> = self.servers.iter().map(|s| s.ask(&["CLUSTER", "INFO"])).collect();
            let replicas =
                self.servers.iter().filter(|s| s.ask(&["ROLE"]).contains("connected")).count();
            let whole = states.iter().all(|state| {
                state.contains("cluster_state:ok") && state.contains("cluster_slots_ok:16384")
            });
            (whole && replicas == 3).then_some(()).ok_or(format!("{replicas} replicas: {states:?}"))
        });
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The server that has the slot of a key, once there is one.
    pub(crate) fn master_of(&self, key: &str) -> &Server {
        let mut master = None;
        eventually("the slot has a master", || {
            master = self.find_master_of(key);
            master.map(drop).ok_or("it has none".to_owned())
        });
        master.expect("it was found")
    }

    fn find_master_of(&self, key: &str) -> Option<&Server> {
        let alive = self.servers.iter().find(|s| s.ask(&["PING"]) == "PONG").expect("one is alive");
        let slot: u16 = alive.ask(&["CLUSTER", "KEYSLOT", key]).trim().parse().ok()?;
        let nodes = alive.ask(&["CLUSTER", "NODES"]);
        let owner = nodes.lines().find(|line| {
            let slots = line.split(' ').skip(8).filter_map(|range| {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                Some((from.parse::<u16>().ok()?, to.parse::<u16>().ok()?))
            });
            line.contains("master")
                && !line.contains("fail")
                && slots.into_iter().any(|(a, b)| (a..=b).contains(&slot))
        });
        let port = owner.and_then(|line| {
            line.split(' ').nth(1)?.split('@').next()?.rsplit(':').next()?.parse::<u16>().ok()
        });
        self.servers.iter().find(|s| Some(s.port) == port)
    }
}

fn cli(port: u16, command: &[&str]) -> String {
    // A server that is stopped does not answer at all.
    let output = Command::new("timeout")
        .args(["2", "redis-cli", "-p", &port.to_string()])
        .args(command)
        .stderr(Stdio::null())
        .output()
        .expect("redis-cli is installed");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Waits until something is so; if it never is, says how it was instead.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    loop {
        match is_so() {
            Ok(()) => return,
            Err(how) => assert!(started.elapsed() < PATIENCE, "not so: {what}; but {how}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
