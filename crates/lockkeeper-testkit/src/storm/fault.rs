//! The faults of a storm.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use crate::WallClock;

/// A fault of a client: of its process, or of its connections if they lead through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFault {
    /// The process is stopped for 0.5 to 3 leases, and continued.
    Stop,
    /// The process is killed, and another one started.
    Kill,
    /// All threads of its executor are blocked for 0.5 to 3 leases.
    Block,
    /// All acquires in progress are dropped.
    DropFutures,
    /// The wall clock of the process is wrong by up to an hour, for 0.5 to 3 leases.
    Clock,
    /// Its connections are reset.
    Reset,
    /// Its requests are held back for up to 1.5 leases.
    HoldRequests,
    /// The replies to it are held back for up to 1.5 leases.
    HoldReplies,
    /// A request takes effect, and its reply is lost; the connection breaks at once or up to 1.5
    /// leases later.
    SwallowReply,
    /// Everything takes 1 to 50 ms longer, each way, for up to 1.5 leases.
    Latency,
}

impl ClientFault {
    /// All of them.
    pub const ALL: [ClientFault; 10] = [
        ClientFault::Stop,
        ClientFault::Kill,
        ClientFault::Block,
        ClientFault::DropFutures,
        ClientFault::Clock,
        ClientFault::Reset,
        ClientFault::HoldRequests,
        ClientFault::HoldReplies,
        ClientFault::SwallowReply,
        ClientFault::Latency,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            ClientFault::Stop => "stop",
            ClientFault::Kill => "kill",
            ClientFault::Block => "block",
            ClientFault::DropFutures => "drop",
            ClientFault::Clock => "clock",
            ClientFault::Reset => "reset",
            ClientFault::HoldRequests => "hold-requests",
            ClientFault::HoldReplies => "hold-replies",
            ClientFault::SwallowReply => "swallow-reply",
            ClientFault::Latency => "latency",
        }
    }

    /// The fault with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// Whether it can be caused at all: a wall clock is replaced by a library that is compiled first,
    /// and loaded into a program that is linked dynamically.
    pub fn is_possible(self) -> bool {
        self != ClientFault::Clock
            || (!cfg!(target_feature = "crt-static") && WallClock::is_possible())
    }

    /// Whether it is over at once or soon: many of them leave time to work.
    pub fn is_brief(self) -> bool {
        matches!(self, ClientFault::DropFutures | ClientFault::Reset | ClientFault::SwallowReply)
    }

    /// Whether only a proxy can cause it.
    pub fn is_network(self) -> bool {
        use ClientFault::{HoldReplies, HoldRequests, Latency, Reset, SwallowReply};
        matches!(self, Reset | HoldRequests | HoldReplies | SwallowReply | Latency)
    }
}

/// A fault of the servers that is being caused.
pub(super) type Striking<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A fault of the servers, which ends when its future does.
pub struct Fault<'a> {
    pub(super) name: &'static str,
    pub(super) forgets: bool,
    pub(super) strike: Box<dyn FnMut() -> Striking<'a> + 'a>,
}

impl<'a> Fault<'a> {
    /// A fault by its name and what it does.
    pub fn new<F: Future<Output = ()> + 'a>(
        name: &'static str,
        mut strike: impl FnMut() -> F + 'a,
    ) -> Self {
        Self { name, forgets: false, strike: Box::new(move || Box::pin(strike())) }
    }

    /// A fault by which the store may forget locks: while it lasts, and for a lease after it, two
    /// clients may hold a lock.
    pub fn forgetful<F: Future<Output = ()> + 'a>(
        name: &'static str,
        strike: impl FnMut() -> F + 'a,
    ) -> Self {
        Self { forgets: true, ..Self::new(name, strike) }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fault({})", self.name)
    }
}

/// What a fault was done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The process with this number.
    Client(usize),
    /// The proxy with this number.
    Network(usize),
    /// The servers.
    Servers,
}

/// A fault that was caused.
#[derive(Debug, Clone, PartialEq)]
pub struct Struck {
    /// Its name.
    pub name: &'static str,
    /// What it was done to.
    pub target: Target,
    /// From when to when it lasted, by the machine's monotonic clock.
    pub time: Range<Duration>,
    /// Whether the store may forget locks by it.
    pub forgets: bool,
}
