//! Real servers on free ports of this machine, in temporary directories, gone when dropped.
//!
//! They also go when the test process dies, however it dies: a shell waits at the end of a pipe
//! that only this process holds open. A server that many tests share can therefore be a static.
//! A missing program is a failure that names the Debian package; nothing is skipped.

mod mariadb;
mod pgbouncer;
mod postgres;

use std::fmt;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use tempfile::TempDir;

use crate::ports::free_port;

pub use self::mariadb::MariadbKind;
pub use self::pgbouncer::Pgbouncer;
pub use self::postgres::PostgresKind;

/// How long a server may take to start or to stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A PostgreSQL server. Its superuser is `postgres`, and needs no password from this machine.
pub type Postgres = Server<PostgresKind>;

/// A MariaDB server. Its `root` needs no password from this machine.
pub type Mariadb = Server<MariadbKind>;

/// How to run a kind of server, and what to say to it.
pub trait Kind: fmt::Debug + Send + Sync + 'static {
    /// Settings of a server that does not wait for the disk: tests kill processes, not machines.
    const FAST: &'static [&'static str];

    /// Settings of a server with room for a thousand connections.
    const ROOMY: &'static [&'static str];

    /// The database that is there from the beginning.
    const FIRST: &'static str;

    /// Counts the other sessions of a database that are in the middle of a statement.
    const BUSY: &'static str;

    /// Makes the data, in `directory`.
    fn install(directory: &Path);

    /// The server itself.
    fn server(directory: &Path, port: u16, settings: &[String]) -> Command;

    /// A program that succeeds when the server is there.
    fn ping(port: u16) -> Command;

    /// A client that runs a statement, and prints one row per line.
    fn client(port: u16, database: &str, statement: &str) -> Command;

    /// The URL of a database.
    fn url(port: u16, database: &str) -> String;

    /// Ends the other sessions of a database, all of them or those in the middle of a statement, and says
    /// how many.
    fn end_sessions(server: &Server<Self>, database: &str, busy_only: bool) -> usize
    where
        Self: Sized;
}

/// A server of its own, with as many databases as there are tests.
#[derive(Debug)]
pub struct Server<K: Kind> {
    process: Option<Process>,
    directory: TempDir,
    port: u16,
    settings: Vec<String>,
    databases: AtomicU32,
    kind: PhantomData<K>,
}

impl<K: Kind> Server<K> {
    /// Starts a server that does not wait for the disk.
    pub fn start() -> Self {
        Self::with(K::FAST)
    }

    /// The same with room for a thousand connections.
    pub fn roomy() -> Self {
        Self::with(&[K::FAST, K::ROOMY].concat())
    }

    /// Starts a server with these settings, such as `fsync=on`.
    ///
    /// # Panics
    /// When it cannot be started, with its log.
    pub fn with(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("there is room for a temporary directory");
        K::install(directory.path());
        let mut server = Self {
            process: None,
            directory,
            port: free_port(),
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            databases: AtomicU32::new(0),
            kind: PhantomData,
        };
        server.resume_service();
        server
    }

    /// The URL of a new database.
    pub fn url(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql(K::FIRST, &format!("CREATE DATABASE {name}"));
        K::url(self.port, &name)
    }

    /// Runs a statement, and gives what it answered, one row per line.
    pub fn sql(&self, database: &str, statement: &str) -> String {
        run(&mut K::client(self.port, database, statement)).trim_end().to_owned()
    }

    /// Ends the other sessions of a database.
    ///
    /// # Panics
    /// When there are none.
    pub fn end_sessions(&self, database: &str) {
        assert_ne!(K::end_sessions(self, database, false), 0, "there was nothing to end");
    }

    /// Ends the other sessions of a database that are in the middle of a statement.
    ///
    /// # Panics
    /// When there are none.
    pub fn end_busy_sessions(&self, database: &str) {
        assert_ne!(K::end_sessions(self, database, true), 0, "there was nothing to end");
    }

    /// How many other sessions of a database are in the middle of a statement.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn busy_sessions(&self, database: &str) -> usize {
        self.sql(database, K::BUSY).parse().expect("it is a number")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Stops every process of the server where it is.
    pub fn freeze(&self) {
        for pid in self.process().halt() {
            let _ = kill(pid, Signal::SIGSTOP);
        }
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.process().signal(Signal::SIGCONT);
    }

