//! How a run went, as one JSON object for machines.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::args::Care;
use crate::exit::{self, Failure};
use crate::say::{Say, stderr};

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

    /// Tells it where it was asked for. The command's code counts more than a file that failed.
    pub(crate) fn tell(&self, care: &Care, say: Say) {
        if let Some(Err(failure)) = care.status_file.as_deref().map(|path| self.write(path)) {
            say.warn(failure.message);
        }
        if care.json {
            stderr(&format!("{}\n", self.to_json()));
        }
    }

    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain fields serialize")
    }

    /// Writes a file that is either as it was or whole.
    fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = self.to_json() + "\n";
        let beside = beside(path);
        let written = File::create(&beside)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&beside, path));
        written.inspect_err(|_| drop(fs::remove_file(&beside))).map_err(|error| refuse(path, error))
    }
}

/// Makes sure that a status file can be written, before anything is done that it would tell about.
pub(crate) fn probe(path: &Path) -> Result<(), Failure> {
    let beside = beside(path);
    let tried = File::create(&beside).and_then(|_| fs::remove_file(&beside));
    tried.map_err(|error| refuse(path, error))
}

/// In the same directory, so that it can be renamed.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}

fn refuse(path: &Path, error: std::io::Error) -> Failure {
    Failure::own(format_args!("write the status file {}", path.display()), error)
}

/// Seconds, to the microsecond.
pub(crate) fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}
