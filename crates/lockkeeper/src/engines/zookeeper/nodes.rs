//! Requests about nodes that claims, renewals and inspection share.
//!
//! Those that return a future have sent their request when they return: several cost one round
//! trip.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client as zk;

use super::error::{ends_session, failed};
use super::layout::{self, Node, owned_by_a_session};
use super::queue_node::OwnNode;
use super::session::Session;
use crate::engine::Released;
use crate::error::{Error, Result};
use crate::key::Key;

/// Matches every version of a node.
pub(super) const ANY_VERSION: i32 = -1;

impl Session {
    /// Lists a directory, which may not exist. The request is sent now.
    pub(super) fn list(
        &self,
        dir: &str,
    ) -> impl Future<Output = Result<Vec<String>>> + Send + use<> {
        let (list, doing) = (self.zk.get_children(dir), format!("look at {dir:?}"));
        async move {
            match list.await {
                Ok((children, _)) => Ok(children),
                Err(zk::Error::NoNode) => Ok(Vec::new()),
                Err(error) => Err(failed(doing)(error)),
            }
        }
    }

    /// Like [`list`](Session::list), from a server that is up to date: an outdated one would list
    /// nodes that are gone already.
    pub(super) async fn list_current(&self, dir: &str) -> Result<Vec<String>> {
        let sync = self.zk.sync(dir);
        let list = self.list(dir);
        sync.await.map_err(failed(format!("look at {dir:?}")))?;
        list.await
    }

    /// The queue in a directory, which may not exist.
    pub(super) async fn queue(&self, dir: &str) -> Result<Vec<Node>> {
        Ok(layout::queue(&self.list(dir).await?))
    }

    /// The transaction that created a node, which may be gone. The request is sent now.
    pub(super) fn created(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<Option<i64>>> + Send + use<> {
        let (stat, doing) = (self.zk.check_stat(path), format!("look at {path:?}"));
        async move { Ok(stat.await.map_err(failed(doing))?.map(|stat| stat.czxid)) }
    }

    /// Whether all these nodes exist, confirmed by a write. The request is sent now.
    pub(super) fn confirm<'a>(
        &'a self,
        paths: &[String],
    ) -> Result<impl Future<Output = Result<bool>> + Send + use<'a>> {
        let doing = format!("confirm {paths:?}");
        let mut all = self.zk.new_multi_writer();
        for path in paths {
            all.add_check_version(path, ANY_VERSION).map_err(failed(doing.as_str()))?;
        }
        let all = all.commit();
        Ok(async move {
            match all.await.map_err(zk::Error::from) {
                Ok(_) => Ok(true),
                Err(zk::Error::NoNode) => Ok(false),
                Err(error) => Err(failed(doing)(error)),
            }
        })
    }

    /// Deletes nodes of ours. The requests are sent on the first poll.
    ///
    /// `asked` is set from the first request on: after that, a missing node was deleted by an
    /// earlier request whose reply was lost.
    pub(super) async fn delete(&self, paths: &[String], asked: &mut bool) -> Result<Released> {
        let asked_before = std::mem::replace(asked, true);
        let mut released = if asked_before { Released::Yes } else { Released::AlreadyGone };
        let deletions: Vec<_> = paths.iter().map(|path| self.zk.delete(path, None)).collect();
        for (deletion, path) in deletions.into_iter().zip(paths) {
            let answer = match deletion.await {
                // The session moves to another server, or turns out to have ended.
                Err(zk::Error::ConnectionLoss) => match self.zk.delete(path, None).await {
                    Err(zk::Error::NoNode) => Ok(()),
                    again => again,
                },
                answer => answer,
            };
            match answer {
                Ok(()) => released = Released::Yes,
                Err(zk::Error::NoNode) => {}
                Err(error) if ends_session(&error) => {}
                Err(error) => return Err(failed(format!("delete {path:?}"))(error)),
            }
        }
        Ok(released)
    }

    /// Creates a directory and its parents, which the servers remove again when they are empty.
    pub(super) async fn make_directory(&self, dir: &str, acls: zk::Acls<'static>) -> Result<()> {
        let doing = || format!("make {dir:?}");
        let container = zk::CreateMode::Container.with_acls(acls);
        match self.zk.mkdir(dir, &container).await {
            Err(zk::Error::Unimplemented) => {
                let persistent = zk::CreateMode::Persistent.with_acls(acls);
                self.zk.mkdir(dir, &persistent).await.map_err(failed(doing()))
            }
            made => made.map_err(failed(doing())),
        }
    }

    /// Whether a node is gone, or goes away within this time.
    pub(super) async fn ends_within(&self, path: &str, limit: Duration) -> Result<bool> {
        let looked = self.zk.check_and_watch_stat(path).await;
        let (stat, watcher) = looked.map_err(failed(format!("wait for {path:?}")))?;
        Ok(stat.is_none() || timeout(limit, watcher.changed()).await.is_ok())
    }

    /// Refuses a node that is named like that of a lock but is application data: no session owns
    /// it, so it is never removed, and a claim that waited for it would wait forever.
    ///
    /// The request is sent now.
    pub(super) fn refuse_data(
        &self,
        key: &Key,
        path: &str,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (stat, key, path) = (self.zk.check_stat(path), key.clone(), path.to_owned());
        async move {
            let stat = stat.await.map_err(failed(format!("look at {path:?}")))?;
            // A node that is gone blocks nobody.
            stat.map_or(Ok(()), |stat| refuse_unowned(&key, &path, &stat))
        }
    }

    /// Like [`refuse_data`](Session::refuse_data), for the nodes behind one that was just created.
    /// Numbers rise, so there are almost never any, unless another program chose a number itself.
    pub(super) async fn refuse_data_behind(
        &self,
        key: &Key,
        own: &OwnNode,
        queue: &[Node],
    ) -> Result<()> {
        let Some(at) = queue.iter().position(|node| node.name == own.name) else { return Ok(()) };
        let (dir, _) = own.path.rsplit_once('/').unwrap_or_default();
        self.refuse_data_in(key, dir, &queue[at + 1..]).await
    }

    /// Like [`refuse_data`](Session::refuse_data), for several nodes. The requests are sent
    /// together.
    pub(super) async fn refuse_data_in(&self, key: &Key, dir: &str, nodes: &[Node]) -> Result<()> {
        let all = nodes.iter().map(|node| self.refuse_data(key, &format!("{dir}/{}", node.name)));
        for one in all.collect::<Vec<_>>() {
            one.await?;
        }
        Ok(())
    }
}

/// Refuses a node that no session owns; see [`Session::refuse_data`].
pub(super) fn refuse_unowned(key: &Key, path: &str, stat: &zk::Stat) -> Result<()> {
    if owned_by_a_session(stat) {
        return Ok(());
    }
    let found = format!(
        "the node {path:?} is named like one of a lock, but no session owns it, so it is data of \
         something else; use another key, or delete it if nothing needs it"
    );
    Err(Error::Conflict { key: key.clone(), found })
}
