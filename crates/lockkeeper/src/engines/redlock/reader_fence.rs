//! The one fence of those who read together.
//!
//! A counter does not move while anybody reads by it, so that readers who have a server in common have
//! a fence in common. Counters may still differ from server to server, where a writer's grant came late
//! or to a few only. Then a reader that is alone at the lower ones raises them; one that is not gives
//! all back, and tries again later. Why that is enough: docs/redlock-proof.md.
//!
//! Easy to get wrong: what was asked for may still arrive. A reader never takes a fence that is lower
//! than one it asked a server for without hearing what became of it.

use std::sync::Arc;

use crate::engine::Lease;

use super::claim::RedlockClaim;
use super::fan_out::question;
use super::votes::Votes;

impl RedlockClaim {
    /// The fence that a majority has in its counters; `None` when the counters stay apart.
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
            // Not those whose vote came too late to be counted: they might have lost a counter, and
            // their clocks are not in this fence.
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
