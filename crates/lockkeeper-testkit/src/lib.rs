//! The test kit of lockkeeper, for its own engines and for those written elsewhere.
//!
//! - [`conformance!`] runs every case against an engine; one line is all that an engine needs.
//! - [`FaultLink`](fault_link::FaultLink) cuts one client off, hangs its calls or swallows replies.
//! - [`Holder`](holder::Holder) is a process of its own that holds a lock, to be stopped and killed.
//! - [`Proxy`](proxy::Proxy) breaks a connection as networks do.
//! - [`server`] starts real servers on free ports, to be paused, killed and restarted.
//! - [`ports`] finds ports for servers that are killed and started again.
//! - [`Load`](load::Load) lets many take a few locks again and again while servers are hurt.
//! - [`storm`] does the same with processes that are stopped and killed, and with all kinds of locks.
//! - [`certificates()`] makes certificates for tests of TLS.
//! - [`history`] records who held what and when, and says what must not have happened.
//! - [`simulation`] lets whole worlds happen in paused time, each decided by a seed;
//!   [`bugs`] are there to see that it would find them.

pub mod bugs;
mod certificates;
pub mod conformance;
pub mod fault_link;
pub mod history;
pub mod holder;
pub mod load;
pub mod poll;
pub mod ports;
pub mod proxy;
pub mod server;
pub mod simulation;
pub mod storm;

pub use certificates::certificates;
