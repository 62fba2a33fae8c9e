//! Maps the errors of the client to those of this crate.

use tonic::{Code, Status};

use crate::error::Error;

pub(super) const NAME: &str = "etcd";

/// A member's refusal of a request.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Refusal {
    code: Code,
    message: String,
}

/// Whether this is a member's answer about the request, which another member would only repeat.
pub(super) fn is_answer(status: &Status) -> bool {
    !matches!(
        status.code(),
        Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::DataLoss
    )
}

/// Whether the member reports that the request had no effect.
///
/// A store that is just running out of space executes a request and still returns an error.
pub(super) fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::Unauthenticated
    )
}

/// Whether the member reports that something we named does not exist.
pub(super) fn is_not_found(error: &Error) -> bool {
    has_code(error, Code::NotFound)
}

/// Whether the member reports that our user lacks the permission.
pub(super) fn is_denied(error: &Error) -> bool {
    has_code(error, Code::PermissionDenied)
}

/// Whether the member reports that something we named exists already.
pub(super) fn exists_already(error: &Error) -> bool {
    has_code(error, Code::FailedPrecondition)
}

fn has_code(error: &Error, code: Code) -> bool {
    let Error::Engine { source, .. } = error else { return false };
    source.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == code)
}

/// The error of a failed request: transient or permanent.
pub(super) fn failed(doing: &str, status: Status) -> Error {
    // Servers return this for a full queue, which passes, and for a full disk, which a retry will
    // show.
    let may_pass = status.code() == Code::ResourceExhausted || !is_answer(&status);
    match may_pass {
        true => Error::unreachable(NAME, doing, in_words(&status)),
        false => {
            let (code, message) = (status.code(), in_words(&status));
            Error::broken(NAME, doing, Refusal { code, message })
        }
    }
}

/// The member's message, or why a request got no answer.
pub(super) fn in_words(status: &Status) -> String {
    let message = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    let first = std::error::Error::source(status);
    match std::iter::successors(first, |cause| cause.source()).last() {
        Some(cause) if cause.to_string() != message => format!("{message}: {cause}"),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_does_not_rule_out_an_effect_is_no_refusal() {
        let is_refusal = |code| is_refusal(&Status::new(code, ""));
        for code in [Code::PermissionDenied, Code::NotFound, Code::FailedPrecondition] {
            assert!(is_refusal(code), "{code:?}");
        }
        // No space left, an answer that is too long, and no answer at all.
        for code in [Code::ResourceExhausted, Code::OutOfRange, Code::Unavailable, Code::Internal] {
            assert!(!is_refusal(code), "{code:?}");
        }
    }
}