    /// Kills the server without warning. What was committed is on disk, as far as the kernel knows.
    pub fn crash(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts a server that crashed again, on the same port, and waits until it has recovered.
    ///
    /// # Panics
    /// When it does not come back, with its log.
    pub fn resume_service(&mut self) {
        let (place, log) = (self.directory.path(), self.directory.path().join("log"));
        let mut server = K::server(place, self.port, &self.settings);
        let file = std::fs::File::create(&log).expect("the directory is ours");
        server.stdout(file.try_clone().expect("a file can be shared")).stderr(file);
        self.process = Some(Process::start(&mut server, place));
        wait_for_port(self.port, &log);
        let started = Instant::now();
        while !K::ping(self.port).output().is_ok_and(|output| output.status.success()) {
            assert!(started.elapsed() < PATIENCE, "{:?}", std::fs::read_to_string(&log));
            sleep(Duration::from_millis(20));
        }
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it is running unless it crashed")
    }
}

impl<K: Kind> Drop for Server<K> {
    fn drop(&mut self) {
        self.crash();
    }
}

/// A server process, and the shell that ends it if we cannot.
struct Process {
    child: Child,
    shell: Child,
}

impl Process {
    /// Starts a server whose files are all in `directory`, which goes with it.
    fn start(command: &mut Command, directory: &Path) -> Self {
        // Its own group, so that a key pressed at the terminal is for the tests alone.
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let shell = Command::new("sh")
            .args(["-c", r#"read _; kill -9 "$1"; sleep 1; rm -rf "$2""#, "sh"])
            .arg(child.id().to_string())
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("there is a shell");
        Self { child, shell }
    }

    /// The processes that the server started.
    fn children(&self) -> Vec<Pid> {
        let id = self.child.id();
        let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let ids = list.unwrap_or_default();
        ids.split_whitespace().filter_map(|id| id.parse().ok().map(Pid::from_raw)).collect()
    }

    /// Stops the server itself, so that it starts nothing more, and says what it has started.
    fn halt(&self) -> Vec<Pid> {
        let server = pid(&self.child);
        let _ = kill(server, Signal::SIGSTOP);
        let started = Instant::now();
        while !matches!(state(server), None | Some('T' | 'Z')) {
            assert!(started.elapsed() < PATIENCE, "the server does not stop");
            sleep(Duration::from_millis(1));
        }
        self.children()
    }

    /// Sends a signal to the server and everything that it started.
    fn signal(&self, signal: Signal) {
        let children = self.children();
        for pid in std::iter::once(pid(&self.child)).chain(children) {
            // One that just ended needs no signal.
            let _ = kill(pid, signal);
        }
    }

    /// Ends it as a power failure would, with everything that it started.
    fn kill(&mut self) {
        // One that it starts after we looked would keep its memory, and the next server from starting.
        let children = self.halt();
        // The shell must not kill whoever gets this number next.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
        let started = Instant::now();
        while children.iter().any(|pid| is_running(*pid)) {
            assert!(started.elapsed() < PATIENCE, "the server's children do not end");
            sleep(Duration::from_millis(5));
        }
    }
}

/// Whether a process has not ended. One that nobody has asked how it ended has.
fn is_running(pid: Pid) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// What the kernel says that a process does, if there is one.
fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("process ids fit"))
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.child.id()).finish_non_exhaustive()
    }
}

/// The first of these directories that has the program.
///
/// # Panics
/// When none has, naming the Debian package.
fn program(name: &str, directories: &[&str], package: &str) -> PathBuf {
    let found = directories.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| {
        panic!("there is no {name} in {directories:?}; install the Debian package {package}")
    })
}

/// Runs a program as a user with few rights if we are root, since servers refuse to be root.
fn as_user(user: &str, program: &Path, directory: &Path) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return command(program, directory);
    }
    let found = User::from_name(user).ok().flatten();
    let found = found.unwrap_or_else(|| panic!("there is no user {user}; its package makes one"));
    std::os::unix::fs::chown(directory, Some(found.uid.as_raw()), Some(found.gid.as_raw()))
        .expect("root may give a directory away");
    let mut command = command(program, directory);
    command.uid(found.uid.as_raw()).gid(found.gid.as_raw()).current_dir(directory);
    command
}

/// A program with a place of its own for temporary files: a MariaDB server that starts removes the
/// temporary tables of all others that it finds beside its own.
fn command(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("TMPDIR", directory);
    command
}

/// Waits until a server accepts connections.
fn wait_for_port(port: u16, log: &Path) {
    let started = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if started.elapsed() > PATIENCE {
            panic!(
                "no server on port {port}: {}",
                std::fs::read_to_string(log).unwrap_or_default()
            );
        }
        sleep(Duration::from_millis(20));
    }
}

/// Runs a program to its end, and gives what it printed.
///
/// # Panics
/// When it fails, with what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?} failed: {out}{err}");
    out
}
