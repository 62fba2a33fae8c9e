//! What an engine promises, as data.

/// What an engine promises, as data: the core refuses by it, the conformance suite selects by it,
/// `lockkeeper explain` prints it, the README's table is made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
pub enum Reentrance {
    /// The client: re-entry costs no request, and works inside one client.
    Client,
    /// The store as well: another process with the same owner may enter too.
    Store,
}
