//! Leader election for code without async.

use std::sync::Arc;
use std::time::Duration;

use super::{Guard, Room};
use crate::election::Leader;
use crate::engine::Fence;
use crate::error::{Loss, Result};
use crate::guard::Release;

/// An election in which you can stand as a candidate, or which you can observe; see
/// [`crate::Election`].
#[derive(Debug, Clone)]
pub struct Election {
    election: crate::Election,
    room: Arc<Room>,
}

impl Election {
    pub(super) fn new(election: crate::Election, room: &Arc<Room>) -> Self {
        Self { election, room: room.clone() }
    }

    /// See [`crate::Election::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.election = self.election.ttl(ttl);
        self
    }

    /// See [`crate::Election::note`].
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        self.election = self.election.note(note);
        self
    }

    /// Blocks until this candidate is the leader.
    ///
    /// # Errors
    /// Same as [`crate::Election::campaign`].
    pub fn campaign(&self) -> Result<Term> {
        let term = self.room.wait(self.election.campaign())?;
        Ok(Term { guard: Guard::new(term.into_guard(), &self.room) })
    }

    /// Becomes the leader if there is none. Returns `None` if there is one.
    ///
    /// # Errors
    /// Same as [`crate::Election::try_campaign`].
    pub fn try_campaign(&self) -> Result<Option<Term>> {
        let term = self.room.wait(self.election.try_campaign())?;
        Ok(term.map(|term| Term { guard: Guard::new(term.into_guard(), &self.room) }))
    }

    /// See [`crate::Election::observe`].
    pub fn observe(&self, every: Duration) -> Observer {
        Observer { observer: self.election.observe(every), room: self.room.clone() }
    }
}

/// One term of leadership; see [`crate::Term`].
#[derive(Debug)]
#[must_use = "leadership ends as soon as the term is dropped"]
pub struct Term {
    guard: Guard,
}

impl Term {
    /// The number of this term, higher than that of every earlier term.
    pub fn number(&self) -> Fence {
        self.guard.fence()
    }

    /// Checks whether this term still lasts, by the clock at this very moment.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) with the reason.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Blocks until leadership is lost, for at most `limit`. Returns `None` if it was not lost.
    pub fn lost_within(&self, limit: Duration) -> Option<Loss> {
        self.guard.lost_within(limit)
    }

    /// The guard of the underlying lock.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Ends the term.
    ///
    /// # Errors
    /// Same as [`crate::Guard::release`].
    pub fn step_down(self) -> Result<Release> {
        self.guard.release()
    }
}

/// Watches an election; see [`crate::Observer`].
#[derive(Debug)]
pub struct Observer {
    observer: crate::Observer,
    room: Arc<Room>,
}

impl Observer {
    /// Blocks until the next change. The first call returns the current leader, later calls the one
    /// that replaced it; `None` means that there is no leader.
    ///
    /// # Errors
    /// Same as [`crate::Observer::next`].
    #[expect(clippy::should_implement_trait, reason = "it never ends, and it may fail")]
    pub fn next(&mut self) -> Result<Option<Leader>> {
        self.room.wait(self.observer.next())
    }
}
