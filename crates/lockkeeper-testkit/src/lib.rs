//! The test kit of lockkeeper, for its own engines and for those written elsewhere.
//!
//! - [`conformance!`] runs every case against an engine; an engine needs only one line.
//! - [`FaultLink`](fault_link::FaultLink) disconnects one client, hangs its calls or drops replies.
//! - [`Holder`](holder::Holder) is a separate process that holds a lock, to be stopped and killed.
//! - [`Proxy`](proxy::Proxy) breaks a connection as networks do.
//! - [`server`] starts real servers on free ports, to be paused, killed and restarted.
//! - [`ports`] finds ports for servers that are killed and started again.
//! - [`Load`](load::Load) runs many workers on a few locks while servers fail.
//! - [`storm`] does the same with processes that are stopped and killed, and with all kinds of
//!   locks.
//! - [`WallClock`] sets the clock of a process.
//! - [`certificates()`] creates certificates for tests of TLS.
//! - [`HandOffs`](hand_offs::HandOffs) measures how long a lock takes from one holder to the next.
//! - [`history`] records who held what and when, and reports violations.
//! - [`simulation`] runs whole systems in paused time, each determined by a seed; [`bugs`] verify
//!   that it would find them.

pub mod bugs;
mod certificates;
pub mod conformance;
pub mod fault_link;
pub mod hand_offs;
pub mod history;
pub mod holder;
pub mod load;
pub mod poll;
pub mod ports;
pub mod proxy;
pub mod server;
pub mod simulation;
pub mod storm;
mod wall_clock;

pub use certificates::certificates;
pub use wall_clock::WallClock;
