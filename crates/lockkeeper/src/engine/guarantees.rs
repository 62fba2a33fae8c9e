//! What an engine promises, as data.

use std::fmt;

/// The promises of an engine, as data. The core refuses requests by it, the conformance suite
/// selects cases by it, `lockkeeper explain` prints it, and the table in the README is generated
/// from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The engine's name.
    pub engine: &'static str,
    /// Whether there are read-write locks.
    pub read_write: Support,
    /// Whether there are semaphores.
    pub semaphore: Support,
    /// How many permits of a semaphore one claim may take; 0 if there are no semaphores.
    pub most_permits: u32,
    /// The order in which waiters are served.
    pub order: Order,
    /// Where fences come from.
    pub fence: FenceSource,
    /// How the death of a holder is detected.
    pub death: Death,
    /// How a waiter learns that it may be its turn.
    pub wakeup: Wakeup,
    /// Which parties exclude each other.
    pub scope: Scope,
    /// The worst failure of the store that does not break exclusion.
    pub survives: Survives,
    /// Where the holds of an owner are counted.
    pub reentrance: Reentrance,
    /// Whether a grant can reserve fences, so that tasks of one client hand the lock over among
    /// themselves without the store.
    pub hand_over: Support,
    /// Whether a released lock can be [kept](crate::Lock::keep), to be acquired again without the
    /// store: its grants reserve fences, and a client that keeps a lock learns at once that another
    /// wants it.
    pub keep: Support,
}

impl Guarantees {
    /// An engine with the weakest promises; set the fields that differ.
    pub const fn new(engine: &'static str) -> Self {
        Self {
            engine,
            read_write: Support::No("this engine has mutexes only"),
            semaphore: Support::No("this engine has mutexes only"),
            most_permits: 0,
            order: Order::Chance("this engine keeps no order"),
            fence: FenceSource::Counter,
            death: Death::Lease,
            wakeup: Wakeup::BackOff,
            scope: Scope::Process,
            survives: Survives::None,
            reentrance: Reentrance::Client,
            hand_over: Support::No("its grants reserve no fences"),
            keep: Support::No("its grants reserve no fences"),
        }
    }
}

/// Whether an engine supports a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// Supported.
    Yes,
    /// Refused, for this reason.
    No(&'static str),
}

/// The order in which waiters of different processes are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Always first come, first served.
    Fifo,
    /// In the order in which the server queues them.
    Server,
    /// Unordered; `fair()` is refused, for this reason.
    Chance(&'static str),
}

/// Where fences come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceSource {
    /// A counter in this process.
    Counter,
    /// The last fence plus one, or the store's clock if that is higher.
    Hybrid,
    /// The store's own revision number.
    Revision,
    /// A counter that a majority agrees on.
    Quorum,
}

/// How the death of a holder is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Death {
    /// Its lease expires.
    Lease,
    /// Its session expires.
    Session,
    /// The kernel or the server sees it end, at once. There is no lease.
    AtOnce,
}

/// How a waiter learns that it may be its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wakeup {
    /// Notified inside the process.
    Notify,
    /// Woken by the kernel.
    Kernel,
    /// Notified by the store.
    Push,
    /// Blocked in the server.
    Server,
    /// Polls after a random delay.
    BackOff,
}

/// Which parties exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scope {
    /// Tasks and threads of one process.
    Process,
    /// Processes of one machine.
    Machine,
    /// All clients that reach the store.
    Network,
}

/// The worst failure of the store after which two holders are still impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Survives {
    /// There is no store apart from the process or machine that uses it.
    NothingApart,
    /// None: a lock that is lost in a restart or failover may be granted to another client.
    None,
    /// A restart, with its data on disk.
    Restart,
    /// The loss of any minority of its members.
    Minority,
}

/// Where the holds of one owner are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reentrance {
    /// In the client: re-entry costs no request, and works inside one client.
    Client,
    /// In the store as well: another process with the same owner may re-enter too.
    Store,
}

/// The terms in the table that compares engines.
macro_rules! words {
    ($($name:ident { $($variant:pat => $word:literal,)* })*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($variant => $word,)* })
            }
        }
    )*};
}

words! {
    Order {
        Order::Fifo => "first come",
        Order::Server => "the server's",
        Order::Chance(_) => "chance",
    }
    FenceSource {
        FenceSource::Counter => "counter",
        FenceSource::Hybrid => "hybrid counter",
        FenceSource::Revision => "revision",
        FenceSource::Quorum => "quorum counter",
    }
    Death {
        Death::Lease => "lease runs out",
        Death::Session => "session runs out",
        Death::AtOnce => "noticed at once",
    }
    Wakeup {
        Wakeup::Notify => "notify",
        Wakeup::Kernel => "kernel",
        Wakeup::Push => "push",
        Wakeup::Server => "server",
        Wakeup::BackOff => "back-off",
    }
    Scope {
        Scope::Process => "one process",
        Scope::Machine => "one machine",
        Scope::Network => "all machines",
    }
    Survives {
        Survives::NothingApart => "(no store apart)",
        Survives::None => "no failure",
        Survives::Restart => "restart",
        Survives::Minority => "loss of a minority",
    }
    Reentrance {
        Reentrance::Client => "in the client",
        Reentrance::Store => "in the store",
    }
}
