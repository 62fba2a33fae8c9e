//! A directory of lock files. There is no server, so clients are all that can fail.

use std::time::Duration;

use super::{Deployment, Fault};

/// A temporary directory.
#[derive(Debug)]
pub struct Directory(tempfile::TempDir);

impl Directory {
    /// Creates it.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn create() -> Self {
        Self(tempfile::TempDir::with_prefix("lockkeeper-").expect("there is room for a directory"))
    }
}

impl Deployment for Directory {
    fn url(&self) -> String {
        format!("file://{}", self.0.path().display())
    }

    fn faults(&self, _ttl: Duration) -> Vec<Fault<'_>> {
        Vec::new()
    }
}
