//! Servers to run a storm against, with the faults that they can have.

mod database;
mod etcd;
mod file;
mod redis;
mod zookeeper;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::Fault;
use crate::server::{Mariadb, Postgres};

pub use database::Database;
pub use etcd::Etcd;
pub use file::Directory;
pub use redis::{OneRedis, RedisCluster, RedisSentinels, Redlock};
pub use zookeeper::Zookeeper;

/// Servers of one engine. They end when it is dropped.
pub trait Deployment: fmt::Debug + Send + Sync {
    /// The URL of a client.
    fn url(&self) -> String;

    /// The addresses of the hosts of the URL, which clients may reach through proxies. None if the
    /// servers tell clients their addresses themselves, or if there are no servers.
    fn hosts(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// The faults of the servers.
    fn faults(&self, ttl: Duration) -> Vec<Fault<'_>>;
}

/// The deployments that [`start`] knows.
pub const NAMES: [&str; 9] = [
    "file",
    "redis",
    "redis-sentinel",
    "redis-cluster",
    "redlock",
    "zookeeper",
    "etcd",
    "postgres",
    "mysql",
];

/// Starts the servers of this name; `None` if the name is unknown.
///
/// # Panics
/// When a server cannot be started, with its log, or with the Debian package that has it.
pub fn start(name: &str) -> Option<Box<dyn Deployment>> {
    Some(match name {
        "file" => Box::new(Directory::create()),
        "redis" => Box::new(OneRedis::start()),
        "redis-sentinel" => Box::new(RedisSentinels::start()),
        "redis-cluster" => Box::new(RedisCluster::start()),
        "redlock" => Box::new(Redlock::start()),
        "zookeeper" => Box::new(Zookeeper::start()),
        "etcd" => Box::new(Etcd::start()),
        "postgres" => Box::new(Database::new(Postgres::start(), "lease")),
        "mysql" => Box::new(Database::new(Mariadb::start(), "lease")),
        _ => return None,
    })
}
