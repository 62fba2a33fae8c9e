//! A place in a line: one ephemeral sequential node, found again when a reply was lost.
//!
//! Its name carries an id that was chosen before the first request, so a node whose creation we never
//! heard of is recognised, and only our own node is ever deleted. Requests leave in the order in which
//! they are made and are answered in that order, so several of them cost one round trip.

use std::sync::Arc;

use zookeeper_client as zk;

use super::error::{NAME, ends_session, failed, refused};
use super::layout::{Kind, new_id};
use super::session::Session;
use crate::engine::Released;
use crate::error::{Error, Result};

/// How often a place that somebody takes away is taken again within one attempt.
pub(super) const TRIES: usize = 4;

#[derive(Debug)]
pub(super) struct QueueNode {
    /// The directory of the line.
    dir: String,
    kind: Kind,
    acls: zk::Acls<'static>,
    id: String,
    at: At,
    /// Whether a deletion was asked for and not answered.
    leaving: bool,
}

#[derive(Debug)]
enum At {
    Nowhere,
    /// A creation was asked for and not answered.
    Perhaps(Arc<Session>),
    Here(Standing),
}

/// A place that is ours.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) session: Arc<Session>,
    pub(super) name: String,
    pub(super) path: String,
    /// The transaction that created it: it rises with every node of the whole store.
    pub(super) created: i64,
}

impl QueueNode {
    pub(super) fn new(dir: String, kind: Kind, acls: zk::Acls<'static>) -> Self {
        Self { dir, kind, acls, id: new_id(), at: At::Nowhere, leaving: false }
    }

    pub(super) fn dir(&self) -> &str {
        &self.dir
    }

