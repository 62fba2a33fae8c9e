//! Waiting for another node to go away, or for permits to be released.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use zookeeper_client as zk;

use super::error::failed;
use super::layout::queue;
use super::nodes::refuse_unowned;
use super::queue_node::OwnNode;
use crate::error::{Error, Result};
use crate::key::Key;

/// What a claim waits for.
pub(super) struct Ahead {
    target: Target,
    /// Set once there is a watch. It outlives a dropped wait, so that asking again costs little.
    event: Option<Event>,
    /// Whether it is our turn as soon as that node is gone.
    is_last: bool,
}

#[derive(Debug)]
enum Target {
    /// A node that blocks us.
    Node(String),
    /// A directory with more than this many permits.
    Permits(String, usize),
}

/// Resolves when it is worth asking again, with whether the node that blocked us is gone.
type Event = Pin<Box<dyn Future<Output = bool> + Send + Sync>>;

impl Ahead {
    /// Waits for the end of a node, which is watched from now on.
    ///
    /// # Errors
    /// [`Error::Conflict`](crate::Error::Conflict) if it is application data, which would never go
    /// away.
    pub(super) async fn node(
        key: &Key,
        path: String,
        own: &OwnNode,
        is_last: bool,
    ) -> Result<Self> {
        let event = match end_of(key, &path, own).await {
            Err(error @ Error::Conflict { .. }) => return Err(error),
            // It is tried again, and reported, by the waiter.
            event => event.ok(),
        };
        Ok(Self { target: Target::Node(path), event, is_last })
    }

    /// Waits until a directory has at most this many nodes.
    pub(super) fn permits(dir: String, most: usize) -> Self {
        Self { target: Target::Permits(dir, most), event: None, is_last: false }
    }

    /// Whether the watched node and our own both still exist.
    pub(super) async fn is_unchanged(&self, own: Option<&OwnNode>) -> bool {
        let (Target::Node(other), Some(_), Some(own)) = (&self.target, &self.event, own) else {
            return false;
        };
        let other = own.session.zk.check_stat(other);
        let own = own.session.zk.check_stat(&own.path);
        matches!(other.await, Ok(Some(_))) && matches!(own.await, Ok(Some(_)))
    }

    /// Waits, and returns whether it must be our turn now, if our own node exists.
    pub(super) async fn wait(&mut self, key: &Key, own: Option<&OwnNode>) -> Result<bool> {
        let Some(own) = own else { return Ok(false) };
        if self.event.is_none() {
            self.event = match &self.target {
                Target::Node(path) => Some(end_of(key, path, own).await?),
                Target::Permits(dir, most) => change_in(dir, *most, own).await?,
            };
        }
        match &mut self.event {
            Some(event) => Ok(event.await && self.is_last),
            None => Ok(false),
        }
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

/// Resolves at the end of another node, or of our own.
async fn end_of(key: &Key, other: &str, own: &OwnNode) -> Result<Event> {
    let zk = &own.session.zk;
    // Reads the data too, because a request for a missing node leaves no watch behind.
    let theirs = zk.get_and_watch_data(other);
    let ours = zk.get_and_watch_data(&own.path);
    let gone = |theirs| Ok(Box::pin(std::future::ready(theirs)) as Event);
    match (theirs.await, ours.await) {
        (_, Err(zk::Error::NoNode)) => gone(false),
        (Err(zk::Error::NoNode), _) => gone(true),
        (theirs, ours) => {
            let doing = || format!("wait for {other:?}");
            let (_, stat, theirs) = theirs.map_err(failed(doing()))?;
            refuse_unowned(key, other, &stat)?;
            let (_, _, ours) = ours.map_err(failed(doing()))?;
            Ok(either(theirs, ours))
        }
    }
}

/// Resolves at any change in a directory, or at the end of our own node; `None` if there are few
/// enough already.
async fn change_in(dir: &str, most: usize, own: &OwnNode) -> Result<Option<Event>> {
    let zk = &own.session.zk;
    let theirs = zk.list_and_watch_children(dir);
    let ours = zk.get_and_watch_data(&own.path);
    let doing = || format!("wait for a change in {dir:?}");
    let (children, theirs) = theirs.await.map_err(failed(doing()))?;
    let (_, _, ours) = ours.await.map_err(failed(doing()))?;
    Ok((queue(&children).len() > most).then(|| either(theirs, ours)))
}

fn either(theirs: zk::OneshotWatcher, ours: zk::OneshotWatcher) -> Event {
    Box::pin(async move {
        tokio::select! {
            event = theirs.changed() => event.event_type == zk::EventType::NodeDeleted,
            _ = ours.changed() => false,
        }
    })
}
