//! A single server, a master behind sentinels, or a Cluster: the same calls for all.

use std::sync::Arc;

use redis::{Cmd, RedisResult, Value};

use super::cluster::Cluster;
use super::connection::{Call, Connection, Reply};
use super::subscriber::Subscription;

/// The servers that keep the locks.
#[derive(Debug)]
pub(in crate::engines) enum Topology {
    One(Arc<Connection>),
    Cluster(Box<Cluster>),
}

impl Topology {
    /// Calls a script at the server of the slot. On the wire after the first poll if there is a
    /// connection.
    pub(in crate::engines) async fn call(&self, slot: u16, call: &Call<'_>) -> RedisResult<Reply> {
        match self {
            Topology::One(connection) => connection.call(call).await,
            Topology::Cluster(cluster) => Box::pin(cluster.call(slot, call)).await,
        }
    }

    /// Whether a channel may be subscribed. Usually nobody had to wait, and this is known at once.
    pub(in crate::engines) fn may_listen(&self) -> bool {
        match self {
            Topology::One(connection) => connection.subscriber().is_connected(),
            Topology::Cluster(_) => true,
        }
    }

    /// Listens to a channel of a slot that is still subscribed for its next listener.
    pub(in crate::engines) async fn listen_at_once(
        &self,
        slot: u16,
        channel: &str,
        claim: &str,
    ) -> Option<Subscription> {
        match self {
            Topology::One(connection) => connection.subscriber().listen_at_once(channel, claim),
            Topology::Cluster(cluster) => {
                let owner = cluster.owner(slot).await.ok()?;
                owner.subscriber().listen_at_once(channel, claim)
            }
        }
    }

    /// Starts to listen to a channel of a slot: all messages, or those to this claim.
    ///
    /// # Cancel safety
    /// May be dropped at any await.
    pub(in crate::engines) async fn listen(
        &self,
        slot: u16,
        channel: String,
        shared: bool,
        claim: String,
        sharded: bool,
    ) -> RedisResult<Subscription> {
        let connection = match self {
            Topology::One(connection) => connection.clone(),
            Topology::Cluster(cluster) => cluster.owner(slot).await?,
        };
        connection.subscriber().listen(channel, shared, claim, sharded).await
    }

    /// Whether this client listens to a channel.
    pub(in crate::engines) async fn hears(&self, slot: u16, channel: &str) -> bool {
        match self {
            Topology::One(connection) => connection.subscriber().hears(channel),
            Topology::Cluster(cluster) => cluster
                .owner(slot)
                .await
                .is_ok_and(|connection| connection.subscriber().hears(channel)),
        }
    }

    /// Every server that keeps locks.
    pub(in crate::engines) async fn all(&self) -> RedisResult<Vec<Arc<Connection>>> {
        match self {
            Topology::One(connection) => Ok(vec![connection.clone()]),
            Topology::Cluster(cluster) => cluster.owners().await,
        }
    }

    /// Every server that may have keys.
    pub(in crate::engines) async fn keepers(&self) -> RedisResult<Vec<Arc<Connection>>> {
        match self {
            Topology::One(connection) => Ok(vec![connection.clone()]),
            Topology::Cluster(cluster) => cluster.keepers().await,
        }
    }

    /// The only server that keeps locks, unless there are several.
    pub(in crate::engines) fn only(&self) -> Option<&Arc<Connection>> {
        match self {
            Topology::One(connection) => Some(connection),
            Topology::Cluster(_) => None,
        }
    }

    /// Sends a command to any one of them.
    pub(in crate::engines) async fn any(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Topology::One(connection) => connection.command(command).await,
            Topology::Cluster(cluster) => cluster.owner(0).await?.command(command).await,
        }
    }

    /// Whether there is one server, to which no other can fail over.
    pub(in crate::engines) fn is_single_server(&self) -> bool {
        matches!(self, Topology::One(connection) if connection.is_single_server())
    }

    pub(in crate::engines) fn is_cluster(&self) -> bool {
        matches!(self, Topology::Cluster(_))
    }

    pub(in crate::engines) fn close(&self) {
        match self {
            Topology::One(connection) => connection.close(),
            Topology::Cluster(cluster) => cluster.close(),
        }
    }
}
