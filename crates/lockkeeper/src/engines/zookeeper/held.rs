//! What is held: the nodes of a grant, and the watch over the first of them.

use std::sync::Arc;

use zookeeper_client as zk;

use super::error::{ends_session, refused};
use super::layout::REVOKE;
use super::queue_node::OwnNode;
use crate::core::clock::Moment;
use crate::engine::{Fence, Grant, Held, Request, Signal};
use crate::engines::yield_signal::YieldSignal;
use crate::error::{Loss, Result};

#[derive(Debug, Clone)]
pub(super) struct ZooKeeperHeld {
    /// The node that is watched.
    pub(super) node: OwnNode,
    /// All nodes of the grant.
    pub(super) paths: Vec<String>,
    pub(super) yielding: YieldSignal,
    /// The data of a node whose claim had to wait, to be written now that it is let in.
    pub(super) record: Option<Vec<u8>>,
}

impl ZooKeeperHeld {
    /// A grant for as long as the session is vouched for by a write that left later than `asked`.
    pub(super) fn grant(
        self,
        request: &Request,
        fence: Fence,
        slots: Vec<u32>,
        asked: Moment,
    ) -> Result<Grant> {
        let ttl = request.ttl.min(self.node.session.vouched(&asked)?);
        Ok(Grant { fence, slots, ttl, since: asked, held: Arc::new(self) })
    }

    /// Resolves when the node is gone, and signals when its holder is asked to give way.
    async fn watch(self) -> Loss {
        let expired = || Loss::Disconnected("its session expired".to_owned());
        let OwnNode { session, path, .. } = &self.node;
        // Not over what an operator wrote there to ask us to give way.
        if let Some(record) = self.record
            && let Err(error) = session.zk.set_data(path, &record, Some(0)).await
        {
            tracing::debug!(%error, "it is not noted since when a lock is held");
        }
        loop {
            // While there is no connection, this waits for one: no need for a pause of our own.
            let looked = tokio::select! {
                () = session.over() => return expired(),
                looked = session.zk.get_and_watch_data(path) => looked,
            };
            match looked {
                Ok((data, _, watcher)) => {
                    if data == REVOKE {
                        self.yielding.ring();
                    }
                    watcher.changed().await;
                }
                Err(zk::Error::NoNode) => return Loss::Gone,
                Err(error) if ends_session(&error) => return expired(),
                Err(error) if refused(&error) => {
                    tracing::warn!(%error, "cannot watch a held lock; renewals watch over it alone");
                    session.over().await;
                    return expired();
                }
                Err(error) => tracing::debug!(%error, "cannot watch a held lock; trying again"),
            }
        }
    }
}

impl Held for ZooKeeperHeld {
    fn gone(&self) -> Option<Signal<Loss>> {
        Some(Box::pin(self.clone().watch()))
    }

    fn yield_requested(&self) -> Option<Signal> {
        Some(self.yielding.rung())
    }
}
