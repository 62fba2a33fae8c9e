//! A separate process that holds a lock, to be stopped, resumed and killed.
//!
//! ```no_run
//! # async fn example() {
//! use lockkeeper_testkit::holder::{Holder, Program};
//! let mut holder = Holder::start(&Program::binary(), "file:", "key", &["--ttl", "2s"]);
//! let fence = holder.granted().await;
//! holder.stop();
//! # }
//! ```
//!
//! Easy to get wrong: cargo does not build another package's binary for a test, so a binary found
//! on disk may be outdated. [`Program::test`] runs the test executable itself again instead, which
//! is always the code under test, with its features.

pub(crate) mod process;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc;

use crate::WallClock;

pub use process::main;
pub(crate) use process::say;

/// Marks the lines that are meant for us; a test executable prints other lines as well.
pub(crate) const MARK: &str = "lockkeeper-holder: ";

/// Passes the arguments to a test executable, one per line, since the test harness would reject
/// them.
const ARGUMENTS: &str = "LOCKKEEPER_HOLDER";

/// How long to wait for a line. Nothing here takes that long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(40);

/// The program that is run.
#[derive(Debug, Clone)]
pub enum Program {
    /// This test executable again, with its test of this name, which calls [`main_of_test`].
    Test(String),
    /// The binary `lockkeeper-holder` at this path.
    Binary(std::path::PathBuf),
    /// This executable again, with this argument, on which it calls [`main_of_verb`].
    Verb(&'static str),
}

impl Program {
    /// This test executable again. `module` is the `module_path!()` of the test `helper_process`;
    /// [`conformance!`](crate::conformance!) generates one.
    pub fn test(module: &str) -> Self {
        // The harness names tests without the crate.
        let path = module.split_once("::").map_or("", |(_, path)| path);
        Program::Test(if path.is_empty() {
            "helper_process".to_owned()
        } else {
            format!("{path}::helper_process")
        })
    }

    /// The binary next to the running executable.
    ///
    /// # Panics
    /// When it was not built, with a message that says how to.
    pub fn binary() -> Self {
        let running = std::env::current_exe().expect("a process knows its executable");
        // Tests run from target/PROFILE/deps, binaries are in target/PROFILE.
        let found = running
            .ancestors()
            .skip(1)
            .take(2)
            .map(|dir| dir.join("lockkeeper-holder"))
            .find(|path| path.is_file());
        Program::Binary(found.unwrap_or_else(|| {
            panic!(
                "there is no lockkeeper-holder near {}; build it with: \
                 cargo build -p lockkeeper-testkit --bin lockkeeper-holder",
                running.display()
            )
        }))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        match self {
            Program::Binary(path) => {
                let mut command = Command::new(path);
                command.args(arguments);
                command
            }
            Program::Test(name) => {
                let mut command = itself(arguments);
                command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
                command
            }
            Program::Verb(verb) => {
                let mut command = itself(arguments);
                command.arg(verb);
                command
            }
        }
    }
}

/// This executable, with arguments that only its user can see: one may be a URL with a password.
fn itself(arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(std::env::args_os().next().unwrap_or_default());
    command.env(ARGUMENTS, arguments.join("\n"));
    command
}

/// Runs a process that [`Holder`] started by [`Program::Verb`]; `None` if it did not. The process dies
/// with its parent, even if it is stopped.
pub fn main_of_verb() -> Option<std::process::ExitCode> {
    let arguments = std::env::var(ARGUMENTS).ok()?;
    // Without it, the process ends with its input, unless it is stopped.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    Some(main(arguments.split('\n').map(str::to_owned)))
}

/// The body of the test `helper_process`: does nothing, unless [`Holder`] started this process.
pub fn main_of_test() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        main(arguments.split('\n').map(str::to_owned));
        // The harness would wait for a thread that reads our input.
        std::process::exit(0);
    }
}

/// A process that holds a lock or wants it. Killed when dropped.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
    heard: Vec<String>,
    /// The library that is preloaded into it.
    library: Option<tempfile::TempDir>,
}

