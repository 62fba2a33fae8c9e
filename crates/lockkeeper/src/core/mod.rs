//! The hard parts of locks, written once for all engines.

pub(crate) mod acquire;
pub mod admission;
pub(crate) mod answers;
pub(crate) mod backoff;
mod broken;
pub mod clock;
pub(crate) mod count;
mod hand_over;
pub(crate) mod hold;
pub(crate) mod inner;
mod keep;
pub(crate) mod local_queue;
mod loss;
pub(crate) mod outage;
pub(crate) mod platform;
pub(crate) mod release;
pub(crate) mod renewal;
pub(crate) mod telemetry;
mod tenure;
pub(crate) mod terms;

pub use backoff::Backoff;
pub use outage::{Outage, Outages};