    /// `_c_<uuid>-`.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn standing(&self) -> Option<&Standing> {
        match &self.at {
            At::Here(standing) => Some(standing),
            _ => None,
        }
    }

    /// Takes a place if it has none, and looks at everyone in the directory, ourselves included.
    ///
    /// When it returns, a write of our session was confirmed by a majority after the call began. So the
    /// session was alive then, whatever an outdated follower may have shown us.
    pub(super) async fn stand(
        &mut self,
        session: &Arc<Session>,
        record: &[u8],
    ) -> Result<(Standing, Vec<String>)> {
        self.forget_other_sessions(session);
        let dir = self.dir.clone();
        let doing = || format!("take a place in {dir:?}");
        for _ in 0..TRIES {
            let zk = &session.zk;
            match &self.at {
                At::Nowhere => {
                    let path = format!("{}/{}{}", self.dir, self.id, self.kind.word());
                    let options = zk::CreateMode::EphemeralSequential.with_acls(self.acls);
                    let create = zk.create(&path, record, &options);
                    let parent = zk.check_stat(&self.dir);
                    self.at = At::Perhaps(session.clone());
                    match create.await {
                        Ok((stat, sequence)) => {
                            let parent = parent.await.map_err(failed(doing()))?;
                            // The last change among the children was our coming, and we are one.
                            let alone = parent.is_some_and(|parent| {
                                parent.num_children == 1 && parent.pzxid == stat.czxid
                            });
                            let children = match alone {
                                true => vec![format!("{}{}{sequence}", self.id, self.kind.word())],
                                false => {
                                    zk.list_children(&self.dir).await.map_err(failed(doing()))?
                                }
                            };
                            match self.find(&children, session, stat.czxid) {
                                Some(standing) => return Ok((standing, children)),
                                // Somebody deleted it in between.
                                None => self.start_again(),
                            }
                        }
                        Err(zk::Error::NoNode) => {
                            self.at = At::Nowhere;
                            make_directory(session, &self.dir, self.acls).await?;
                        }
                        Err(error) => {
                            if refused(&error) || ends_session(&error) {
                                self.at = At::Nowhere;
                            }
                            return Err(failed(doing())(error));
                        }
                    }
                }
                At::Perhaps(_) => self.look_for_it(session).await?,
                At::Here(standing) => {
                    let standing = standing.clone();
                    let mut check = zk.new_multi_writer();
                    check
                        .add_check_version(&standing.path, ANY_VERSION)
                        .map_err(failed(doing()))?;
                    let check = check.commit();
                    let list = zk.list_children(&self.dir);
                    match check.await.map_err(zk::Error::from) {
                        Ok(_) => return Ok((standing, list.await.map_err(failed(doing()))?)),
                        Err(zk::Error::NoNode) => self.start_again(),
                        Err(error) => return Err(failed(doing())(error)),
                    }
                }
            }
        }
        Err(Error::unreachable(NAME, doing(), "it is taken away as soon as it is there"))
    }

    /// Everyone in the directory as it is now, without taking a place.
    pub(super) async fn others(&self, session: &Session) -> Result<Vec<String>> {
        let doing = || format!("look at {:?}", self.dir);
        // An outdated server would show those who left already.
        let sync = session.zk.sync(&self.dir);
        let list = session.zk.list_children(&self.dir);
        sync.await.map_err(failed(doing()))?;
        match list.await {
            Err(zk::Error::NoNode) => Ok(Vec::new()),
            children => children.map_err(failed(doing())),
        }
    }

    /// Whether our node and another one are both still there: nothing changed, at little cost.
    pub(super) async fn still_behind(&self, other: &str) -> bool {
        let At::Here(Standing { session, path, .. }) = &self.at else { return false };
        let other = session.zk.check_stat(other);
        let own = session.zk.check_stat(path);
        matches!(other.await, Ok(Some(_))) && matches!(own.await, Ok(Some(_)))
    }

    /// Gives the place up, or whatever may be there of it.
    pub(super) async fn leave(&mut self) -> Result<Released> {
        let session = match &self.at {
            At::Nowhere => return Ok(Released::Yes),
            At::Perhaps(session) | At::Here(Standing { session, .. }) => session.clone(),
        };
        if session.is_over() {
            self.at = At::Nowhere;
            return Ok(Released::AlreadyGone);
        }
        if let At::Perhaps(_) = &self.at {
            self.look_for_it(&session).await?;
        }
        let At::Here(standing) = &self.at else { return Ok(Released::Yes) };
        let mut moved = false;
        let released = loop {
            let deleted = session.zk.delete(&standing.path, None);
            let asked_before = std::mem::replace(&mut self.leaving, true);
            match deleted.await {
                Ok(()) => break Released::Yes,
                // Deleted by the request before, whose reply was lost.
                Err(zk::Error::NoNode) if asked_before => break Released::Yes,
                Err(zk::Error::NoNode) => break Released::AlreadyGone,
                Err(error) if ends_session(&error) => break Released::AlreadyGone,
                // The session moves to another server, or turns out to be over.
                Err(zk::Error::ConnectionLoss) if !moved => moved = true,
                Err(error) => return Err(failed(format!("leave {:?}", self.dir))(error)),
            }
        };
        self.start_again();
        Ok(released)
    }

    /// It was given up by another request, which made other nodes with the same id.
    pub(super) fn left(&mut self) {
        self.at = At::Nowhere;
    }

    /// Finds out whether a creation without an answer took effect.
    async fn look_for_it(&mut self, session: &Arc<Session>) -> Result<()> {
        let dir = self.dir.clone();
        let doing = || format!("find our place in {dir:?} again");
        let children = self.others(session).await?;
        let Some(name) = children.iter().find(|name| name.starts_with(&self.id)) else {
            self.at = At::Nowhere;
            return Ok(());
        };
        let stat = session.zk.check_stat(&format!("{}/{name}", self.dir));
        match stat.await.map_err(failed(doing()))? {
            Some(stat) if stat.ephemeral_owner == session.zk.session_id().0 => {
                self.find(&children, session, stat.czxid);
            }
            _ => self.start_again(),
        }
        Ok(())
    }

    fn find(
        &mut self,
        children: &[String],
        session: &Arc<Session>,
        created: i64,
    ) -> Option<Standing> {
        let name = children.iter().find(|name| name.starts_with(&self.id))?.clone();
        let path = format!("{}/{name}", self.dir);
        let standing = Standing { session: session.clone(), name, path, created };
        self.at = At::Here(standing.clone());
        Some(standing)
    }

    /// A session that is over took our node with it.
    fn forget_other_sessions(&mut self, session: &Arc<Session>) {
        let other = match &self.at {
            At::Nowhere => false,
            At::Perhaps(other) | At::Here(Standing { session: other, .. }) => {
                !Arc::ptr_eq(other, session)
            }
        };
        if other {
            if let At::Here(standing) = &self.at {
                // Or will take it soon: we need not wait for our own ghost. The request leaves now.
                drop(session.zk.delete(&standing.path, None));
            }
            self.start_again();
        }
    }

    /// An id is never used for a second node.
    pub(super) fn start_again(&mut self) {
        self.at = At::Nowhere;
        self.id = new_id();
        self.leaving = false;
    }
}

/// Matches every version of a node.
pub(super) const ANY_VERSION: i32 = -1;

/// Makes a directory and those above it, which the servers remove again when they are empty.
pub(super) async fn make_directory(
    session: &Session,
    dir: &str,
    acls: zk::Acls<'static>,
) -> Result<()> {
    let doing = || format!("make {dir:?}");
    let container = zk::CreateMode::Container.with_acls(acls);
    match session.zk.mkdir(dir, &container).await {
        Err(zk::Error::Unimplemented) => {
            let persistent = zk::CreateMode::Persistent.with_acls(acls);
            session.zk.mkdir(dir, &persistent).await.map_err(failed(doing()))
        }
        made => made.map_err(failed(doing())),
    }
}
