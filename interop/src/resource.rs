//! What a lock protects, and the record of its use.
//!
//! To enter is to read, and to leave is to write on top of that. It counts the updates that were lost
//! by this, and what would have been lost if it had refused fences that are lower than one it has
//! seen.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How many permits a semaphore of these tests has. Every driver knows it.
pub(crate) const PERMITS: usize = 3;

/// The record of one name.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// Sections of ours and of theirs.
    pub(crate) ours: usize,
    pub(crate) theirs: usize,
    /// All violations.
    pub(crate) wrongs: Vec<Wrong>,
    /// The failures of drivers that continue after them.
    pub(crate) troubles: Vec<Trouble>,
    /// The time from each leave to an enter of the other side.
    pub(crate) hand_offs: Vec<Duration>,
    /// How many had a fence.
    pub(crate) fenced: usize,
    /// How many updates were written, and how many of these were overwritten by one that did not
    /// know them.
    pub(crate) written: u64,
    pub(crate) lost: u64,
    /// How many updates their fence would have stopped, and how many would have been lost all the
    /// same.
    pub(crate) refused: u64,
    pub(crate) lost_fenced: u64,
}

impl Tally {
    /// How often a client was let in beside another one.
    pub(crate) fn overlaps(&self) -> usize {
        self.wrongs.iter().filter(|wrong| !wrong.sides.is_empty()).count()
    }
}

/// A violation.
#[derive(Debug, Clone)]
pub(crate) struct Wrong {
    pub(crate) at: Instant,
    /// Which sides overlapped, the newcomer first; empty if it is about fences.
    pub(crate) sides: Vec<Side>,
    pub(crate) text: String,
}

/// A call that failed.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) at: Instant,
    pub(crate) side: Side,
    /// `lost`, `twice` or `failed`.
    pub(crate) what: String,
    pub(crate) text: String,
}

#[derive(Debug, Default)]
pub(crate) struct Resource {
    pub(crate) inside: Vec<Visit>,
    /// When each client last entered.
    pub(crate) entered: HashMap<usize, (Side, Instant)>,
    left: Option<(Side, Instant)>,
    fence: u64,
    /// The number of the last update, and of the last one that a fence did not stop.
    values: [u64; 2],
    pub(crate) tally: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Theirs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Permit,
}

#[derive(Debug, Clone)]
pub(crate) struct Visit {
    /// Which connection it came over.
    client: usize,
    side: Side,
    mode: Mode,
    fence: u64,
    /// The values that it found.
    saw: [u64; 2],
}

impl Resource {
    pub(crate) fn enter(&mut self, client: usize, side: Side, mode: Mode, fence: u64) {
        let visit = Visit { client, side, mode, fence, saw: self.values };
        let (tally, at) = (&mut self.tally, Instant::now());
        let clash = match visit.mode {
            Mode::Permit => self.inside.len() >= PERMITS,
            mode => self
                .inside
                .iter()
                .any(|other| mode == Mode::Exclusive || other.mode == Mode::Exclusive),
        };
        if clash {
            let text = format!("{visit:?} was let in beside {:?}", self.inside);
            let inside = self.inside.iter().map(|other| other.side);
            let sides = [visit.side].into_iter().chain(inside).collect();
            tally.wrongs.push(Wrong { at, sides, text });
        }
        // A reader carries the fence of the last writer, and a permit may be held next to others.
        if fence > 0 && visit.mode == Mode::Exclusive {
            if fence <= self.fence {
                let text = format!("fence {fence} came after {}", self.fence);
                tally.wrongs.push(Wrong { at, sides: Vec::new(), text });
            }
            self.fence = self.fence.max(fence);
            tally.fenced += 1;
        }
        match visit.side {
            Side::Ours => tally.ours += 1,
            Side::Theirs => tally.theirs += 1,
        }
        if let Some((side, at)) = self.left
            && side != visit.side
        {
            tally.hand_offs.push(at.elapsed());
        }
        self.left = None;
        self.entered.insert(visit.client, (visit.side, at));
        self.inside.push(visit);
    }

    pub(crate) fn write(&mut self, client: usize) {
        let Some(visit) = self.inside.iter().find(|visit| visit.client == client) else { return };
        let [value, fenced] = &mut self.values;
        self.tally.written += 1;
        self.tally.lost += *value - visit.saw[0];
        *value += 1;
        if visit.fence > 0 && visit.fence < self.fence {
            self.tally.refused += 1;
        } else {
            self.tally.lost_fenced += *fenced - visit.saw[1];
            *fenced += 1;
        }
    }

    pub(crate) fn leave(&mut self, client: usize) {
        if let Some(at) = self.inside.iter().position(|visit| visit.client == client) {
            let visit = self.inside.swap_remove(at);
            self.left = Some((visit.side, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(visits: &[(usize, Mode, u64)]) -> Resource {
        let mut resource = Resource::default();
        for (client, mode, fence) in visits {
            resource.enter(*client, Side::Ours, *mode, *fence);
        }
        resource
    }

    #[test]
    fn two_inside_are_noticed_unless_both_only_share() {
        use Mode::{Exclusive, Permit, Shared};
        for (first, second, wrongs) in [
            (Exclusive, Exclusive, 1),
            (Exclusive, Shared, 1),
            (Shared, Exclusive, 1),
            (Shared, Shared, 0),
            (Permit, Permit, 0),
        ] {
            let tally = resource(&[(1, first, 0), (2, second, 0)]).tally;
            assert_eq!(tally.wrongs.len(), wrongs, "{first:?} {second:?}");
        }
        let visits = [1, 2, 3, 4].map(|client| (client, Permit, 0));
        assert_eq!(resource(&visits[..PERMITS]).tally.wrongs.len(), 0);
        assert_eq!(resource(&visits).tally.wrongs.len(), 1);
    }

    #[test]
    fn one_after_the_other_is_right_and_a_fence_that_does_not_rise_is_wrong() {
        let mut resource = Resource::default();
        for (client, fence, wrongs) in [(1, 5, 0), (2, 6, 0), (1, 6, 1), (2, 0, 1), (1, 4, 2)] {
            resource.enter(client, Side::Theirs, Mode::Exclusive, fence);
            resource.leave(client);
            assert_eq!(resource.tally.wrongs.len(), wrongs, "{:?}", resource.tally.wrongs);
        }
        assert_eq!((resource.tally.theirs, resource.tally.fenced), (5, 4));
    }

    #[test]
    fn a_stale_write_loses_updates_unless_its_fence_stops_it() {
        for (fences, wanted) in [([0, 0, 0], (2, 0, 2)), ([4, 5, 6], (2, 1, 0))] {
            let mut resource = Resource::default();
            resource.enter(0, Side::Theirs, Mode::Exclusive, fences[0]);
            for client in [1, 2] {
                resource.enter(client, Side::Theirs, Mode::Exclusive, fences[client]);
                resource.write(client);
                resource.leave(client);
            }
            resource.write(0);
            let tally = resource.tally;
            assert_eq!(tally.written, 3);
            assert_eq!((tally.lost, tally.refused, tally.lost_fenced), wanted, "{fences:?}");
        }
    }

    #[test]
    fn hand_offs_count_between_the_sides_only() {
        let mut resource = Resource::default();
        for (client, side) in [(1, Side::Ours), (2, Side::Ours), (3, Side::Theirs), (1, Side::Ours)]
        {
            resource.enter(client, side, Mode::Exclusive, 0);
            resource.leave(client);
        }
        assert_eq!(resource.tally.hand_offs.len(), 2);
    }
}
