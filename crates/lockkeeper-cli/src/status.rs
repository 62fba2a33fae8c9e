//! How a run went, as one JSON object for machines.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
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
        let written = match Target::of(path) {
            Target::File { path, beside } => File::create(&beside)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .and_then(|()| fs::rename(&beside, path))
                .inspect_err(|_| drop(fs::remove_file(&beside))),
            Target::Stream => open(path).and_then(|mut file| file.write_all(text.as_bytes())),
        };
        written.map_err(|error| refuse(path, error))
    }
}

/// Makes sure that a status file can be written, before anything is done that it would tell about.
pub(crate) fn probe(path: &Path) -> Result<(), Failure> {
    let tried = match Target::of(path) {
        Target::File { beside, .. } => File::create(&beside).and_then(|_| fs::remove_file(&beside)),
        Target::Stream if path.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // Not opened: whoever reads from a pipe would take our leaving for the end.
        Target::Stream => Ok(()),
    };
    tried.map_err(|error| refuse(path, error))
}

/// What a path leads to.
enum Target {
    /// A file, or nothing yet, and a name in the same directory that can be renamed to it.
    File { path: PathBuf, beside: PathBuf },
    /// What is there is no file, such as /dev/stdout, and must not be replaced by one.
    Stream,
}

impl Target {
    fn of(path: &Path) -> Self {
        if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            return Target::Stream;
        }
        // A link stays, and what it leads to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        Target::File { path, beside: beside.into() }
    }
}

/// Opens a device or a pipe, but does not wait for somebody to read from it.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK.bits();
    OpenOptions::new().append(true).custom_flags(flags).open(path)
}

fn refuse(path: &Path, error: io::Error) -> Failure {
    Failure::own(format_args!("write the status file {}", path.display()), error)
}

/// Seconds, to the microsecond.
pub(crate) fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}
