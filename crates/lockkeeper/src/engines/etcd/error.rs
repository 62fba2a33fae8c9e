//! The client's errors, sorted into the public ones.

use etcd_client::Error as EtcdError;
use tonic::Code;

use crate::error::Error;

pub(super) const NAME: &str = "etcd";

/// Whether this is a member's word about the request, which another member would only repeat.
pub(super) fn is_answer(error: &EtcdError) -> bool {
    match error {
        EtcdError::GRpcStatus(status) => !matches!(
            status.code(),
            Code::Unavailable
                | Code::Unknown
                | Code::Internal
                | Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::DataLoss
        ),
        EtcdError::TransportError(_)
        | EtcdError::IoError(_)
        | EtcdError::EndpointError(_)
        | EtcdError::WatchError(_)
        | EtcdError::Internal(_) => false,
        _ => true,
    }
}

/// Whether the member says that it did nothing.
///
/// A store whose space is just running out does what it is asked to, and complains all the same.
pub(super) fn is_refusal(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::Unauthenticated
    ))
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
    matches!(source.downcast_ref(), Some(EtcdError::GRpcStatus(status)) if status.code() == code)
}

/// What a failure means: may it pass by itself?
pub(super) fn failed(doing: &str, error: EtcdError) -> Error {
    let may_pass = match &error {
        // The servers say so of a full queue, which passes, as of a full disk, which asking again shows.
        EtcdError::GRpcStatus(status) => {
            status.code() == Code::ResourceExhausted || !is_answer(&error)
        }
        error => !is_answer(error),
    };
    match may_pass {
        true => Error::unreachable(NAME, doing, in_words(error)),
        false => Error::broken(NAME, doing, error),
    }
}

/// What kept a request from its answer, without the names of types that the client crate prints.
fn in_words(error: EtcdError) -> String {
    let EtcdError::GRpcStatus(status) = &error else { return error.to_string() };
    let first = std::error::Error::source(status);
    match std::iter::successors(first, |cause| cause.source()).last() {
        Some(cause) => format!("{}: {cause}", status.message()),
        None => format!("{}: {}", status.code(), status.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_does_not_rule_out_an_effect_is_no_refusal() {
        let is_refusal = |code| is_refusal(&EtcdError::GRpcStatus(tonic::Status::new(code, "")));
        for code in [Code::PermissionDenied, Code::NotFound, Code::FailedPrecondition] {
            assert!(is_refusal(code), "{code:?}");
        }
        // No space left, an answer that is too long, and no answer at all.
        for code in [Code::ResourceExhausted, Code::OutOfRange, Code::Unavailable, Code::Internal] {
            assert!(!is_refusal(code), "{code:?}");
        }
    }
}
