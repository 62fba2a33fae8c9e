//! The outcome of a run, as one JSON object for machines.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use serde::Serialize;

use crate::args::Supervision;
use crate::detached::handle::random_hex;
use crate::exit::{self, Failure};
use crate::output::{self, Say, stderr};

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// The contents of `--status-file` and `--json`. Times are in seconds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Status {
    /// One of: done, busy, lost, max-hold, interrupted, unavailable, usage, failed.
    pub(crate) outcome: &'static str,
    /// In words, if the outcome alone does not say it all.
    pub(crate) reason: Option<String>,
    pub(crate) key: String,
    pub(crate) url: Option<String>,
    pub(crate) waited: f64,
    pub(crate) held: f64,
    pub(crate) fence: Option<u64>,
    /// The exit code of the command, if it exited.
    pub(crate) child_code: Option<i32>,
    /// The signal that ended the command, if one did.
    pub(crate) child_signal: Option<i32>,
    /// Our own exit code.
    pub(crate) exit_code: u8,
}

impl Status {
    /// Sets the outcome of a failure, unless it is set already.
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

    /// A failure without a message is a signal that arrived while we waited.
    pub(crate) fn interrupted(&mut self, failure: &Failure) {
        if failure.message.is_empty() {
            self.outcome = "interrupted";
        }
    }

    /// Writes the status where it was requested. The command's code matters more than a file that
    /// cannot be written.
    pub(crate) fn tell(&self, supervision: &Supervision, say: Say) {
        if let Some(Err(failure)) = supervision.status_file.as_deref().map(|path| self.write(path))
        {
            say.warn(failure.message);
        }
        if supervision.json {
            stderr(&format!("{}\n", self.to_json()));
        }
    }

    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain fields serialize")
    }

    /// Writes a file atomically: it has the old contents or the new ones.
    fn write(&self, path: &Path) -> Result<(), Failure> {
        let line = self.to_json() + "\n";
        let text = line.as_bytes();
        let written = Target::of(path).and_then(|target| match target {
            Target::File(path) => {
                let (mut file, beside) = create_beside(&path)?;
                let written = file.write_all(text).and_then(|()| fs::rename(&beside, path));
                written.inspect_err(|_| drop(fs::remove_file(&beside)))
            }
            Target::Stream => open(path)?.write_all(text),
            Target::Descriptor(1) => output::stdout(&line),
            Target::Descriptor(2) => io::stderr().write_all(text),
            // Opened again, so it is appended to.
            Target::Descriptor(_) => open(path)?.write_all(text),
        });
        written.map_err(|error| refuse(path, error))
    }
}

/// Checks that a status file can be written, before anything happens that it would report.
pub(crate) fn probe(path: &Path) -> Result<(), Failure> {
    let tried = Target::of(path).and_then(|target| match target {
        Target::File(path) => create_beside(&path).and_then(|(_, beside)| fs::remove_file(beside)),
        Target::Stream if path.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // Not opened: a reader of a pipe would take our closing it for the end.
        Target::Stream => Ok(()),
        Target::Descriptor(number) => fs::metadata(path).map(drop).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::other(format!(
                "descriptor {number} is not open; open it, for instance with {number}>status.json, or \
                 name a file"
            )),
            _ => error,
        }),
    });
    tried.map_err(|error| refuse(path, error))
}

/// What a path leads to.
enum Target {
    /// A file, or nothing yet.
    File(PathBuf),
    /// Something that is not a file, such as a pipe, and must not be replaced by one.
    Stream,
    /// One of our own open files, such as /dev/stdout: it may be shared with others.
    Descriptor(u32),
}

impl Target {
    /// Follows links. A link stays, and its target is replaced; but a link of another user may be
    /// an attack.
    fn of(path: &Path) -> io::Result<Self> {
        let own = fs::canonicalize("/proc/self/fd").ok();
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            let parent = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => fs::canonicalize(parent)?,
                _ => fs::canonicalize(".")?,
            };
            let Some(name) = path.file_name() else { return Ok(Target::Stream) };
            let number = name.to_str().and_then(|name| name.parse().ok());
            if let (Some(number), true) = (number, own.as_ref() == Some(&parent)) {
                return Ok(Target::Descriptor(number));
            }
            path = parent.join(name);
            let about = match fs::symlink_metadata(&path) {
                Ok(about) => about,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            };
            if !about.is_symlink() {
                return Ok(if about.is_file() { Target::File(path) } else { Target::Stream });
            }
            if about.uid() != 0 && about.uid() != geteuid().as_raw() {
                let shown = path.display();
                return Err(io::Error::other(format!("{shown} is a link of another user")));
            }
            path = parent.join(fs::read_link(&path)?);
        }
        Ok(Target::File(path))
    }
}

/// Creates a file in the same directory that can be renamed to the path. Its name is unpredictable,
/// and an existing file is never used.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", random_hex()?));
    let beside = path.with_file_name(name);
    Ok((OpenOptions::new().write(true).create_new(true).open(&beside)?, beside))
}

/// Opens a device or a pipe, without waiting for a reader.
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
