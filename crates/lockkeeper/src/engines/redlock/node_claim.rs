//! One claim's part at one server: what was requested there, and what is held.
//!
//! Easy to get wrong: the steps of a claim at one server happen in order, even if an earlier one is
//! no longer awaited. So the state is locked for every step. Only a release is sent without the
//! lock, because nothing later may overtake it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::rw_claim::{Counter, RwClaim};
use crate::core::clock::Clock;
use crate::engine::{Claim, Mode, Released, Request};
use crate::engines::redis::Store;
use crate::engines::redis::claim::RedisClaim;
use crate::error::Result;

/// One claim's part at one server.
#[derive(Debug)]
pub(super) struct NodeClaim {
    pub(super) request: Request,
    pub(super) state: tokio::sync::Mutex<State>,
    /// Whether a renewal is acquiring the lock here at this moment.
    pub(super) retaking: AtomicBool,
    /// The counter in the server's last answer. It does not change while we hold as a reader.
    counter: AtomicU64,
}

/// What a claim requested from a server, and what it holds there.
#[derive(Debug)]
pub(super) struct State {
    pub(super) part: Part,
    /// Whether nothing was requested since everything was last released.
    pub(super) clean: bool,
    pub(super) held: bool,
    /// Whether the claim has ended, and nothing may be acquired in its name.
    pub(super) closed: bool,
}

/// How a claim is made at a server: mutexes are those of the Redis engine.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a mutex is the common kind: a box would be an allocation per server and claim"
)]
pub(super) enum Part {
    Mutex(RedisClaim),
    ReadWrite(RwClaim),
}

impl NodeClaim {
    /// A claim that has requested nothing yet. A writer's wish lasts for `wish` beyond each
    /// attempt.
    pub(super) fn new(store: &Arc<Store>, request: &Request, wish: Duration) -> Self {
        // A lock here belongs to one claim, whatever its owner, and there is no queue. No server
        // reserves fences: a majority decides about each.
        let queue = request.queue && request.mode == Mode::Write;
        let request = Request { fair: false, owner: None, queue, reserve: 0, ..request.clone() };
        let (store, wanted) = (store.clone(), request.clone());
        let part = match request.mode {
            Mode::Read | Mode::Write => Part::ReadWrite(RwClaim::new(store, wanted, wish)),
            _ => Part::Mutex(RedisClaim::new(store, wanted)),
        };
        let state = State { part, clean: true, held: false, closed: false };
        Self {
            request,
            state: tokio::sync::Mutex::new(state),
            retaking: AtomicBool::new(false),
            counter: AtomicU64::new(0),
        }
    }

    /// Records the counter that the server returned.
    pub(super) fn note_counter(&self, counter: u64) {
        self.counter.store(counter, Ordering::SeqCst);
    }

    /// Whether the server has this counter, which does not change while we hold there.
    pub(super) fn agrees(&self, fence: u64) -> bool {
        self.counter.load(Ordering::SeqCst) == fence
    }
}

impl Part {
    /// A part of unknown state: it may have left something at the server.
    pub(super) fn unsure(store: Arc<Store>, request: Request) -> Self {
        match request.mode {
            Mode::Read | Mode::Write => Part::ReadWrite(RwClaim::unsure(store, request)),
            _ => Part::Mutex(RedisClaim::unsure(store, request)),
        }
    }

    pub(super) async fn attempt(&mut self, fence: Option<u64>) -> Result<Option<Counter>> {
        match self {
            Part::Mutex(claim) => {
                // Nothing counts from this moment: the quorum makes the grant.
                let granted = claim.attempt(Clock::System.now()).await?;
                Ok(granted.map(|grant| Counter { fence: grant.fence.get(), clock: 0 }))
            }
            Part::ReadWrite(claim) => claim.attempt(fence).await,
        }
    }

    pub(super) async fn release(&mut self) -> Result<Released> {
        match self {
            Part::Mutex(claim) => claim.release().await,
            Part::ReadWrite(claim) => claim.release().await,
        }
    }
}

impl State {
    /// Records that everything was released; true if the lock was held.
    pub(super) fn cleared(&mut self) -> bool {
        self.clean = true;
        std::mem::take(&mut self.held)
    }
}
