//! One server, the master that sentinels know, or a Cluster: the same calls for all.

use std::sync::Arc;

use redis::{Cmd, RedisResult, Value};

use super::cluster::Cluster;
use super::ear::Bell;
use super::link::{Call, Link, Reply};

/// Where the locks are.
#[derive(Debug)]
pub(super) enum Servers {
    One(Arc<Link>),
    Cluster(Box<Cluster>),
}

impl Servers {
    /// Calls a script where the slot is. On the wire after the first poll if there is a connection.
    pub(super) async fn call(&self, slot: u16, call: Call<'_>) -> RedisResult<Reply> {
        match self {
            Servers::One(link) => link.call(call).await,
            Servers::Cluster(cluster) => Box::pin(cluster.call(slot, call)).await,
        }
    }

    /// Begins to listen to a channel of a slot.
    ///
    /// # Cancel safety
    /// May be dropped at any await.
    pub(super) async fn listen(
        &self,
        slot: u16,
        channel: String,
        shared: bool,
        sharded: bool,
    ) -> RedisResult<Bell> {
        let link = match self {
            Servers::One(link) => link.clone(),
            Servers::Cluster(cluster) => cluster.owner(slot).await?,
        };
        link.ear().listen(channel, shared, sharded).await
    }

    /// Whether this client listens to a channel.
    pub(super) async fn hears(&self, slot: u16, channel: &str) -> bool {
        match self {
            Servers::One(link) => link.ear().hears(channel),
            Servers::Cluster(cluster) => {
                cluster.owner(slot).await.is_ok_and(|link| link.ear().hears(channel))
            }
        }
    }

    /// Every server that holds locks.
    pub(super) async fn all(&self) -> RedisResult<Vec<Arc<Link>>> {
        match self {
            Servers::One(link) => Ok(vec![link.clone()]),
            Servers::Cluster(cluster) => cluster.owners().await,
        }
    }

    /// Sends a command to any one of them.
    pub(super) async fn any(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Servers::One(link) => link.command(command).await,
            Servers::Cluster(cluster) => cluster.owner(0).await?.command(command).await,
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Servers::Cluster(_))
    }

    pub(super) fn close(&self) {
        match self {
            Servers::One(link) => link.close(),
            Servers::Cluster(cluster) => cluster.close(),
        }
    }
}
