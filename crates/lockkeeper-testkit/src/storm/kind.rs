//! The kinds of locks that a storm uses.

/// What a key of the storm is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A mutex.
    Mutex,
    /// A mutex that its owner takes twice.
    Reentrant,
    /// A fair mutex.
    Fair,
    /// Readers and writers.
    ReadWrite,
    /// A semaphore of three, of which one or two are taken.
    Permits,
    /// Two mutexes at once.
    Multi,
    /// An election.
    Election,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] = [
        Kind::Mutex,
        Kind::Reentrant,
        Kind::Fair,
        Kind::ReadWrite,
        Kind::Permits,
        Kind::Multi,
        Kind::Election,
    ];

    /// How many permits there are.
    pub(crate) const LIMIT: u32 = 3;

    /// Its name on a command line, and the start of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Reentrant => "reentrant",
            Kind::Fair => "fair",
            Kind::ReadWrite => "read-write",
            Kind::Permits => "semaphore",
            Kind::Multi => "multi",
            Kind::Election => "election",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The key with this number.
    pub(super) fn key(self, prefix: &str, n: usize) -> String {
        match n {
            0 => format!("{prefix}{}", self.name()),
            n => format!("{prefix}{}-{n}", self.name()),
        }
    }

    /// How many keys a storm uses for this kind that is to use `count`.
    pub(super) fn count(self, count: usize) -> usize {
        // It takes two different ones.
        if self == Kind::Multi { count.max(2) } else { count }
    }
}
