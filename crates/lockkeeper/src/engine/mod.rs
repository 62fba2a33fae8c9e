//! What an engine is: the contract for writing one, and the types it uses.

pub(crate) mod broken;
mod contract;
mod guarantees;
mod inspect;
mod request;
mod yielding;

pub use broken::{Break, Breaker, BrokenHold};
pub use contract::{Claim, Engine, Grant, Held, Signal};
pub use guarantees::{
    Death, FenceSource, Guarantees, Order, Reentrance, Scope, Support, Survives, Wakeup,
};
pub use inspect::{Entry, Finding, Query, Severity, Snapshot};
pub use request::{Fence, Lease, Mode, Released, Renewal, Request};
pub use yielding::YieldRequest;
