//! The members of a cluster: requests go to one of them, and to the others if it does not answer.
//!
//! Every request that we make may run twice without harm, so one without an answer is sent to the
//! next member. The caller learns that this happened: a request without an answer may still run
//! later.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Status;

use super::client::{Access, Client};
use super::error::{failed, is_answer, is_refusal};
use crate::engines::disconnections::Disconnections;
use crate::error::Result;

/// How long a member may be silent before the next one is tried.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The members, and which of them is in use.
pub(super) struct Cluster {
    members: Vec<Member>,
    current: watch::Sender<usize>,
    pub(super) disconnections: Disconnections,
}

struct Member {
    address: String,
    client: Client,
}

impl Cluster {
    pub(super) fn new(addresses: Vec<String>, access: &Access) -> Result<Self> {
        let member = |address: String| {
            let client = Client::new(&address, access).map_err(|error| failed("connect", error))?;
            Ok(Member { address, client })
        };
        let members = addresses.into_iter().map(member).collect::<Result<_>>()?;
        let disconnections = Disconnections::default();
        Ok(Self { members, current: watch::Sender::new(0), disconnections })
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.address.as_str())
    }

    /// Asks the current member, then each of the others once.
    pub(super) async fn ask<T, F>(
        &self,
        doing: &str,
        patience: Duration,
        request: impl Fn(Client) -> F + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        self.change(doing, patience, &mut false, request).await
    }

    /// Like `ask`, for a request that matters even without an answer.
    ///
    /// `doubt` is set if it got no answer, or one that does not rule out an effect: it may take
    /// effect at any time from now on.
    pub(super) async fn change<T, F>(
        &self,
        doing: &str,
        patience: Duration,
        doubt: &mut bool,
        request: impl Fn(Client) -> F + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let mut failure = Status::unavailable("there is no member to ask");
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
        request: impl Fn(Client) -> F + Sync,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let answer = timeout(patience, request(self.client(at))).await;
        answer.unwrap_or_else(|_| {
            let patience = humantime::format_duration(patience);
            let address = &self.members[at].address;
            Err(Status::unavailable(format!("no answer from {address} within {patience}")))
        })
    }

    /// The connection to a member.
    pub(super) fn client(&self, at: usize) -> Client {
        self.members[at].client.clone()
    }

    /// The member in use.
    pub(super) fn current(&self) -> usize {
        *self.current.borrow()
    }

    /// For streams that have to follow when another member is used.
    pub(super) fn moves(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// This member did not answer: use the next one, unless another task has switched already.
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
        f.debug_list().entries(self.addresses()).finish()
    }
}
