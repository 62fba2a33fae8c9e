//! A wall clock that can be set, for one process.
//!
//! It is a library that is loaded before the C library, so it needs a C compiler, and a program that
//! is linked dynamically. Monotonic clocks are left alone.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// A clock, for every process that is started with its [environment](WallClock::environment).
#[derive(Debug)]
pub struct WallClock(TempDir);

impl WallClock {
    /// A clock that shows the time.
    ///
    /// # Panics
    /// When there is no C compiler.
    pub fn new() -> Self {
        let clock = Self(tempfile::tempdir().expect("there is room for a directory"));
        std::fs::write(clock.path("clock.c"), include_str!("wall_clock.c"))
            .expect("a file is written");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([clock.path("clock.so"), clock.path("clock.c")])
            .status()
            .expect("cc is not installed; on Debian: apt-get install gcc");
        assert!(built.success(), "the clock cannot be compiled");
        clock.set(0);
        clock
    }

    /// A clock, if there is a C compiler.
    pub fn if_possible() -> Option<Self> {
        Self::is_possible().then(Self::new)
    }

    /// Whether there is a C compiler.
    pub fn is_possible() -> bool {
        let asked = Command::new("cc")
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    }

    /// The variables of a process that has this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.path("clock.so")), ("CLOCK_OFFSET", self.path("offset"))]
    }

    /// Sets the clock ahead of the time by this many milliseconds, or back.
    ///
    /// # Panics
    /// When the directory of the clock is gone.
    pub fn set(&self, ahead_ms: i64) {
        // As long as any other number: a process may read while this writes.
        std::fs::write(self.path("offset"), format!("{ahead_ms:+020}\n"))
            .expect("a file is written");
    }

    /// Sets the clock ahead.
    pub fn ahead(&self, by: Duration) {
        self.set(milliseconds(by));
    }

    /// Sets the clock back.
    pub fn behind(&self, by: Duration) {
        self.set(-milliseconds(by));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
