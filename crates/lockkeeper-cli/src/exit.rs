//! The exit codes, all in one place. docs/cli.md has the same table.

use std::fmt;
use std::process::ExitCode;

use lockkeeper::Error;

use crate::output::tell;

/// Bad usage.
pub(crate) const USAGE: u8 = 64;
/// The engine cannot be reached, or fails.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Busy, or the wait timed out.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost while it was needed.
pub(crate) const LOST: u8 = 79;
/// `--max-hold` was reached.
pub(crate) const MAX_HOLD: u8 = 124;
/// lockkeeper itself failed.
pub(crate) const OWN: u8 = 125;
/// The command was found but cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code of a process that was ended by a signal.
pub(crate) fn signalled(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Why a verb ends early: the message, and the code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// Whether the same may succeed later.
    pub(crate) retryable: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: false }
    }

    /// Bad usage; the message says what would be accepted.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// lockkeeper itself failed while `doing`.
    pub(crate) fn own(doing: impl fmt::Display, source: impl fmt::Display) -> Self {
        Self::new(OWN, format!("cannot {doing}: {source}"))
    }

    /// Ends without a message: everything has been reported.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Timeout { .. } => BUSY,
            Error::Lost { .. } | Error::Late { .. } => LOST,
            Error::Unsupported { .. } | Error::Conflict { .. } => USAGE,
            Error::Key(_) | Error::Url(_) | Error::Config(_) => USAGE,
            Error::Engine { .. } => UNAVAILABLE,
            _ => OWN,
        };
        Self { retryable: error.is_retryable(), ..Self::new(code, error.to_string()) }
    }
}

/// The result of every verb.
pub(crate) type Outcome = Result<u8, Failure>;

/// Prints a failure, once, and returns its code.
pub(crate) fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.message.is_empty() {
                tell(&failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}
