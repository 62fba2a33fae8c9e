//! One claim's part at one server: what was asked there, and what is held.
//!
//! Easy to get wrong: a claim's steps on one server happen in their order, also when nobody waits for an
//! earlier one any more. So the state is locked for every step; only a release is sent ahead, because
//! nothing later may overtake it.

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
    /// Whether a renewal is taking the lock here at this moment.
    pub(super) retaking: AtomicBool,
    /// The counter in the server's last answer. It stays while we read there.
    counter: AtomicU64,
}

/// What a claim asked of a server, and what it holds there.
#[derive(Debug)]
pub(super) struct State {
    pub(super) part: Part,
    /// Whether nothing was asked since the last time that all was given back.
    pub(super) clean: bool,
    pub(super) held: bool,
    /// Whether the claim is over, and nothing may be taken in its name.
    pub(super) closed: bool,
}

/// What a claim does at a server: mutexes are the Redis engine's own.
#[derive(Debug)]
pub(super) enum Part {
    Mutex(RedisClaim),
    ReadWrite(RwClaim),
}

impl NodeClaim {
    /// A claim that has asked for nothing yet. A writer's wish lasts for `wish` beyond each try.
    pub(super) fn new(store: &Arc<Store>, request: &Request, wish: Duration) -> Self {
        // A lock here belongs to one claim, whoever its owner is, and there is no queue.
        let queue = request.queue && request.mode == Mode::Write;
        let request = Request { fair: false, owner: None, queue, ..request.clone() };
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

    /// Notes the counter that the server told.
    pub(super) fn note_counter(&self, counter: u64) {
        self.counter.store(counter, Ordering::SeqCst);
    }

    /// Whether the server has this counter, which stays while we hold there.
    pub(super) fn agrees(&self, fence: u64) -> bool {
        self.counter.load(Ordering::SeqCst) == fence
    }
}

impl Part {
    /// One of which it is not known what it left.
    pub(super) fn unsure(store: Arc<Store>, request: Request) -> Self {
        match request.mode {
            Mode::Read | Mode::Write => Part::ReadWrite(RwClaim::unsure(store, request)),
            _ => Part::Mutex(RedisClaim::unsure(store, request)),
        }
    }

    pub(super) async fn attempt(&mut self, fence: Option<u64>) -> Result<Option<Counter>> {
        match self {
            Part::Mutex(claim) => {
                // Nobody counts from this moment: the quorum grants.
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
    /// Notes that all was given back; true if the lock was ours.
    pub(super) fn cleared(&mut self) -> bool {
        self.clean = true;
        std::mem::take(&mut self.held)
    }
}
