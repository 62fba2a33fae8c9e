//! Redis: one server, servers that fail over by sentinels, servers that share the slots of a Cluster.

mod cluster;
mod data;
mod sentinels;
mod server;

pub use cluster::Cluster;
pub use data::with_data;
pub use sentinels::Sentinels;
pub use server::{DURABLE, Server, VOLATILE};
