//! A grant: its nodes, and the watch on the first of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::sleep;
use zookeeper_client as zk;

use super::error::{ends_session, refused};
use super::layout::REVOKE;
use super::queue_node::OwnNode;
use super::session::Session;
use crate::core::clock::Moment;
use crate::engine::{Fence, Grant, Held, Request, Signal, YieldRequest};
use crate::engines::yield_signal::YieldSignal;
use crate::error::{Loss, Result};

/// How long the watch on a held lock pauses after an error.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(super) struct ZooKeeperHeld {
    /// The node that is watched.
    pub(super) node: OwnNode,
    /// All nodes of the grant.
    pub(super) paths: Vec<String>,
    pub(super) yielding: YieldSignal,
    /// The list of requests to give way.
    pub(super) list: String,
    /// The data of a node whose claim had to wait, to be written now that it is granted.
    pub(super) record: Option<Vec<u8>>,
}

impl ZooKeeperHeld {
    /// A grant for as long as a write that was sent after `asked` vouches for the session.
    pub(super) fn grant(
        self,
        request: &Request,
        fence: Fence,
        slots: Vec<u32>,
        asked: Moment,
    ) -> Result<Grant> {
        let ttl = request.ttl.min(self.node.session.vouched(&asked)?);
        Ok(Grant { slots, held: Arc::new(self), ..Grant::new(fence, ttl, asked) })
    }

    /// Resolves when the node is gone, and signals when the holder is asked to release it.
    async fn watch(self) -> Loss {
        let expired = || Loss::Disconnected("its session expired".to_owned());
        let OwnNode { session, path, .. } = &self.node;
        // Without overwriting an operator's request to release the lock.
        if let Some(record) = self.record
            && let Err(error) = session.zk.set_data(path, &record, Some(0)).await
        {
            tracing::debug!(%error, "cannot record since when a lock is held");
        }
        loop {
            // Without a connection, this waits for one.
            let looked = tokio::select! {
                () = session.over() => return expired(),
                looked = session.zk.get_and_watch_data(path) => looked,
            };
            match looked {
                Ok((data, _, watcher)) => {
                    if data == REVOKE {
                        self.yielding.request(request(session, &self.list, path).await);
                    }
                    watcher.changed().await;
                }
                Err(zk::Error::NoNode) => return Loss::Gone,
                Err(error) if ends_session(&error) => return expired(),
                Err(error) if refused(&error) => {
                    tracing::warn!(%error, "cannot watch a held lock; only renewals will detect its loss");
                    session.over().await;
                    return expired();
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot watch a held lock; trying again");
                    // A runtime that ends may have dropped the session's task before this one, which
                    // must let it go on.
                    yield_now().await;
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Who asks for the lock of this node, and why; nothing if the list does not say.
async fn request(session: &Session, list: &str, path: &str) -> YieldRequest {
    let (sync, read) = (session.zk.sync(list), session.zk.get_data(list));
    // A server that is behind would not have it. Curator does not write it.
    let _ = sync.await;
    let text = read.await.map_or_else(|_| Vec::new(), |(data, _)| data);
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().rev();
    let line = lines.find_map(|line| line.strip_prefix(path)?.strip_prefix('\t'));
    line.map(YieldRequest::parse).unwrap_or_default()
}

impl Held for ZooKeeperHeld {
    fn gone(&self) -> Option<Signal<Loss>> {
        Some(Box::pin(self.clone().watch()))
    }

    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        Some(self.yielding.requested())
    }
}
