//! ZooKeeper, one server or an ensemble, from Debian's package `zookeeper`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::Warden;
use crate::ports::free_port;

const JAR: &str = "/usr/share/java/zookeeper.jar";

/// How the server is run. Of what it needs for TLS, the package's own list leaves two out.
const JVM: [&str; 8] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    // What was acknowledged survives a killed process without it; no test cuts the power.
    "-Dzookeeper.forceSync=no",
    // Directories are removed under the feet of those who use them.
    "-Dznode.container.checkIntervalMs=500",
    "-cp",
    "/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar",
    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
];

/// Short ticks, and sessions up to a minute all the same.
const SHORT_TICKS: &str = "tickTime=250\nminSessionTimeout=500\nmaxSessionTimeout=60000\n";

/// How long an ensemble may take to be of service. A busy machine starts a JVM slowly.
const PATIENCE: Duration = Duration::from_secs(120);

/// Servers that form one store.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<Server>,
    /// The port for TLS.
    secure: Option<u16>,
    _directory: TempDir,
}

/// One of them.
#[derive(Debug)]
pub struct Server {
    port: u16,
    arguments: Vec<String>,
    log: std::path::PathBuf,
    process: Warden,
}

impl Ensemble {
    /// One server by itself, with a tick of a quarter of a second.
    pub fn single() -> Self {
        Self::start::<1>(SHORT_TICKS, &[])
    }

    /// Three servers, of which one may fail.
    pub fn three() -> Self {
        Self::start::<3>(SHORT_TICKS, &[])
    }

    /// One server by itself with this tick, and the sessions that it allows unless told otherwise:
    /// those of 2 to 20 ticks.
    pub fn ticking(tick: Duration) -> Self {
        Self::start::<1>(&format!("tickTime={}\n", tick.as_millis()), &[])
    }

    /// One server that also speaks TLS, with clients that the same authority vouches for, and knows a
    /// user `keeper` with this password by SASL.
    ///
    /// The certificates are those that [`certificates`](crate::certificates) makes.
    pub fn guarded(certificates: &Path, password: &str) -> Self {
        let read = |name| {
            std::fs::read_to_string(certificates.join(name)).expect("a certificate can be read")
        };
        let store = certificates.join("server-with-key.pem");
        std::fs::write(&store, read("server.key") + &read("server.pem"))
            .expect("a file can be written");
        let users = format!(
            "Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required \
             user_keeper=\"{password}\"; }};\n"
        );
        let jaas = certificates.join("jaas.conf");
        std::fs::write(&jaas, users).expect("a file can be written");
        let secure = free_port();
        let more = format!(
            "{SHORT_TICKS}secureClientPort={}\nsecureClientPortAddress=127.0.0.1\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.location={}\nssl.keyStore.type=PEM\n\
             ssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth=need\n\
             authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n",
            secure,
            store.display(),
            certificates.join("ca.pem").display(),
        );
        let login = format!("-Djava.security.auth.login.config={}", jaas.display());
        Self { secure: Some(secure), ..Self::start::<1>(&more, &[login]) }
    }

    fn start<const N: usize>(more: &str, jvm: &[String]) -> Self {
        assert!(
            Path::new(JAR).exists(),
            "{JAR} is missing; install the Debian package zookeeper: apt-get install -y zookeeper"
        );
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let ports = [(); 9].map(|()| free_port());
        let (clients, peers, votes) = (&ports[..3], &ports[3..6], &ports[6..]);
        let mut members = String::new();
        if N > 1 {
            for n in 0..N {
                members += &format!("server.{n}=127.0.0.1:{}:{}\n", peers[n], votes[n]);
            }
        }
        let servers = (0..N).map(|n| {
            let home = directory.path().join(n.to_string());
            std::fs::create_dir(&home).expect("a directory can be made");
            std::fs::write(home.join("myid"), n.to_string()).expect("a file can be written");
            let configuration = home.join("zoo.cfg");
            let text = format!(
                "{more}initLimit=120\nsyncLimit=20\ndataDir={}\nclientPort={}\n\
                 clientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
                 admin.enableServer=false\n4lw.commands.whitelist=srvr,dump\n{members}",
                home.display(),
                clients[n],
            );
            std::fs::write(&configuration, text).expect("a file can be written");
            let mut arguments = jvm.to_vec();
            arguments.extend(JVM.map(str::to_owned));
            arguments.push(configuration.display().to_string());
            let log = home.join("log");
            let process = Warden::start("java", &arguments, &log);
            Server { port: clients[n], arguments, log, process }
        });
        let ensemble = Self { servers: servers.collect(), secure: None, _directory: directory };
        ensemble.serving(N);
        ensemble
    }

