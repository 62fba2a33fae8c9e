//! Leader election: a lock that the leader keeps.
//!
//! A term is a guard, and its number is the fence, so a resource can reject a former leader.

use std::future::Future;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::Client;
use crate::engine::Fence;
use crate::error::{Error, Loss, Result};
use crate::guard::{Guard, Release};
use crate::lock::Lock;
use crate::who::whoami;

/// An election in which you can stand as a candidate, or which you can observe.
#[derive(Debug, Clone)]
pub struct Election {
    client: Client,
    name: String,
    lock: Lock,
}

impl Election {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        // Observers see a new term by the fence in the store.
        let lock = client.mutex(name).note(format!("candidate {}", whoami())).hand_over(false);
        Self { client, name: name.to_owned(), lock }
    }

    /// Sets how long a leader that has died stays leader. Default 30 s; see [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Sets the note that observers see for this candidate. Default: `candidate` and [`whoami`].
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        self.lock = self.lock.note(note);
        self
    }

    /// Waits until this candidate is the leader.
    ///
    /// # Errors
    /// Same as [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// May be dropped at any time; the candidacy is then withdrawn.
    pub async fn campaign(&self) -> Result<Term> {
        Ok(Term { guard: self.lock.clone().acquire().await? })
    }

    /// Becomes the leader if there is none. Returns `None` if there is one.
    ///
    /// # Errors
    /// Same as [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// May be dropped at any time; the candidacy is then withdrawn.
    pub async fn try_campaign(&self) -> Result<Option<Term>> {
        Ok(self.lock.clone().try_acquire().await?.map(|guard| Term { guard }))
    }

    /// Campaigns, runs work in every term won, and returns when the work ends.
    ///
    /// If leadership is lost, the work is dropped and the candidate campaigns again.
    ///
    /// In a spawned task, the work has to own what it uses (`async move`): the compiler cannot yet
    /// prove that a borrowing closure that is called more than once is `Send`.
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
    /// Same as [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and steps down.
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

    /// Watches who leads, without standing as a candidate.
    ///
    /// It inspects the lock at most once per `every`.
    pub fn observe(&self, every: Duration) -> Observer {
        Observer { client: self.client.clone(), name: self.name.clone(), every, last: None }
    }
}

/// One term of leadership, which ends when it is dropped.
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

    /// The guard of the underlying lock.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Ends the term.
    ///
    /// # Errors
    /// Same as [`Guard::release`].
    pub async fn step_down(self) -> Result<Release> {
        self.guard.release().await
    }
}

/// The current leader, as an observer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The number of the term, if the engine knows it.
    pub term: Option<Fence>,
    /// `user@host pid`, if the engine knows it.
    pub who: Option<String>,
    /// The note that the candidate set.
    pub note: Option<String>,
}

/// Watches an election; created by [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    client: Client,
    name: String,
    every: Duration,
    last: Option<Option<Leader>>,
}

impl Observer {
    /// Waits for the next change. The first call returns the current leader, later calls the one
    /// that replaced it; `None` means that there is no leader.
    ///
    /// # Errors
    /// [`Error::Engine`] if the engine cannot be queried; call it again to continue.
    ///
    /// # Cancel safety
    /// May be dropped at any time; a lasting change is never missed.
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
