//! Data of an application that is named like a node of a lock, and is none: no session owns it.
//!
//! Nobody ever takes such a node away, so a claim that waited for it would wait for ever.

use zookeeper_client as zk;

use super::error::failed;
use super::layout::Node;
use super::queue_node::Standing;
use super::session::Session;
use crate::error::{Error, Result};
use crate::key::Key;

/// Whether a node ends with a session, as all nodes of locks do.
///
/// Containers and nodes with a lifetime of their own have a mark where others have the session's id.
pub(super) fn owned_by_a_session(stat: &zk::Stat) -> bool {
    const CONTAINER: u64 = 1 << 63;
    const LIFETIME: u64 = 0xff_0000;
    let owner = stat.ephemeral_owner.cast_unsigned();
    owner != 0 && owner != CONTAINER && owner >> 40 != LIFETIME
}

impl Session {
    /// Refuses a node that is named like one of a lock and is data of an application.
    ///
    /// The request leaves now.
    pub(super) fn refuse_data(
        &self,
        key: &Key,
        path: &str,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (stat, key, path) = (self.zk.check_stat(path), key.clone(), path.to_owned());
        async move {
            let stat = stat.await.map_err(failed(format!("look at {path:?}")))?;
            // One that is gone stands in nobody's way.
            if stat.is_none_or(|stat| owned_by_a_session(&stat)) {
                return Ok(());
            }
            let found = format!(
                "the node {path:?} is named like one of a lock, but no session owns it, so it is data of \
                 something else; use another key, or delete it if nothing needs it"
            );
            Err(Error::Conflict { key, found })
        }
    }

    /// As [`refuse_data`](Session::refuse_data), for those behind a place that was taken just now. Numbers
    /// rise, so nearly always there is nobody yet, unless something chose a number by itself.
    pub(super) async fn refuse_data_behind(
        &self,
        key: &Key,
        own: &Standing,
        line: &[Node],
    ) -> Result<()> {
        let Some(at) = line.iter().position(|node| node.name == own.name) else { return Ok(()) };
        let (dir, _) = own.path.rsplit_once('/').unwrap_or_default();
        self.refuse_data_in(key, dir, &line[at + 1..]).await
    }

    /// As [`refuse_data`](Session::refuse_data), for several nodes. The requests leave together.
    pub(super) async fn refuse_data_in(&self, key: &Key, dir: &str, nodes: &[Node]) -> Result<()> {
        let all = nodes.iter().map(|node| self.refuse_data(key, &format!("{dir}/{}", node.name)));
        for one in all.collect::<Vec<_>>() {
            one.await?;
        }
        Ok(())
    }
}