    /// `h1:p1,h2:p2`, for a URL.
    pub fn hosts(&self) -> String {
        let hosts = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// `host:port` for TLS.
    ///
    /// # Panics
    /// When it was started without.
    pub fn secure_host(&self) -> String {
        format!("127.0.0.1:{}", self.secure.expect("it was started with TLS"))
    }

    /// A URL with a root of its own.
    pub fn url(&self, root: &str, session: Duration) -> String {
        format!("zookeeper://{}/{root}?session={}ms", self.hosts(), session.as_millis())
    }

    /// The servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Which one leads.
    ///
    /// # Panics
    /// When none does.
    pub fn leader(&self) -> usize {
        let leads =
            |server: &Server| matches!(server.mode().as_deref(), Some("leader" | "standalone"));
        self.servers.iter().position(leads).expect("one of them leads")
    }

    /// Which one holds more client connections than it answers this question on.
    pub fn connected(&self) -> Option<usize> {
        self.servers.iter().position(|server| server.connections() > 1)
    }

    /// Starts a server that was killed, and waits until all serve.
    pub fn restart(&mut self, n: usize) {
        let server = &mut self.servers[n];
        server.process = Warden::start("java", &server.arguments, &server.log);
        self.serving(self.servers.len());
    }

    /// Waits until so many are of service.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn serving(&self, wanted: usize) {
        let started = Instant::now();
        while self.servers.iter().filter(|server| server.mode().is_some()).count() < wanted {
            assert!(started.elapsed() < PATIENCE, "no {wanted} servers: {}", self.logs());
            sleep(Duration::from_millis(50));
        }
    }

    /// Closes a session that somebody has, as its owner could, and any server: a password is made of the
    /// number of the session. Says whether there was one.
    pub fn close_a_session(&self) -> bool {
        let Some(leader) = self
            .servers
            .iter()
            .find(|server| matches!(server.mode().as_deref(), Some("leader" | "standalone")))
        else {
            return false;
        };
        let dump = leader.ask("dump").unwrap_or_default();
        let number = |word: &str| {
            i64::from_str_radix(word.trim_end_matches(':').strip_prefix("0x")?, 16).ok()
        };
        let numbers = dump.split_whitespace().filter_map(number);
        let sessions: Vec<_> = numbers.filter(|number| *number != 0).collect();
        let chosen = fastrand::choice(&sessions);
        chosen.is_some_and(|session| leader.close(*session).is_ok())
    }

    fn logs(&self) -> String {
        let logs = self.servers.iter().map(|server| std::fs::read_to_string(&server.log));
        logs.map(|log| log.unwrap_or_default()).collect()
    }
}

impl Server {
    /// Its client port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process, to be stopped and killed.
    pub fn process(&self) -> &Warden {
        &self.process
    }

    /// `leader`, `follower` or `standalone`; `None` while it is of no service.
    pub fn mode(&self) -> Option<String> {
        self.status("Mode: ")
    }

    /// How many clients are connected, the one that asks included.
    pub fn connections(&self) -> usize {
        self.status("Connections: ").and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// How many packets it received so far.
    pub fn received(&self) -> u64 {
        self.status("Received: ").and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    fn status(&self, name: &str) -> Option<String> {
        let answer = self.ask("srvr").ok()?;
        answer.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
    }

    /// Moves a session to a new connection, and closes it.
    fn close(&self, session: i64) -> std::io::Result<()> {
        let mut stream = self.connect()?;
        let mut hello = 45i32.to_be_bytes().to_vec();
        hello.extend(0i32.to_be_bytes());
        hello.extend(0i64.to_be_bytes());
        hello.extend(10_000i32.to_be_bytes());
        hello.extend(session.to_be_bytes());
        hello.extend(16i32.to_be_bytes());
        hello.extend(password(session));
        hello.push(0);
        // In one go: its owner comes back at once, and would have it again.
        let (xid, close) = (1i32, -11i32);
        hello.extend([8i32, xid, close].map(i32::to_be_bytes).concat());
        stream.write_all(&hello)?;
        // The server answers, and hangs up.
        stream.read_to_end(&mut Vec::new()).map(drop)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let address = (Ipv4Addr::LOCALHOST, self.port).into();
        let limit = Duration::from_secs(1);
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        Ok(stream)
    }

    fn ask(&self, question: &str) -> std::io::Result<String> {
        let mut stream = self.connect()?;
        stream.write_all(question.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// What a server gives out as the password of a session: bytes of Java's random numbers, with a seed that
/// is made of its number.
fn password(session: i64) -> [u8; 16] {
    const FACTOR: i64 = 0x5_DEEC_E66D;
    const MASK: i64 = (1 << 48) - 1;
    let mut seed = (session ^ 0xB341_5C00 ^ FACTOR) & MASK;
    let mut bytes = [0; 16];
    for chunk in bytes.chunks_mut(4) {
        seed = seed.wrapping_mul(FACTOR).wrapping_add(0xB) & MASK;
        // The upper 32 bits of 48, the lowest byte first.
        chunk.copy_from_slice(&seed.to_le_bytes()[2..6]);
    }
    bytes
}
