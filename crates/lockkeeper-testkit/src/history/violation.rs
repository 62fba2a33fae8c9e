//! The violations that the checker reports, as data.

use std::fmt;
use std::time::Duration;

use super::{Access, Acquisition};

/// Something that never happens with a correct lock and a resource that checks fences.
#[derive(Debug, Clone, PartialEq)]
pub enum Violation {
    /// The resource accepted a fence lower than one that it had accepted before.
    StaleAccess {
        /// The access that should have been refused.
        access: Access,
        /// The highest fence before it.
        highest: u64,
    },
    /// The resource accepted one fence from two owners.
    SharedFence {
        /// The second owner's access.
        access: Access,
        /// The first owner.
        first: String,
    },
    /// A write was accepted that did not build on the write before it.
    LostUpdate {
        /// The write that overwrote.
        access: Access,
        /// The write that it did not know of.
        lost: u64,
    },
    /// Two grants have one fence.
    RepeatedFence(Box<[Acquisition; 2]>),
    /// A grant that was asked for after another was given does not have the higher fence.
    FenceOrder(Box<[Acquisition; 2]>),
    /// Two held at the same time what only one may hold.
    Overlap(Box<[Acquisition; 2]>),
    /// More permits were held than there are.
    TooManyPermits {
        /// The one that was too many.
        last: Box<Acquisition>,
        /// How many were held, with it.
        held: u32,
    },
    /// Two held one permit.
    SharedSlot(Box<[Acquisition; 2]>),
    /// The store granted the lock to the second before the first knew that it had lost it.
    LateSignal(Box<[Acquisition; 2]>),
    /// The first knew that it had lost the lock, but too shortly before the second was granted it.
    ThinMargin {
        /// The two.
        pair: Box<[Acquisition; 2]>,
        /// How long before.
        margin: Duration,
    },
    /// Others that began to wait later were granted a fair lock first.
    Overtaken {
        /// The one that waited, and the first that overtook it.
        pair: Box<[Acquisition; 2]>,
        /// How often it was overtaken.
        times: usize,
    },
    /// A holder that was evicted continued for longer than its lease.
    NotTold {
        /// The holder.
        holder: Box<Acquisition>,
        /// When it was evicted.
        evicted: Duration,
    },
    /// Something was left behind.
    Leak(String),
    /// A worker waited forever, or got an error that no fault explains.
    Surprise(String),
}

impl Violation {
    /// The grants that show it. For an access, the resource's log names the key and the owners.
    pub fn grants(&self) -> &[Acquisition] {
        match self {
            Violation::RepeatedFence(pair)
            | Violation::FenceOrder(pair)
            | Violation::Overlap(pair)
            | Violation::SharedSlot(pair)
            | Violation::LateSignal(pair)
            | Violation::ThinMargin { pair, .. }
            | Violation::Overtaken { pair, .. } => &pair[..],
            Violation::TooManyPermits { last, .. } => std::slice::from_ref(last),
            Violation::NotTold { holder, .. } => std::slice::from_ref(holder),
            Violation::StaleAccess { .. }
            | Violation::SharedFence { .. }
            | Violation::LostUpdate { .. }
            | Violation::Leak(_)
            | Violation::Surprise(_) => &[],
        }
    }

    /// The access that should not have been accepted.
    pub fn access(&self) -> Option<&Access> {
        match self {
            Violation::StaleAccess { access, .. }
            | Violation::SharedFence { access, .. }
            | Violation::LostUpdate { access, .. } => Some(access),
            _ => None,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::StaleAccess { access, highest } => {
                write!(f, "the resource accepted a stale fence after {highest}: {access}")
            }
            Violation::SharedFence { access, first } => {
                write!(f, "the resource knew this fence as {first}'s: {access}")
            }
            Violation::LostUpdate { access, lost } => {
                write!(f, "write {lost} was lost to one that did not know it: {access}")
            }
            Violation::RepeatedFence(pair) => pair_of(f, "two grants have one fence", pair),
            Violation::FenceOrder(pair) => {
                pair_of(f, "the later grant's fence is not higher", pair)
            }
            Violation::Overlap(pair) => pair_of(f, "two held at the same time", pair),
            Violation::TooManyPermits { last, held } => {
                write!(f, "{held} permits were held at the same time, the last by {last}")
            }
            Violation::SharedSlot(pair) => pair_of(f, "two held one permit", pair),
            Violation::LateSignal(pair) => {
                pair_of(f, "the second was granted before the first was signalled", pair)
            }
            Violation::ThinMargin { pair, margin } => {
                pair_of(f, &format!("the first was signalled only {margin:?} earlier"), pair)
            }
            Violation::Overtaken { pair, times } => {
                pair_of(f, &format!("overtaken {times} times at a fair lock"), pair)
            }
            Violation::NotTold { holder, evicted } => {
                write!(f, "evicted at {evicted:?}, it was not signalled in time: {holder}")
            }
            Violation::Leak(what) => write!(f, "left behind: {what}"),
            Violation::Surprise(what) => write!(f, "unexpected: {what}"),
        }
    }
}

fn pair_of(f: &mut fmt::Formatter<'_>, what: &str, pair: &[Acquisition; 2]) -> fmt::Result {
    write!(f, "{what}: {}; and {}", pair[0], pair[1])
}

impl fmt::Display for Acquisition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claimed = self.claimed();
        write!(f, "{} of {:?} by {}, fence {}", self.mode, self.key, self.owner, self.fence)?;
        if !self.slots.is_empty() {
            write!(f, ", slots {:?}", self.slots)?;
        }
        write!(f, ", asked {:?}", self.called)?;
        if let Some(admitted) = self.admitted {
            write!(f, ", let in {admitted:?}")?;
        }
        write!(f, ", held {:?} to ", claimed.start)?;
        match claimed.end {
            Duration::MAX => write!(f, "the end")?,
            end => write!(f, "{end:?}")?,
        }
        write!(f, " (lease {:?}, lost {:?}, release {:?})", self.ttl, self.lost, self.release)
    }
}
