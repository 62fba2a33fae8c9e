//! What an engine promises, as data.

use std::fmt;

/// What an engine promises, as data: the core refuses by it, the conformance suite selects by it,
/// `lockkeeper explain` prints it, the README's table is made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The engine's name.
    pub engine: &'static str,
    /// Readers together, writers alone.
    pub read_write: Support,
    /// A number of permits.
    pub semaphore: Support,
    /// How many permits of a semaphore one claim may take at once; 0 where there are no semaphores.
    pub most_permits: u32,
    /// In which order waiters are served.
    pub order: Order,
    /// Where fences come from.
    pub fence: FenceSource,
    /// How a dead holder is noticed.
    pub death: Death,
    /// How a waiter learns that it may be its turn.
    pub wakeup: Wakeup,
    /// Between whom it excludes.
    pub scope: Scope,
    /// Which failure of the store keeps exclusion.
    pub survives: Survives,
    /// Who counts an owner's holds.
    pub reentrance: Reentrance,
}

impl Guarantees {
    /// An engine that promises as little as possible; set the fields of what it does better.
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
        }
    }
}

/// Whether an engine does a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It does.
    Yes,
    /// It refuses, for this reason.
    No(&'static str),
}

/// In which order waiters of different processes are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Always first come, first served.
    Fifo,
    /// First come, first served with `fair()`, else by chance.
    FifoOnRequest,
    /// As the server queues them.
    Server,
    /// By chance; `fair()` is refused, for this reason.
    Chance(&'static str),
}

/// Where fences come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceSource {
    /// A counter in this process.
    Counter,
    /// The last fence plus one, or the store's clock if that is further.
    Hybrid,
    /// The store's own revision number.
    Revision,
    /// A counter that a majority agrees on.
    Quorum,
}

/// How a dead holder is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Death {
    /// Its lease runs out.
    Lease,
    /// Its session runs out.
    Session,
    /// The kernel or the server sees it end, at once. There is no lease.
    AtOnce,
}

/// How a waiter learns that it may be its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wakeup {
    /// Told inside the process.
    Notify,
    /// Woken by the kernel.
    Kernel,
    /// Told by the store.
    Push,
    /// Blocked in the server.
    Server,
    /// Asks again after a random delay.
    BackOff,
}

/// Between whom an engine excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scope {
    /// Tasks and threads of one process.
    Process,
    /// Processes of one machine.
    Machine,
    /// Whoever reaches the store.
    Network,
}

/// The worst failure of the store after which two holders are still impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Survives {
    /// There is no store apart from the process or machine that uses it.
    NothingApart,
    /// None: what a restart or failover forgets, somebody else may take.
    None,
    /// A restart, with its data on disk.
    Restart,
    /// The loss of any minority of its members.
    Minority,
}

/// Who counts the holds of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reentrance {
    /// The client: re-entry costs no request, and works inside one client.
    Client,
    /// The store as well: another process with the same owner may enter too.
    Store,
}

/// The words of the table that compares engines.
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
        Order::FifoOnRequest => "first come with `fair`",
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
