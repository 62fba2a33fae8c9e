//! Our entry in a queue: one ephemeral sequential node, found again after a lost reply.
//!
//! Its name carries an id that was chosen before the first request, so a node whose creation got no
//! answer is recognised, and only our own node is ever deleted. Requests are sent in the order in
//! which they are made and are answered in that order, so several of them cost one round trip.

use std::sync::Arc;

use zookeeper_client as zk;

use super::error::{NAME, ends_session, failed, refused};
use super::layout::{ID_LENGTH, Kind, new_id};
use super::session::Session;
use crate::core::clock::Moment;
use crate::engine::{Fence, Released};
use crate::error::{Error, Result};

/// How often a node that another client deletes is created again within one attempt.
const TRIES: usize = 4;

/// A node that we create, have or delete in the directory of a queue.
#[derive(Debug)]
pub(super) struct QueueNode {
    dir: String,
    kind: Kind,
    acls: zk::Acls<'static>,
    id: String,
    state: State,
    /// The moment before the last request that confirmed it by a write.
    confirmed: Option<Moment>,
    /// Whether a deletion was requested and not answered.
    leaving: bool,
}

#[derive(Debug)]
enum State {
    Absent,
    /// A creation was requested and not answered.
    Unknown(Arc<Session>),
    Present(OwnNode),
}

/// A node that is ours.
#[derive(Debug, Clone)]
pub(super) struct OwnNode {
    pub(super) session: Arc<Session>,
    pub(super) name: String,
    pub(super) path: String,
    /// The transaction that created it: it rises with every node of the whole store.
    pub(super) created: i64,
}

impl OwnNode {
    /// `_c_<uuid>-`.
    pub(super) fn id(&self) -> &str {
        &self.name[..ID_LENGTH]
    }

    pub(super) fn fence(&self) -> Fence {
        Fence::new(self.created.try_into().unwrap_or(0))
    }
}

impl QueueNode {
    pub(super) fn new(dir: String, kind: Kind, acls: zk::Acls<'static>) -> Self {
        let (id, state) = (new_id(), State::Absent);
        Self { dir, kind, acls, id, state, confirmed: None, leaving: false }
    }

    pub(super) fn dir(&self) -> &str {
        &self.dir
    }

    /// The path of another node in the same queue.
    pub(super) fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    pub(super) fn own(&self) -> Option<&OwnNode> {
        match &self.state {
            State::Present(own) => Some(own),
            _ => None,
        }
    }

    /// Creates the node if there is none, and lists everything in the directory, including the
    /// node.
    ///
    /// When it returns, a majority has confirmed a write of our session after `asked`. So the
    /// session was alive then, whatever an outdated follower may have shown us.
    pub(super) async fn enter(
        &mut self,
        session: &Arc<Session>,
        record: &[u8],
        asked: Moment,
    ) -> Result<(OwnNode, Vec<String>)> {
        self.forget_other_sessions(session);
        for _ in 0..TRIES {
            let entered = match &self.state {
                State::Absent => self.create(session, record).await?,
                State::Unknown(_) => {
                    self.find_again(session).await?;
                    None
                }
                State::Present(own) => {
                    let own = own.clone();
                    self.check(own).await?
                }
            };
            if let Some(entered) = entered {
                self.confirmed = Some(asked);
                return Ok(entered);
            }
        }
        let reason = "its node is removed as soon as it is created";
        Err(Error::unreachable(NAME, self.doing(), reason))
    }

    /// The node, everything in the directory, and the moment from before the node was last
    /// confirmed, if a read finds it.
    ///
    /// That an outdated follower shows it proves nothing about the session: the grant counts from
    /// that moment.
    pub(super) async fn look_again(
        &self,
        session: &Arc<Session>,
    ) -> Option<(OwnNode, Vec<String>, Moment)> {
        let (own, confirmed) = (self.own()?, self.confirmed?);
        if !Arc::ptr_eq(&own.session, session) {
            return None;
        }
        let children = session.list(&self.dir).await.ok()?;
        children.contains(&own.name).then(|| (own.clone(), children, confirmed))
    }

    /// The moment from before the node was last confirmed by a write.
    pub(super) fn confirmed(&self) -> Option<Moment> {
        self.confirmed
    }

