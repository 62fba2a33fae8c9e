//! How a command ended, and what that means for the exit code and the status.

use std::time::Duration;

use crate::exit::{self, Failure};
use crate::output::{Say, human};
use crate::run::status::Status;
use crate::table::plain;

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) how: How,
    /// Why the lock was lost, if it was.
    pub(crate) lost: Option<String>,
    pub(crate) max_hold: bool,
    /// Whether it had the terminal, and Ctrl-C ended it: then we end the same way.
    pub(crate) interrupted: bool,
    /// Whether a signal that usually ends a program arrived through us, or by Ctrl-C.
    pub(crate) asked_to_end: bool,
    /// The yield request because of which the command was signalled, in words.
    pub(crate) yielded: Option<String>,
}

impl End {
    /// The release found the lock lost, which nobody may have noticed before.
    pub(crate) fn lost_at_release(&mut self, reason: String, say: Say) {
        if self.lost.is_none() {
            // It may have somebody else's text.
            say.warn(plain(&reason));
            self.lost = Some(reason);
        }
    }
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Exited(i32),
    Signalled(i32),
}

impl How {
    pub(crate) fn code(self) -> u8 {
        match self {
            How::Exited(code) => u8::try_from(code).unwrap_or(exit::OWN),
            How::Signalled(signal) => exit::signalled(signal),
        }
    }
}

/// Derives the exit code and the rest of the status from the end of a command.
pub(crate) fn verdict(end: &End, say: Say, status: &mut Status) -> u8 {
    match end.how {
        How::Exited(code) => status.child_code = Some(code),
        How::Signalled(signal) => status.child_signal = Some(signal),
    }
    let span = |seconds| human(Duration::from_secs_f64(seconds));
    say.note(format_args!("waited {}, held {}", span(status.waited), span(status.held)));
    if let Some(reason) = &end.lost {
        status.outcome = "lost";
        status.reason = Some(reason.clone());
        exit::LOST
    } else if end.max_hold {
        status.outcome = "max-hold";
        exit::MAX_HOLD
    } else {
        status.outcome = "done";
        status.reason = end.yielded.clone();
        end.how.code()
    }
}

/// Whether the work of a run was not done.
pub(crate) fn has_failed(ended: &Result<End, Failure>) -> bool {
    ended.as_ref().map_or(true, |end| end.lost.is_some() || end.max_hold || end.how.code() != 0)
}
