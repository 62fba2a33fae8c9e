//! The permits of one claim: a node in `leases` for each, created in one transaction and deleted
//! together.
//!
//! Their names carry the id of the queue node that they replace, so permits are found again if the
//! transaction got no answer.

use std::sync::Arc;

use zookeeper_client as zk;

use super::error::{NAME, ends_session, failed};
use super::layout::{self, ID_LENGTH, Kind, Node, queue};
use super::queue_node::OwnNode;
use super::session::Session;
use crate::engine::{Fence, Released, Request};
use crate::error::{Error, Result};

/// How much of a request creations may take. Servers disconnect a client that sends more than
/// `jute.maxbuffer`, 1 MB by default.
const CREATIONS: usize = 1_000_000;

/// The size of a creation apart from its path and its data.
const OVERHEAD: usize = 64;

#[derive(Debug)]
pub(super) struct Permits {
    dir: String,
    limit: u32,
    acls: zk::Acls<'static>,
    state: State,
    /// Whether deletions were requested and not all were answered.
    leaving: bool,
}

#[derive(Debug)]
enum State {
    None,
    /// The transaction was sent for this queue node, and not answered.
    Unknown(OwnNode),
    Taken(Taken),
}

/// Permits that are ours.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    /// The queue node that they replaced.
    pub(super) from: OwnNode,
    nodes: Vec<Node>,
}

impl Taken {
    pub(super) fn slots(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(Node::permit).map(|(slot, _)| slot).collect()
    }
}

impl Permits {
    pub(super) fn new(dir: String, limit: u32, acls: zk::Acls<'static>) -> Self {
        Self { dir, limit, acls, state: State::None, leaving: false }
    }

    pub(super) fn dir(&self) -> &str {
        &self.dir
    }

    pub(super) fn paths(&self, taken: &Taken) -> Vec<String> {
        taken.nodes.iter().map(|node| format!("{}/{}", self.dir, node.name)).collect()
    }

    /// Refuses more permits than fit into one request, before anything is sent.
    pub(super) fn refuse_too_many(&self, request: &Request, take: u32) -> Result<()> {
        let record = layout::write_record(request, Some(Fence::new(u64::MAX)));
        let path = self.path(&"_".repeat(ID_LENGTH), self.limit);
        let most = CREATIONS / (path.len() + record.len() + OVERHEAD);
        if take as usize <= most {
            return Ok(());
        }
        Err(Error::Unsupported {
            engine: NAME,
            what: format!(
                "take {take} permits at once: with this key and note, one request to the servers has room \
                 for {most} at most"
            ),
        })
    }

    fn path(&self, id: &str, slot: u32) -> String {
        format!("{}/{id}{slot}.{}-{}", self.dir, self.limit, Kind::Lease.word())
    }

    fn doing(&self) -> String {
        format!("take permits in {:?}", self.dir)
    }

    /// Takes permits and leaves the queue, in one transaction.
    pub(super) async fn take(
        &mut self,
        from: OwnNode,
        request: &Request,
        slots: &[u32],
    ) -> Result<Taken> {
        let record = layout::write_record(request, Some(from.fence()));
        let options = zk::CreateMode::EphemeralSequential.with_acls(self.acls);
        for _ in 0..2 {
            let mut all = from.session.zk.new_multi_writer();
            for slot in slots {
                let path = self.path(from.id(), *slot);
                all.add_create(&path, &record, &options).map_err(failed(self.doing()))?;
            }
            all.add_delete(&from.path, None).map_err(failed(self.doing()))?;
            let all = all.commit();
            self.state = State::Unknown(from.clone());
            match all.await {
                Ok(results) => {
                    let name = |result: &zk::MultiWriteResult| match result {
                        zk::MultiWriteResult::Create { path, .. } => {
                            path.rsplit_once('/').map(|(_, name)| name.to_owned())
                        }
                        _ => None,
                    };
                    let names: Vec<_> = results.iter().filter_map(name).collect();
                    return Ok(self.recognise(from, queue(&names)));
                }
                Err(zk::MultiWriteError::OperationFailed {
                    index: 0,
                    source: zk::Error::NoNode,
                }) => {
                    self.state = State::None;
                    from.session.make_directory(&self.dir, self.acls).await?;
                }
                Err(error) => {
                    let known = matches!(error, zk::MultiWriteError::OperationFailed { .. });
                    let error = zk::Error::from(error);
                    if known || ends_session(&error) {
                        self.state = State::None;
                    }
                    return Err(failed(self.doing())(error));
                }
            }
        }
        Err(Error::unreachable(
            NAME,
            self.doing(),
            "its directory is removed as soon as it is created",
        ))
    }

    /// The permits that an earlier call took in this session, even if its reply was lost.
    pub(super) async fn taken(&mut self, session: &Arc<Session>) -> Result<Option<Taken>> {
        match &self.state {
            State::Unknown(from) if Arc::ptr_eq(&from.session, session) => {
                self.find_again(from.clone()).await
            }
            State::Taken(taken) if Arc::ptr_eq(&taken.from.session, session) => {
                Ok(Some(taken.clone()))
            }
            // The other session took everything with it, or soon will.
            _ => {
                self.state = State::None;
                Ok(None)
            }
        }
    }

    /// Finds out whether a transaction without an answer took effect.
    async fn find_again(&mut self, from: OwnNode) -> Result<Option<Taken>> {
        let mut found = queue(&from.session.list_current(&self.dir).await?);
        found.retain(|node| node.id() == from.id());
        if found.is_empty() {
            self.state = State::None;
            return Ok(None);
        }
        Ok(Some(self.recognise(from, found)))
    }

    fn recognise(&mut self, from: OwnNode, nodes: Vec<Node>) -> Taken {
        let taken = Taken { from, nodes };
        self.state = State::Taken(taken.clone());
        taken
    }

    /// Confirms by a write that the permits are still ours. If they are not, they are forgotten.
    pub(super) async fn confirm(&mut self, taken: &Taken) -> Result<bool> {
        let is_ours = taken.from.session.confirm(&self.paths(taken))?.await?;
        if !is_ours {
            self.state = State::None;
        }
        Ok(is_ours)
    }

    /// Deletes the permits; `None` if there are none.
    pub(super) async fn release(&mut self) -> Result<Option<Released>> {
        if let State::Unknown(from) = &self.state {
            let from = from.clone();
            match from.session.is_over() {
                true => self.state = State::None,
                false => drop(self.find_again(from).await?),
            }
        }
        let State::Taken(taken) = &self.state else { return Ok(None) };
        let released = taken.from.session.delete(&self.paths(taken), &mut self.leaving).await?;
        self.state = State::None;
        self.leaving = false;
        Ok(Some(released))
    }
}