    fn doing(&self) -> String {
        format!("make a node in {:?}", self.dir)
    }

    /// `None` if there was no directory, or the node was deleted at once.
    async fn create(
        &mut self,
        session: &Arc<Session>,
        record: &[u8],
    ) -> Result<Option<(OwnNode, Vec<String>)>> {
        let prefix = format!("{}{}", self.id, self.kind.word());
        let options = zk::CreateMode::EphemeralSequential.with_acls(self.acls);
        let path = self.path_of(&prefix);
        let create = session.zk.create(&path, record, &options);
        let children = session.list(&self.dir);
        self.state = State::Unknown(session.clone());
        let (stat, _) = match create.await {
            Ok(created) => created,
            Err(zk::Error::NoNode) => {
                self.state = State::Absent;
                session.make_directory(&self.dir, self.acls).await?;
                return Ok(None);
            }
            Err(error) => {
                if refused(&error) || ends_session(&error) {
                    self.state = State::Absent;
                }
                return Err(failed(self.doing())(error));
            }
        };
        let children = children.await?;
        match self.recognise(&children, session, stat.czxid) {
            Some(own) => Ok(Some((own, children))),
            None => {
                self.start_over();
                Ok(None)
            }
        }
    }

    /// `None` if another client deleted the node.
    async fn check(&mut self, own: OwnNode) -> Result<Option<(OwnNode, Vec<String>)>> {
        let is_there = own.session.confirm(std::slice::from_ref(&own.path))?;
        let list = own.session.list(&self.dir);
        if is_there.await? {
            return Ok(Some((own, list.await?)));
        }
        self.start_over();
        Ok(None)
    }

    /// Deletes the node, or whatever may exist of it.
    pub(super) async fn leave(&mut self) -> Result<Released> {
        let session = match &self.state {
            State::Absent => return Ok(Released::Yes),
            State::Unknown(session) | State::Present(OwnNode { session, .. }) => session.clone(),
        };
        if session.is_over() {
            self.state = State::Absent;
            return Ok(Released::AlreadyGone);
        }
        if let State::Unknown(_) = &self.state {
            self.find_again(&session).await?;
        }
        let State::Present(own) = &self.state else { return Ok(Released::Yes) };
        let path = own.path.clone();
        let released = session.delete(&[path], &mut self.leaving).await?;
        self.start_over();
        Ok(released)
    }

    /// Finds out whether a creation without an answer took effect.
    async fn find_again(&mut self, session: &Arc<Session>) -> Result<()> {
        let children = session.list_current(&self.dir).await?;
        let Some(name) = children.iter().find(|name| name.starts_with(&self.id)) else {
            self.state = State::Absent;
            return Ok(());
        };
        let doing = format!("find our node in {:?} again", self.dir);
        let stat = session.zk.check_stat(&self.path_of(name));
        match stat.await.map_err(failed(doing))? {
            Some(stat) if stat.ephemeral_owner == session.zk.session_id().0 => {
                self.recognise(&children, session, stat.czxid);
            }
            _ => self.start_over(),
        }
        Ok(())
    }

    fn recognise(
        &mut self,
        children: &[String],
        session: &Arc<Session>,
        created: i64,
    ) -> Option<OwnNode> {
        let name = children.iter().find(|name| name.starts_with(&self.id))?.clone();
        let path = self.path_of(&name);
        let own = OwnNode { session: session.clone(), name, path, created };
        self.state = State::Present(own.clone());
        Some(own)
    }

    /// A session that has ended took our node with it.
    fn forget_other_sessions(&mut self, session: &Arc<Session>) {
        let other = match &self.state {
            State::Absent => false,
            State::Unknown(other) | State::Present(OwnNode { session: other, .. }) => {
                !Arc::ptr_eq(other, session)
            }
        };
        if other {
            if let State::Present(own) = &self.state {
                // Or soon will: we do not wait for our own leftover. The request is sent now.
                drop(session.zk.delete(&own.path, None));
            }
            self.start_over();
        }
    }

    /// An id is never used for a second node.
    pub(super) fn start_over(&mut self) {
        self.state = State::Absent;
        self.id = new_id();
        self.confirmed = None;
        self.leaving = false;
    }
}
