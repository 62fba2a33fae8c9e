//! Leadership for code without async.

use std::sync::Arc;
use std::time::Duration;

use super::{Guard, Room};
use crate::election::Leader;
use crate::engine::Fence;
use crate::error::{Loss, Result};
use crate::guard::Release;

/// An election that one can stand in or observe; see [`crate::Election`].
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

    /// Blocks until we lead.
    ///
    /// # Errors
    /// As [`crate::Election::campaign`].
    pub fn campaign(&self) -> Result<Term> {
        let term = self.room.wait(self.election.campaign())?;
        Ok(Term { guard: Guard::new(term.into_guard(), &self.room) })
    }

    /// Leads if nobody else does.
    ///
    /// # Errors
    /// As [`crate::Election::try_campaign`].
    pub fn try_campaign(&self) -> Result<Option<Term>> {
        let term = self.room.wait(self.election.try_campaign())?;
        Ok(term.map(|term| Term { guard: Guard::new(term.into_guard(), &self.room) }))
    }

    /// See [`crate::Election::observe`].
    pub fn observe(&self, every: Duration) -> Observer {
        Observer { observer: self.election.observe(every), room: self.room.clone() }
    }
}

/// A time of leadership; see [`crate::Term`].
#[derive(Debug)]
#[must_use = "leadership ends as soon as the term is dropped"]
pub struct Term {
    guard: Guard,
}

impl Term {
    /// The number of this term: higher than that of every term before it.
    pub fn number(&self) -> Fence {
        self.guard.fence()
    }

    /// Whether we still lead, by the clock at this very moment.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) with the reason.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Blocks until leadership is lost, at most so long; `None` when it was not.
    pub fn lost_within(&self, limit: Duration) -> Option<Loss> {
        self.guard.lost_within(limit)
    }

    /// The lock behind it.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Ends the term.
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn step_down(self) -> Result<Release> {
        self.guard.release()
    }
}

/// Follows an election; see [`crate::Observer`].
#[derive(Debug)]
pub struct Observer {
    observer: crate::Observer,
    room: Arc<Room>,
}

impl Observer {
    /// Blocks until the next change: at first who leads now, later who leads instead; `None` means nobody.
    ///
    /// # Errors
    /// As [`crate::Observer::next`].
    #[expect(clippy::should_implement_trait, reason = "it never ends, and it may fail")]
    pub fn next(&mut self) -> Result<Option<Leader>> {
        self.room.wait(self.observer.next())
    }
}
