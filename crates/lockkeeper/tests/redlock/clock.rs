//! A server whose wall clock a test can set.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lockkeeper_testkit::server::redis::{Server, VOLATILE};
use tempfile::TempDir;

/// A server with its own clock.
pub(crate) struct Clocked {
    directory: TempDir,
}

impl Clocked {
    /// Builds the clock. The server that runs under it is [started](Clocked::server) separately.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redlock/clock.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(directory.path().join("clock.so"))
            .arg(source)
            .status()
            .expect("cc is not installed; on Debian: apt-get install gcc");
        assert!(built.success(), "the clock cannot be compiled");
        let clock = Self { directory };
        clock.set(0);
        clock
    }

    pub(crate) fn server(&self) -> Server {
        let preload = format!("LD_PRELOAD={}", self.path("clock.so").display());
        let offset = format!("CLOCK_OFFSET={}", self.path("offset").display());
        Server::with_environment(&[&preload, &offset], &VOLATILE)
    }

    /// Sets the clock ahead, or back.
    pub(crate) fn set(&self, ahead_ms: i64) {
        // As long as any other number: the server may read while this writes.
        std::fs::write(self.path("offset"), format!("{ahead_ms:+020}\n"))
            .expect("a file is written");
    }

    pub(crate) fn ahead(&self, by: Duration) {
        self.set(i64::try_from(by.as_millis()).expect("not that far"));
    }

    pub(crate) fn behind(&self, by: Duration) {
        self.set(-i64::try_from(by.as_millis()).expect("not that far"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}
