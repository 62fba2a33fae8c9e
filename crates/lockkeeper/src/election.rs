//! Leadership: a lock that one keeps.
//!
//! A term is a guard; its number is the fence, so whatever the leader touches can refuse a former one.

use std::future::Future;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::Client;
use crate::engine::Fence;
use crate::error::{Error, Loss, Result};
use crate::guard::{Guard, Release};
use crate::lock::Lock;
use crate::who::whoami;

/// An election that one can stand in or observe.
#[derive(Debug, Clone)]
pub struct Election {
    client: Client,
    name: String,
    lock: Lock,
}

impl Election {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        let lock = client.mutex(name).note(format!("candidate {}", whoami()));
        Self { client, name: name.to_owned(), lock }
    }

    /// How long a leader that died stays leader. Default 30 s; see [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// What to tell about this candidate. Default: who and where it is.
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        self.lock = self.lock.note(note);
        self
    }

    /// Waits until we lead.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// May be dropped at any time; we do not stand any more.
    pub async fn campaign(&self) -> Result<Term> {
        Ok(Term { guard: self.lock.clone().acquire().await? })
    }

    /// Leads if nobody else does.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// May be dropped at any time; we do not stand any more.
    pub async fn try_campaign(&self) -> Result<Option<Term>> {
        Ok(self.lock.clone().try_acquire().await?.map(|guard| Term { guard }))
    }

    /// Does work in every term that we win, until the work itself ends.
    ///
    /// Work that is interrupted by the loss of leadership is dropped, and we stand again.
    ///
    /// In a spawned task the work has to own what it uses (`async move`): the compiler cannot see yet
    /// that a closure that borrows, and is called more than once, may move between threads.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = lockkeeper::Client::connect("memory:").await?;
    /// let node = String::from("blue");
    /// let led = tokio::spawn(async move {
    ///     let election = client.election("scheduler");
    ///     election.lead(async move |term| format!("{node} leads term {}", term.number())).await
    /// });
    /// assert!(led.await??.starts_with("blue leads term "));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and steps down.
    pub async fn lead<T>(&self, mut work: impl AsyncFnMut(&Term) -> T) -> Result<T> {
        loop {
            let term = self.campaign().await?;
            tokio::select! {
                biased;
                reason = term.lost() => {
                    tracing::warn!(%reason, "leadership lost; standing again");
                }
                done = work(&term) => {
                    let _ = term.step_down().await;
                    return Ok(done);
                }
            }
        }
    }

    /// Follows who leads, without standing.
    ///
    /// Asks the engine at most once per `every`; it costs one inspection each time.
    pub fn observe(&self, every: Duration) -> Observer {
        Observer { client: self.client.clone(), name: self.name.clone(), every, last: None }
    }
}

/// A time of leadership.
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
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Resolves when leadership is lost; see [`Guard::lost`].
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static {
        self.guard.lost()
    }

    pub(crate) fn into_guard(self) -> Guard {
        self.guard
    }

    /// The lock behind it.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Ends the term.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn step_down(self) -> Result<Release> {
        self.guard.release().await
    }
}

/// Who leads, as an observer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The number of the term, where the engine can tell.
    pub term: Option<Fence>,
    /// `user@host pid`, where the engine can tell.
    pub who: Option<String>,
    /// What the candidate told about itself.
    pub note: Option<String>,
}

/// Follows an election.
#[derive(Debug)]
pub struct Observer {
    client: Client,
    name: String,
    every: Duration,
    last: Option<Option<Leader>>,
}

impl Observer {
    /// The next change: at first who leads now, later who leads instead; `None` means nobody.
    ///
    /// # Errors
    /// [`Error::Engine`] when the engine cannot tell; call it again to go on.
    ///
    /// # Cancel safety
    /// May be dropped at any time; no change that lasts is missed.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let snapshot = self.client.inspect(&self.name).await?;
            let holder = snapshot.and_then(|snapshot| snapshot.holders.into_iter().next());
            let leader =
                holder.map(|entry| Leader { term: entry.fence, who: entry.who, note: entry.note });
            if self.last.as_ref() != Some(&leader) {
                self.last = Some(leader.clone());
                return Ok(leader);
            }
            sleep(self.every).await;
        }
    }
}
