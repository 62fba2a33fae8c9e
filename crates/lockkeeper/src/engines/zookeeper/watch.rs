//! Listening: for the one ahead of us in line, and for what happens to our own node.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client as zk;

use super::error::{ends_session, failed, refused};
use super::queue_node::Standing;
use super::record::REVOKE;
use super::session::Session;
use crate::engines::yield_signal::YieldSignal;
use crate::error::{Loss, Result};

/// Resolves when it is worth asking again.
pub(super) type Alarm = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// Listens for the end of another node, and of our own: nothing else can change our turn.
///
/// `None` when the other one is gone already.
pub(super) async fn end_of(other: &str, own: &Standing) -> Result<Option<Alarm>> {
    let zk = &own.session.zk;
    // Asked for with its data, because a question after a node that is gone leaves no watch behind.
    let theirs = zk.get_and_watch_data(other);
    let ours = zk.get_and_watch_data(&own.path);
    let (theirs, ours) = match (theirs.await, ours.await) {
        (Err(zk::Error::NoNode), _) | (_, Err(zk::Error::NoNode)) => return Ok(None),
        (theirs, ours) => {
            let doing = || format!("wait for {other:?}");
            (theirs.map_err(failed(doing()))?.2, ours.map_err(failed(doing()))?.2)
        }
    };
    Ok(Some(Box::pin(async move {
        tokio::select! {
            _ = theirs.changed() => {}
            _ = ours.changed() => {}
        }
    })))
}

impl Session {
    /// Whether a node is gone, or goes within this time.
    pub(super) async fn ends_within(&self, path: &str, limit: Duration) -> Result<bool> {
        let looked = self.zk.check_and_watch_stat(path).await;
        let (stat, watcher) = looked.map_err(failed(format!("wait for {path:?}")))?;
        Ok(stat.is_none() || timeout(limit, watcher.changed()).await.is_ok())
    }
}

/// Listens for any change among the children of a directory, and for the end of our own node.
///
/// Answers with the children as they are now, too.
pub(super) async fn change_in(dir: &str, own: &Standing) -> Result<(Alarm, Vec<String>)> {
    let zk = &own.session.zk;
    let theirs = zk.list_and_watch_children(dir);
    let ours = zk.get_and_watch_data(&own.path);
    let doing = || format!("wait for a change in {dir:?}");
    let (children, theirs) = theirs.await.map_err(failed(doing()))?;
    let ours = ours.await.map_err(failed(doing()))?.2;
    let alarm = async move {
        tokio::select! {
            _ = theirs.changed() => {}
            _ = ours.changed() => {}
        }
    };
    Ok((Box::pin(alarm), children))
}

/// Watches over a node that is held: resolves when it is gone, and tells when its holder is asked to go.
///
/// First it writes what there is to say of a node that had to wait, unless somebody else wrote there.
pub(super) async fn watch_over(held: Standing, bell: YieldSignal, news: Option<Vec<u8>>) -> Loss {
    let expired = || Loss::Disconnected("its session expired".to_owned());
    if let Some(news) = news
        && let Err(error) = held.session.zk.set_data(&held.path, &news, Some(0)).await
    {
        tracing::debug!(%error, "it is not noted since when a lock is held");
    }
    loop {
        // While there is no connection, this waits for one: no need for a pause of our own.
        let looked = tokio::select! {
            () = held.session.over() => return expired(),
            looked = held.session.zk.get_and_watch_data(&held.path) => looked,
        };
        match looked {
            Ok((data, _, watcher)) => {
                if data == REVOKE {
                    bell.ring();
                }
                watcher.changed().await;
            }
            Err(zk::Error::NoNode) => return Loss::Gone,
            Err(error) if ends_session(&error) => return expired(),
            Err(error) if refused(&error) => {
                tracing::warn!(%error, "cannot watch a held lock; renewals watch over it alone");
                held.session.over().await;
                return expired();
            }
            Err(error) => tracing::debug!(%error, "cannot watch a held lock; trying again"),
        }
    }
}
