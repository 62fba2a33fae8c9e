//! All tests against real ZooKeeper servers.

#[cfg(feature = "zookeeper-tls")]
mod access;
mod conformance;
mod faults;
mod recipes;
mod storm;
