//! The common fence of readers that hold a lock together.
//!
//! A counter does not change while a reader holds the lock with it, so readers that share a server
//! share a fence. Counters may still differ between servers, if a writer's grant arrived late or at
//! only a few. Then a reader that is the only one at the lower counters raises them; otherwise it
//! releases everything and tries again later. docs/redlock-proof.md proves that this is enough.
//!
//! Easy to get wrong: a request without an answer may still arrive. A reader never takes a fence
//! lower than one that it sent to a server without learning the outcome.

use std::sync::Arc;

use crate::engine::Lease;

use super::claim::RedlockClaim;
use super::fan_out::question;
use super::votes::Votes;

impl RedlockClaim {
    /// The fence that a majority has in its counters; `None` if the counters differ.
    pub(super) async fn share(&mut self, votes: &mut Votes) -> Option<u64> {
        let lease = Arc::new(Lease::of(&self.request));
        let mut tried = 0;
        loop {
            if let Some(fence) = votes.agreed().filter(|fence| *fence >= self.floor) {
                return Some(fence);
            }
            let fence = votes.highest().max(self.floor);
            if fence == tried {
                return None;
            }
            tried = fence;
            let known = votes.fences.clone();
            // Not the servers whose vote came too late to be counted: they may have lost a counter,
            // and their clocks are not in this fence.
            let mut calls = self.ask(|at, node, claim| {
                let is_apart = known[at].is_some_and(|there| there != fence);
                is_apart.then(|| question(node.confirm(claim, lease.clone(), fence)))
            });
            let mut is_silent = false;
            while votes.count(fence) < votes.majority {
                let Some((server, answer)) = calls.next().await else { break };
                is_silent |= answer.is_err();
                votes.fences[server] = answer.ok().flatten();
            }
            calls.leave();
            if is_silent && votes.count(fence) < votes.majority {
                self.floor = fence;
            }
        }
    }
}
