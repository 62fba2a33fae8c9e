//! How a run went, as one JSON object for machines.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::exit::{self, Failure};

/// What `--status-file` and `--json` tell. Times are in seconds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Status {
    /// One of: done, busy, lost, max-hold, interrupted, unavailable, usage, failed.
    pub(crate) outcome: &'static str,
    /// In words, where the outcome alone does not say it all.
    pub(crate) reason: Option<String>,
    pub(crate) key: String,
    pub(crate) url: Option<String>,
    pub(crate) waited: f64,
    pub(crate) held: f64,
    pub(crate) fence: Option<u64>,
    /// What the command returned, if it did.
    pub(crate) child_code: Option<i32>,
    /// Which signal ended the command, if one did.
    pub(crate) child_signal: Option<i32>,
    /// What we return.
    pub(crate) exit_code: u8,
}

impl Status {
    /// The outcome of a failure that was not told otherwise.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.reason = Some(failure.message.clone()).filter(|reason| !reason.is_empty());
        if self.outcome.is_empty() {
            self.outcome = match failure.code {
                exit::USAGE => "usage",
                exit::UNAVAILABLE => "unavailable",
                exit::LOST => "lost",
                exit::BUSY => "busy",
                _ => "failed",
            };
        }
    }

    /// A failure without words is a signal that came while we waited.
    pub(crate) fn interrupted(&mut self, failure: &Failure) {
        if failure.message.is_empty() {
            self.outcome = "interrupted";
        }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain fields serialize")
    }

    /// Writes a file that is either not there or whole.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = self.to_json() + "\n";
        let refuse =
            |error| Failure::own(format_args!("write the status file {}", path.display()), error);
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = Path::new(&beside);
        let mut file = fs::File::create(beside).map_err(refuse)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(beside, path));
        written.inspect_err(|_| drop(fs::remove_file(beside))).map_err(refuse)
    }
}

/// Seconds, to the microsecond.
pub(crate) fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}
