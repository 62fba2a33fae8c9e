//! The members of a cluster: one is talked to, the others are there for when it does not answer.
//!
//! Every request that we make may run twice without harm, so one that got no answer is sent to the next
//! member. Whoever asks learns that this happened: a request without an answer may still run, later.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error as EtcdError};
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;
use tonic::Code;

use crate::error::{Error, Result};

pub(super) const NAME: &str = "etcd";

/// How long a member may be silent before the next one is asked.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The members, and which of them is talked to.
pub(super) struct Cluster {
    members: Vec<Member>,
    options: ConnectOptions,
    current: watch::Sender<usize>,
}

/// A member and the connection to it, made when it is first needed.
struct Member {
    address: String,
    client: OnceCell<Client>,
}

impl Cluster {
    pub(super) fn new(addresses: Vec<String>, options: ConnectOptions) -> Self {
        let member = |address| Member { address, client: OnceCell::new() };
        let members = addresses.into_iter().map(member).collect();
        Self { members, options, current: watch::Sender::new(0) }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.address.as_str())
    }

    /// Asks the current member, then each of the others once.
    pub(super) async fn ask<T, F>(
        &self,
        doing: &str,
        patience: Duration,
        request: impl Fn(&Client) -> F + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, EtcdError>> + Send,
    {
        self.change(doing, patience, &mut false, request).await
    }

    /// As `ask`, for a request that matters even when nobody answers.
    ///
    /// `doubt` is set when it went without an answer, or with one that does not say that it had no
    /// effect: it may take effect at any time from now on.
    pub(super) async fn change<T, F>(
        &self,
        doing: &str,
        patience: Duration,
        doubt: &mut bool,
        request: impl Fn(&Client) -> F + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, EtcdError>> + Send,
    {
        let mut failure = EtcdError::Internal("there is no member to ask".to_owned());
        for _ in 0..self.members.len() {
            let at = self.current();
            match self.ask_member(at, patience, &request).await {
                Ok(answer) => return Ok(answer),
                Err(error) if is_answer(&error) => {
                    *doubt |= !is_refusal(&error);
                    return Err(sorted(doing, error));
                }
                Err(error) => failure = error,
            }
            *doubt = true;
            self.leave(at);
        }
        Err(sorted(doing, failure))
    }

    /// Asks one member.
    pub(super) async fn ask_member<T, F>(
        &self,
        at: usize,
        patience: Duration,
        request: impl Fn(&Client) -> F + Sync,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, EtcdError>> + Send,
    {
        let answer = timeout(patience, async { request(self.client(at).await?).await }).await;
        answer.unwrap_or_else(|_| {
            let patience = humantime::format_duration(patience);
            let address = &self.members[at].address;
            Err(EtcdError::Internal(format!("no answer from {address} within {patience}")))
        })
    }

    /// The connection to a member.
    pub(super) async fn client(&self, at: usize) -> Result<&Client, EtcdError> {
        let member = &self.members[at];
        let connect = || Client::connect([&member.address], Some(self.options.clone()));
        member.client.get_or_try_init(connect).await
    }

    /// Which member is talked to.
    pub(super) fn current(&self) -> usize {
        *self.current.borrow()
    }

    /// For those whose streams have to follow when another member is talked to.
    pub(super) fn moves(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// This member did not answer: talk to the next one, unless somebody else said so already.
    pub(super) fn leave(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        self.current.send_if_modified(|current| {
            let moved = *current == at && next != at;
            if moved {
                *current = next;
                tracing::debug!(
                    from = self.members[at].address,
                    to = self.members[next].address,
                    "a member does not answer; asking another one"
                );
            }
            moved
        });
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options hold the password.
        f.debug_list().entries(self.addresses()).finish()
    }
}

/// Whether this is a member's word about the request, which another member would only repeat.
fn is_answer(error: &EtcdError) -> bool {
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
fn is_refusal(error: &EtcdError) -> bool {
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

/// An error of the client crate as one of ours.
pub(super) fn sorted(doing: &str, error: EtcdError) -> Error {
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
