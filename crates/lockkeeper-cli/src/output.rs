//! Messages on stderr, prefixed `lockkeeper:`, no more of them than requested; and results on
//! stdout.
//!
//! `println!` and `eprintln!` panic when they cannot write: to a full disk, or to a pipe without a
//! reader. A wrapper that panics would lose its command's exit code over a message.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use crate::exit::Failure;

/// The verbosity.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Say {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

impl Say {
    /// What the user should know.
    pub(crate) fn warn(self, message: impl Display) {
        if !self.quiet {
            tell(message);
        }
    }

    /// What the user wants to know with `-v`.
    pub(crate) fn note(self, message: impl Display) {
        if self.verbose {
            tell(message);
        }
    }
}

/// Prints a message on stderr.
pub(crate) fn tell(message: impl Display) {
    stderr(&format!("lockkeeper: {message}\n"));
}

/// Writes to stderr. If that fails, there is nowhere to report it.
pub(crate) fn stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Prints a result, and ends quietly if there is no reader any more.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    printed(stdout(text))
}

/// The outcome of writing a result to stdout.
pub(crate) fn printed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(0)),
        written => written.map_err(|error| Failure::own("print", error)),
    }
}

/// Writes everything to stdout, and flushes it.
pub(crate) fn stdout(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Quotes a path as one word for a shell, for advice that can be pasted.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+:,@%".contains(c);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// A duration with as many digits as people read: `850ms`, `1.5s`, `4m 10s`, `3d 2h`.
pub(crate) fn human(time: std::time::Duration) -> String {
    let seconds = time.as_secs();
    let pair = |big: u64, a: &str, small: u64, b: &str| match small {
        0 => format!("{big}{a}"),
        _ => format!("{big}{a} {small}{b}"),
    };
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..10 => format!("{:.1}s", time.as_secs_f64()).replace(".0s", "s"),
        10..60 => format!("{seconds}s"),
        60..3_600 => pair(seconds / 60, "m", seconds % 60, "s"),
        3_600..86_400 => pair(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages_are_short() {
        for (ms, shown) in [
            (850, "850ms"),
            (1_500, "1.5s"),
            (1_990, "2s"),
            (59_900, "59s"),
            (250_000, "4m 10s"),
            (7_200_000, "2h"),
            (266_400_000, "3d 2h"),
        ] {
            assert_eq!(human(Duration::from_millis(ms)), shown);
        }
    }
}
