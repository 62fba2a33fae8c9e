//! Redis: a single server, servers with failover by sentinels, and a Cluster.

mod cluster;
mod data;
mod sentinels;
mod server;

pub use cluster::Cluster;
pub use data::with_data;
pub use sentinels::Sentinels;
pub use server::{DURABLE, Server, VOLATILE};
