//! What an engine is: the contract for writing one, and the types it uses.

mod contract;
mod guarantees;
mod inspect;
mod request;

pub use contract::{Claim, Engine, Grant, Held, Signal};
pub use guarantees::{
    Death, FenceSource, Guarantees, Order, Reentrance, Scope, Support, Survives, Wakeup,
};
pub use inspect::{Entry, Finding, Query, Severity, Snapshot};
pub use request::{Fence, Lease, Mode, Released, Renewal, Request};