impl Holder {
    /// Starts a process that acquires a key at once; see [`main`] for the arguments.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(program: &Program, url: &str, key: &str, arguments: &[&str]) -> Self {
        Self::launch(program, &[&["--url", url, "--key", key], arguments].concat(), None)
    }

    /// Starts a process with all of its arguments.
    pub(crate) fn launch(program: &Program, arguments: &[&str], clock: Option<&WallClock>) -> Self {
        let mut command = program.command(arguments);
        command.envs(clock.into_iter().flat_map(WallClock::environment));
        Self::spawn(command)
    }

    /// Like [`start`](Holder::start), for a process that has to `--fork`.
    ///
    /// No safe function forks without starting another program. Here `getppid` does, by a library
    /// that is loaded before the C library.
    ///
    /// # Panics
    /// When it cannot be started, or there is no C compiler.
    pub fn forking(program: &Program, url: &str, key: &str, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("there is room for a temporary directory");
        let [source, library] = ["fork.c", "fork.so"].map(|name| directory.path().join(name));
        std::fs::write(&source, include_str!("fork.c")).expect("a file is written");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .status()
            .expect("cc is not installed; on Debian: apt-get install gcc");
        assert!(built.success(), "the library that forks cannot be compiled");
        let mut command = program.command(&[&["--url", url, "--key", key], arguments].concat());
        command.env("LD_PRELOAD", library);
        let mut holder = Self::spawn(command);
        holder.library = Some(directory);
        holder
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let (heard, lines) = mpsc::unbounded_channel();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(MARK) {
                    let _ = heard.send(line.to_owned());
                }
            }
        });
        Self { input: child.stdin.take(), child, lines, heard: Vec::new(), library: None }
    }

    /// Waits for a line that starts with this word, and returns the rest of it.
    ///
    /// # Panics
    /// If the process ends or prints no such line for a long time; shows what it printed.
    pub async fn said(&mut self, word: &str) -> String {
        self.listen(word).await.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Like [`said`](Holder::said), with an error instead of a panic.
    pub(crate) async fn listen(&mut self, word: &str) -> Result<String, String> {
        loop {
            let line = tokio::time::timeout(PATIENCE, self.lines.recv()).await;
            let Ok(Some(line)) = line else {
                let why = if line.is_err() { "is silent" } else { "has ended" };
                let heard = &self.heard;
                return Err(format!(
                    "the holder {why} and did not say {word:?}; it said {heard:?}"
                ));
            };
            self.heard.push(line.clone());
            match line.strip_prefix(word) {
                Some(rest) => return Ok(rest.trim().to_owned()),
                None if line.starts_with("failed") => {
                    return Err(format!("the holder did not say {word:?} but {line:?}"));
                }
                None => {}
            }
        }
    }

    /// Waits until it has the lock, and returns the fence.
    ///
    /// # Panics
    /// Same as [`said`](Holder::said).
    pub async fn granted(&mut self) -> u64 {
        let rest = self.said("granted").await;
        let fence = rest.split(' ').next().and_then(|fence| fence.parse().ok());
        fence.unwrap_or_else(|| panic!("{rest:?} does not start with a fence"))
    }

    /// Sends a command and waits for the answer that starts with the same word.
    ///
    /// # Panics
    /// Same as [`said`](Holder::said).
    pub async fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.said(command).await
    }

    /// Sends a command.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn tell(&mut self, command: &str) {
        let input = self.input.as_mut().expect("its input is open until it is told to finish");
        writeln!(input, "{command}").unwrap_or_else(|e| panic!("cannot tell the holder: {e}"));
    }

    /// How many threads and how many open files it has.
    ///
    /// # Panics
    /// When it has ended.
    pub fn resources(&self) -> (usize, usize) {
        let count = |what: &str| {
            let listed = std::fs::read_dir(format!("/proc/{}/{what}", self.child.id()));
            listed.expect("the kernel shows what a process has").count()
        };
        (count("task"), count("fd"))
    }

    /// Its resident memory, in bytes.
    ///
    /// # Panics
    /// When it has ended.
    pub fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the kernel shows what a process has");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes =
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
        kilobytes.unwrap_or(0) * 1024
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When it does not.
    pub async fn ended(&mut self) {
        let silence = async { while self.lines.recv().await.is_some() {} };
        tokio::time::timeout(PATIENCE, silence).await.expect("the holder ends");
        self.child.wait().expect("a child can be waited for");
    }

    /// Closes its input: it releases what it holds and ends.
    pub fn finish(&mut self) {
        self.input = None;
    }

    /// Stops it with `SIGSTOP`; returns when it no longer runs.
    ///
    /// # Panics
    /// When it has ended.
    pub fn stop(&self) {
        use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
        self.signal(Signal::SIGSTOP);
        let stopped = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED));
        assert!(matches!(stopped, Ok(WaitStatus::Stopped(..))), "not stopped: {stopped:?}");
    }

    /// Continues it, with `SIGCONT`.
    ///
    /// # Panics
    /// When it has ended.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills it with `SIGKILL`; returns when it is dead.
    ///
    /// # Panics
    /// When it was killed before.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("a child can be waited for");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process ids are small"))
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap_or_else(|e| panic!("cannot send {signal}: {e}"));
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Both fail if it has ended by itself, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
