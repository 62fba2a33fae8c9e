//! What an engine is: the contract for those who write one, and the types that it speaks in.

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
