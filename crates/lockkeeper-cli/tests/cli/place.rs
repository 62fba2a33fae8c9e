//! An environment for the locks of one test, and the vocabulary of the tests.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

/// A home, a lock directory and nothing else of this machine's settings.
pub(crate) struct Place {
    dir: TempDir,
    url: Option<String>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        Self { dir, url: None }
    }

    /// The same, with its locks elsewhere.
    pub(crate) fn at(url: &str) -> Self {
        Self { url: Some(url.to_owned()), ..Self::new() }
    }

    /// Whether a process that worked here still exists, zombies included. On a busy machine, its
    /// pid may soon be reused by another, which works elsewhere.
    pub(crate) fn has(&self, pid: i32) -> bool {
        match fs::read_link(format!("/proc/{pid}/cwd")) {
            Ok(directory) => directory == fs::canonicalize(self.path("")).unwrap(),
            Err(_) => is_there(pid),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        let here = || format!("file://{}", self.path("locks").display());
        self.url.clone().unwrap_or_else(here)
    }

    /// The command with these words, separated by spaces; `-- SCRIPT` is one word for `sh -c`.
    pub(crate) fn lockkeeper(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LOCKKEEPER_") {
                command.env_remove(name);
            }
        }
        command
            .env("LOCKKEEPER_URL", self.url())
            .env("HOME", self.dir.path())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("SHELL")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match words.split_once(" -- ") {
            Some((words, script)) => {
                command.args(words.split_whitespace()).args(["--", "sh", "-c", script])
            }
            None => command.args(words.split_whitespace()),
        };
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, words: &str) -> Done {
        Done::new(words, self.lockkeeper(words).output().unwrap())
    }

    /// Starts it.
    pub(crate) fn start(&self, words: &str) -> Running {
        let child = self.lockkeeper(words).spawn().unwrap();
        Running { words: words.to_owned(), child: Some(child) }
    }

    /// The contents of a file, once it has any.
    pub(crate) fn content(&self, name: &str) -> String {
        let path = self.path(name);
        eventually(&format!("something in {name}"), || {
            fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))
        })
    }

    /// What a status file says.
    pub(crate) fn status(&self, name: &str) -> Value {
        serde_json::from_str(&self.content(name)).unwrap()
    }

    /// Waits until a lock has this many holders and this many waiters.
    pub(crate) fn until(&self, key: &str, holders: usize, waiters: usize) {
        eventually(&format!("{holders} holders and {waiters} waiters of {key}"), || {
            let shown = self.run(&format!("show --json {key}"));
            let shown: Value = serde_json::from_str(&shown.stdout).ok()?;
            let count = |list: &str| shown[list].as_array().map_or(0, Vec::len);
            (count("holders") == holders && count("waiters") == waiters).then_some(())
        });
    }
}

/// A command that has ended.
pub(crate) struct Done {
    words: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    fn new(words: &str, output: Output) -> Self {
        Self {
            words: words.to_owned(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Checks the exit code, and shows everything if it is another.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "lockkeeper {}\nstdout: {}\nstderr: {}",
            self.words,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Checks that stderr mentions something, after our name.
    #[track_caller]
    pub(crate) fn says(self, what: &str) -> Self {
        let named = self.stderr.starts_with("lockkeeper: ");
        assert!(named && self.stderr.contains(what), "no {what:?} in: {}", self.stderr);
        self
    }

    /// Checks stdout.
    #[track_caller]
    pub(crate) fn prints(self, what: &str) -> Self {
        assert_eq!(self.stdout.trim_end(), what, "stderr: {}", self.stderr);
        self
    }
}

/// A command that runs; it is killed if a test fails.
pub(crate) struct Running {
    words: String,
    child: Option<Child>,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.as_ref().unwrap().id()).unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Done {
        let started = Instant::now();
        while self.is_running() {
            assert!(started.elapsed() < PATIENCE, "lockkeeper {} does not end", self.words);
            std::thread::sleep(Duration::from_millis(5));
        }
        let child = self.child.take().unwrap();
        Done::new(&self.words, child.wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for an event, by polling.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process exists, zombies included.
pub(crate) fn is_there(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

/// The state of a process as the kernel shows it: `R`, `S`, `T`, `Z`.
pub(crate) fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
