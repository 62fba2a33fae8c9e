//! The members of a cluster: one is talked to, the others are there for when it does not answer.
//!
//! Every request that we make may run twice without harm, so one that got no answer is sent to the next
//! member. The caller learns that this happened: a request without an answer may still run, later.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error as EtcdError};
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;

use super::error::{failed, is_answer, is_refusal};
use crate::error::Result;

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
                    return Err(failed(doing, error));
                }
                Err(error) => failure = error,
            }
            *doubt = true;
            self.leave(at);
        }
        Err(failed(doing, failure))
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
