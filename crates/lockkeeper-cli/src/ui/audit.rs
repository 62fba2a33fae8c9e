//! The audit file of changes from the page: JSON lines with who, when, what, why and the outcome.
//!
//! A line is written before anything is done, and another one after it: a change that cannot be
//! recorded is not made.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::json;

use super::time;
use crate::exit::Failure;

#[derive(Debug)]
pub(crate) struct Audit {
    file: Mutex<File>,
}

/// A requested change.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Action {
    pub(crate) what: &'static str,
    pub(crate) engine: String,
    pub(crate) key: String,
    /// The name that was given with the request. It is not verified.
    pub(crate) who: String,
    pub(crate) from: SocketAddr,
    pub(crate) why: String,
}

impl Audit {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let open = || {
            if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                fs::create_dir_all(dir)?;
            }
            File::options().append(true).create(true).mode(0o600).open(path)
        };
        let file = open().map_err(|error| {
            Failure::own(format!("open the audit file {}", path.display()), error)
        })?;
        Ok(Self { file: Mutex::new(file) })
    }

    /// Records that an action begins. Without this, nothing is done.
    pub(crate) fn begin(&self, action: &Action) -> io::Result<()> {
        self.write(action, json!("begun"))
    }

    /// Records the outcome.
    pub(crate) fn end(&self, action: &Action, outcome: serde_json::Value) -> io::Result<()> {
        self.write(action, outcome)
    }

    fn write(&self, action: &Action, outcome: serde_json::Value) -> io::Result<()> {
        let mut line = json!(action);
        line["when"] = json!(time::text(SystemTime::now()));
        line["outcome"] = outcome;
        let mut file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // One write, so that lines of several servers do not mix.
        file.write_all(format!("{line}\n").as_bytes())
    }
}

/// The default path of the audit file.
pub(crate) fn usual_path() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("lockkeeper/audit.jsonl"))
}
