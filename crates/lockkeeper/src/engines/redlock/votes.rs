//! The votes of one round, and when enough servers have answered.
//!
//! An exclusive lock needs a majority. A reader needs a majority with the same counter, because it
//! will carry that counter as its fence, and so will readers that join it. So a writer that finds
//! the counters different waits for all servers, and sets them to the same value.

use crate::engine::Mode;
use crate::error::Error;

use super::node::Vote;

/// The votes of one round.
#[derive(Debug)]
pub(super) struct Votes {
    pub(super) majority: usize,
    /// The counters of the servers that granted the lock; 0 if there was none.
    pub(super) fences: Vec<Option<u64>>,
    /// The latest clock of a server without a counter.
    clock: u64,
    /// The servers that certainly did not grant it.
    pub(super) others: Vec<usize>,
    /// What some of those found instead.
    refused: Vec<Error>,
    pub(super) silent: Vec<(usize, Error)>,
}

impl Votes {
    pub(super) fn new(servers: usize, majority: usize) -> Self {
        Self {
            majority,
            fences: vec![None; servers],
            clock: 0,
            others: Vec::new(),
            refused: Vec::new(),
            silent: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, server: usize, vote: Vote) {
        match vote {
            Vote::Granted(told) => {
                self.fences[server] = Some(told.fence);
                self.clock = self.clock.max(told.clock);
            }
            Vote::Busy => self.others.push(server),
            Vote::Refused(error) => {
                self.others.push(server);
                self.refused.push(error);
            }
            Vote::Silent(error) => self.silent.push((server, error)),
        }
    }

    /// Whether further votes would change nothing.
    pub(super) fn is_over(&self, mode: Mode) -> bool {
        let is_decided = match mode {
            Mode::Read => self.most() + self.open() < self.majority,
            Mode::Write => self.open() == 0,
            _ => true,
        };
        self.is_lost() || self.is_won() && (is_decided || self.agreed().is_some())
    }

    pub(super) fn is_won(&self) -> bool {
        self.given() >= self.majority
    }

    fn is_lost(&self) -> bool {
        self.given() + self.open() < self.majority
    }

    /// Whether so few answered that the result is unknown.
    pub(super) fn is_unknown(&self) -> bool {
        self.fences.len() - self.silent.len() < self.majority
    }

    /// Why no majority can grant the lock, whoever releases it. If only a few servers found
    /// something else, a release in progress may not have reached them yet: then the lock is busy.
    pub(super) fn refusal(&mut self) -> Option<Error> {
        let is_final = self.refused.len() > self.fences.len() - self.majority;
        self.refused.pop().filter(|_| is_final)
    }

    /// The counter that a majority has.
    pub(super) fn agreed(&self) -> Option<u64> {
        let counters = self.fences.iter().flatten().copied();
        counters.into_iter().find(|fence| *fence > 0 && self.count(*fence) >= self.majority)
    }

    /// How many servers have this counter.
    pub(super) fn count(&self, fence: u64) -> usize {
        self.fences.iter().filter(|there| **there == Some(fence)).count()
    }

    /// A fence that is not below any counter, nor below the clock of a server that has no counter.
    pub(super) fn highest(&self) -> u64 {
        self.fences.iter().flatten().copied().max().unwrap_or(0).max(self.clock)
    }

    /// How many servers granted the lock.
    pub(super) fn given(&self) -> usize {
        self.fences.iter().flatten().count()
    }

    fn open(&self) -> usize {
        self.fences.len() - self.given() - self.others.len() - self.silent.len()
    }

    /// How many servers have the most frequent counter.
    fn most(&self) -> usize {
        let counters = self.fences.iter().flatten().filter(|fence| **fence > 0);
        counters.map(|fence| self.count(*fence)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::redlock::rw_claim::Counter;

    /// The votes of five servers so far; 0 is a server without a counter.
    fn votes(counters: &[u64]) -> Votes {
        let mut votes = Votes::new(5, 3);
        for (server, fence) in counters.iter().enumerate() {
            let clock = if *fence == 0 { 100 + server as u64 } else { 0 };
            votes.add(server, Vote::Granted(Counter { fence: *fence, clock }));
        }
        votes
    }

    #[test]
    fn a_reader_waits_for_more_votes_as_long_as_a_majority_may_have_one_counter() {
        for (counters, agreed, is_over) in [
            (&[7, 7][..], None, false),
            (&[7, 7, 7], Some(7), true),
            // A single server that is ahead does not matter if the others agree.
            (&[7, 9, 7], None, false),
            (&[7, 9, 7, 7], Some(7), true),
            // Agreement is impossible: some counters have to be raised.
            (&[7, 9, 8], None, false),
            (&[7, 9, 8, 6], None, true),
            // Servers without counters do not agree.
            (&[0, 0, 0], None, true),
            (&[0, 7, 7], None, false),
            (&[0, 7, 7, 7], Some(7), true),
        ] {
            let votes = votes(counters);
            let found = (votes.agreed(), votes.is_over(Mode::Read));
            assert_eq!(found, (agreed, is_over), "{counters:?}");
            assert_eq!(votes.is_over(Mode::Mutex), counters.len() >= 3, "{counters:?}");
            assert_eq!(votes.is_over(Mode::Write), agreed.is_some(), "{counters:?}");
        }
    }

    #[test]
    fn a_writer_waits_for_all_votes_when_the_counters_differ() {
        let mut votes = votes(&[7, 9, 8, 7]);
        assert!(!votes.is_over(Mode::Write));
        votes.add(4, Vote::Silent(Error::Config("it is silent".to_owned())));
        assert!(votes.is_over(Mode::Write));
    }

    #[test]
    fn what_a_few_found_instead_is_no_conflict() {
        let foreign = || Vote::Refused(Error::Config("something else is there".to_owned()));
        for (refusals, is_refused) in [(1, false), (2, false), (3, true)] {
            let mut votes = Votes::new(5, 3);
            for server in 0..3 {
                votes.add(server, if server < refusals { foreign() } else { Vote::Busy });
            }
            assert!(votes.is_over(Mode::Read) && !votes.is_unknown());
            assert_eq!(votes.refusal().is_some(), is_refused, "{refusals} of five");
        }
    }

    #[test]
    fn a_clock_counts_where_there_is_no_counter() {
        assert_eq!(votes(&[7, 9, 7]).highest(), 9);
        assert_eq!(votes(&[7, 0, 7]).highest(), 101);
    }
}
