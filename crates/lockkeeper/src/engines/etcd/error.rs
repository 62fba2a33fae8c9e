//! The client's errors, sorted into the public ones.

use tonic::{Code, Status};

use crate::error::Error;

pub(super) const NAME: &str = "etcd";

/// A member's word that it will not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Refusal {
    code: Code,
    message: String,
}

/// Whether this is a member's word about the request, which another member would only repeat.
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

/// Whether the member says that it did nothing.
///
/// A store whose space is just running out does what it is asked to, and complains all the same.
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

/// Whether the member says that a thing we named does not exist.
pub(super) fn is_not_found(error: &Error) -> bool {
    has_code(error, Code::NotFound)
}

/// Whether the member says that our user may not do this.
pub(super) fn is_denied(error: &Error) -> bool {
    has_code(error, Code::PermissionDenied)
}

/// Whether the member says that a thing we named exists already.
pub(super) fn exists_already(error: &Error) -> bool {
    has_code(error, Code::FailedPrecondition)
}

fn has_code(error: &Error, code: Code) -> bool {
    let Error::Engine { source, .. } = error else { return false };
    source.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == code)
}

/// What a failure means: may it pass by itself?
pub(super) fn failed(doing: &str, status: Status) -> Error {
    // The servers say so of a full queue, which passes, as of a full disk, which asking again shows.
    let may_pass = status.code() == Code::ResourceExhausted || !is_answer(&status);
    match may_pass {
        true => Error::unreachable(NAME, doing, in_words(&status)),
        false => {
            let (code, message) = (status.code(), in_words(&status));
            Error::broken(NAME, doing, Refusal { code, message })
        }
    }
}

/// What a member said, or what kept a request from its answer.
pub(super) fn in_words(status: &Status) -> String {
    let message = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    let first = std::error::Error::source(status);
    match std::iter::successors(first, |cause| cause.source()).last() {
        Some(cause) => format!("{message}: {cause}"),
        None => message.to_owned(),
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
