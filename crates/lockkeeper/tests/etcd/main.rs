//! All tests against real etcd servers.

mod access;
mod conformance;
mod faults;
mod interop;
mod replies;
mod storm;
mod waiting;

/// A busy machine is not a reason to elect another leader.
const PATIENT: [&str; 4] = ["--heartbeat-interval", "200", "--election-timeout", "2000"];
