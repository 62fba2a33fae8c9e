//! Waiting for another node to go away, or for permits to be released.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use zookeeper_client as zk;

use super::error::failed;
use super::layout::queue;
use super::queue_node::OwnNode;
use crate::error::Result;

/// What a claim waits for.
pub(super) struct Ahead {
    target: Target,
    /// Set once there is a watch. It outlives a dropped wait, so that asking again costs little.
    event: Option<Event>,
}

#[derive(Debug)]
enum Target {
    /// A node that blocks us.
    Node(String),
    /// A directory with more than this many permits.
    Permits(String, usize),
}

/// Resolves when it is worth asking again.
type Event = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl Ahead {
    pub(super) fn node(path: String) -> Self {
        Self { target: Target::Node(path), event: None }
    }

    /// Waits until a directory has at most this many nodes.
    pub(super) fn permits(dir: String, most: usize) -> Self {
        Self { target: Target::Permits(dir, most), event: None }
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

    pub(super) async fn wait(&mut self, own: Option<&OwnNode>) -> Result<()> {
        let Some(own) = own else { return Ok(()) };
        if self.event.is_none() {
            self.event = match &self.target {
                Target::Node(path) => end_of(path, own).await?,
                Target::Permits(dir, most) => change_in(dir, *most, own).await?,
            };
        }
        if let Some(event) = &mut self.event {
            event.await;
        }
        Ok(())
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

/// Resolves at the end of another node, or of our own; `None` if one of them is gone already.
async fn end_of(other: &str, own: &OwnNode) -> Result<Option<Event>> {
    let zk = &own.session.zk;
    // Reads the data too, because a request for a missing node leaves no watch behind.
    let theirs = zk.get_and_watch_data(other);
    let ours = zk.get_and_watch_data(&own.path);
    match (theirs.await, ours.await) {
        (Err(zk::Error::NoNode), _) | (_, Err(zk::Error::NoNode)) => Ok(None),
        (theirs, ours) => {
            let doing = || format!("wait for {other:?}");
            let (_, _, theirs) = theirs.map_err(failed(doing()))?;
            let (_, _, ours) = ours.map_err(failed(doing()))?;
            Ok(Some(either(theirs, ours)))
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
            _ = theirs.changed() => {}
            _ = ours.changed() => {}
        }
    })
}
