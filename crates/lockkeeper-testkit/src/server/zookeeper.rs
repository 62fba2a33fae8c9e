//! ZooKeeper, one server or an ensemble, from Debian's package `zookeeper` or a newer one that was fetched.

use std::io::{Read, Write};
use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::supervised::{Home, PATIENCE, Supervised};
use super::{ask, connect, fetched, hosts, program};
use crate::ports::free_port;

const JAR: &str = "/usr/share/java/zookeeper.jar";

/// How the server is run.
const JVM: [&str; 5] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    // Acknowledged writes survive a killed process without it; no test cuts the power.
    "-Dzookeeper.forceSync=no",
    // Directories are removed while they are in use.
    "-Dznode.container.checkIntervalMs=500",
];

/// The classes of Debian's server. The package's own list lacks two of the classes that TLS needs.
const INSTALLED: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar";

const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// Short ticks, and sessions up to a minute all the same.
const SHORT_TICKS: &str = "tickTime=250\nminSessionTimeout=500\nmaxSessionTimeout=60000\n";

/// Servers that form one ensemble.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<Server>,
    /// The port for TLS.
    secure: Option<u16>,
}

/// One of them.
#[derive(Debug)]
pub struct Server(Supervised);

impl Ensemble {
    /// A standalone server, with a tick of a quarter of a second.
    pub fn single() -> Self {
        Self::start::<1>(SHORT_TICKS, &[])
    }

    /// Three servers, of which one may fail.
    pub fn three() -> Self {
        Self::start::<3>(SHORT_TICKS, &[])
    }

    /// A standalone server with this tick, and the sessions that it allows by default: 2 to 20
    /// ticks.
    pub fn ticking(tick: Duration) -> Self {
        Self::start::<1>(&format!("tickTime={}\n", tick.as_millis()), &[])
    }

    /// A server that also accepts TLS, from clients with a certificate of the same CA, and knows a
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
        let classes = match fetched("zookeeper.jar").as_deref().and_then(Path::parent) {
            Some(jars) => jars.join("*").display().to_string(),
            None => INSTALLED.to_owned(),
        };
        let missing = classes == INSTALLED && !Path::new(JAR).exists();
        assert!(!missing, "{JAR} is missing; on Debian: apt-get install zookeeper");
        let java = program("java", "default-jre-headless");
        let members: String = match N {
            1 => String::new(),
            _ => (0..N)
                .map(|n| format!("server.{n}=127.0.0.1:{}:{}\n", free_port(), free_port()))
                .collect(),
        };
        let server = |n: usize| {
            let (port, home) = (free_port(), Home::new());
            home.write("myid", &n.to_string());
            let settings = format!(
                "{more}initLimit=120\nsyncLimit=20\ndataDir={}\nclientPort={port}\n\
                 clientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
                 admin.enableServer=false\n4lw.commands.whitelist=srvr,dump\n{members}",
                home.path().display(),
            );
            let mut command = Command::new(&java);
            command.args(jvm).args(JVM).args(["-cp", &classes, MAIN]);
            command.arg(home.write("zoo.cfg", &settings));
            Server(Supervised::spawn(home, port, command, |port| status(port, "Mode: ").is_some()))
        };
        let ensemble = Self { servers: (0..N).map(server).collect(), secure: None };
        ensemble.iter().for_each(|server| server.wait_until_ready());
        ensemble
    }

    /// `h1:p1,h2:p2`, for a URL.
    pub fn hosts(&self) -> String {
        hosts(self)
    }

    /// `host:port` for TLS.
    ///
    /// # Panics
    /// When it was started without.
    pub fn secure_host(&self) -> String {
        format!("127.0.0.1:{}", self.secure.expect("it was started with TLS"))
    }

    /// A URL with its own root.
    pub fn url(&self, root: &str, session: Duration) -> String {
        format!("zookeeper://{}/{root}?session={}ms", self.hosts(), session.as_millis())
    }

    /// Which one leads.
    ///
    /// # Panics
    /// When none does.
    pub fn leader(&self) -> usize {
        self.iter().position(Server::leads).expect("one of them leads")
    }

    /// The server with more client connections than the one that this query uses.
    pub fn connected(&self) -> Option<usize> {
        self.iter().position(|server| server.connections() > 1)
    }

    /// Waits until this many are serving.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn serving(&self, wanted: usize) {
        let started = Instant::now();
        while self.iter().filter(|server| server.mode().is_some()).count() < wanted {
            let logs: String = self.iter().map(|server| server.log()).collect();
            assert!(started.elapsed() < PATIENCE, "no {wanted} servers: {logs}");
            sleep(Duration::from_millis(50));
        }
    }

    /// Closes a session of another client, as its owner could, at any server: a session's password
    /// is derived from its number. Returns whether there was one.
    pub fn close_a_session(&self) -> bool {
        let Some(leader) = self.iter().find(|server| server.leads()) else { return false };
        let dump = ask(leader.port(), "dump").unwrap_or_default();
        let number = |word: &str| {
            i64::from_str_radix(word.trim_end_matches(':').strip_prefix("0x")?, 16).ok()
        };
        let numbers = dump.split_whitespace().filter_map(number);
        let sessions: Vec<_> = numbers.filter(|number| *number != 0).collect();
        let chosen = fastrand::choice(&sessions);
        chosen.is_some_and(|session| leader.close(*session).is_ok())
    }
}

impl Deref for Ensemble {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.servers
    }
}

impl Server {
    /// `leader`, `follower` or `standalone`; `None` while it is not serving.
    pub fn mode(&self) -> Option<String> {
        status(self.port(), "Mode: ")
    }

    /// How many clients are connected, including the one that asks.
    pub fn connections(&self) -> usize {
        status(self.port(), "Connections: ").and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// How many packets it received so far.
    pub fn received(&self) -> u64 {
        status(self.port(), "Received: ").and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    fn leads(&self) -> bool {
        matches!(self.mode().as_deref(), Some("leader" | "standalone"))
    }

    /// Moves a session to a new connection, and closes it.
    fn close(&self, session: i64) -> std::io::Result<()> {
        let mut stream = connect(self.port())?;
        let mut hello = 45i32.to_be_bytes().to_vec();
        hello.extend(0i32.to_be_bytes());
        hello.extend(0i64.to_be_bytes());
        hello.extend(10_000i32.to_be_bytes());
        hello.extend(session.to_be_bytes());
        hello.extend(16i32.to_be_bytes());
        hello.extend(password(session));
        hello.push(0);
        // In one write: its owner reconnects at once, and would have it again.
        let (xid, close) = (1i32, -11i32);
        hello.extend([8i32, xid, close].map(i32::to_be_bytes).concat());
        stream.write_all(&hello)?;
        // The server answers, and disconnects.
        stream.read_to_end(&mut Vec::new()).map(drop)
    }
}

impl Deref for Server {
    type Target = Supervised;

    fn deref(&self) -> &Supervised {
        &self.0
    }
}

/// A line of a server's status; `None` while it is not serving.
fn status(port: u16, name: &str) -> Option<String> {
    let answer = ask(port, "srvr").ok()?;
    answer.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

/// The password of a session, as servers generate it: bytes of Java's random generator, seeded with
/// the number of the session.
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
