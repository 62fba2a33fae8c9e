//! One attempt at one lock: a vote, a fence that a majority agrees on, and the release.
//!
//! All servers are asked at once, and the result is known as soon as enough of them have answered.
//! A lock granted by a majority is ours; the grants of a minority are released before the caller
//! learns that the lock is busy.
//!
//! Easy to get wrong: the fence. The highest one that the majority returned is ours only once a
//! majority has it in its counters while we hold the lock there: docs/redlock-proof.md explains
//! why.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::core::clock::Moment;
use crate::engine::{Claim, Fence, Grant, Lease, Mode, Released, Request};
use crate::error::{Error, Result};
use crate::owner::Token;

use super::fan_out::{FanOut, NodeCall, question};
use super::node::Node;
use super::node_claim::NodeClaim;
use super::votes::Votes;
use super::{NAME, Quorum, RedlockHeld};

/// How long a contender waits before it asks again, in milliseconds: long compared with a round of
/// calls, and random, so that contenders do not split the votes forever.
const DELAY: std::ops::Range<u64> = 20..120;

/// A claim on a lock of a quorum.
#[derive(Debug)]
pub(super) struct RedlockClaim {
    quorum: Arc<Quorum>,
    pub(super) request: Request,
    /// Our part at each server.
    claims: Arc<[Arc<NodeClaim>]>,
    granted: bool,
    /// The highest fence that a server may still be raised to by us.
    pub(super) floor: u64,
    /// The servers that have answered a release so far, one bit for each.
    heard: u64,
    kept: u64,
}

impl RedlockClaim {
    pub(super) fn new(quorum: Arc<Quorum>, request: Request) -> Self {
        let claims = quorum.nodes.iter().map(|node| node.claim(&request)).collect();
        Self { quorum, request, claims, granted: false, floor: 0, heard: 0, kept: 0 }
    }

    /// Sends a request to each server for which `about` returns one.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        about: impl Fn(usize, Arc<Node>, Arc<NodeClaim>) -> Option<NodeCall<T>>,
    ) -> FanOut<T> {
        let pairs = self.quorum.nodes.iter().zip(self.claims.iter()).enumerate();
        let asked = pairs
            .filter_map(|(at, (node, claim))| Some((at, about(at, node.clone(), claim.clone())?)));
        FanOut::new(asked.collect())
    }

    async fn vote(&self) -> Votes {
        let mut votes = Votes::new(self.claims.len(), self.quorum.majority());
        let mut calls = self.ask(|_, node, claim| Some(question(node.vote(claim, None))));
        while !votes.is_over(self.request.mode) {
            let Some((server, vote)) = calls.next().await else { break };
            votes.add(server, vote);
        }
        calls.leave();
        votes
    }

    /// The fence that a majority has in its counters as ours.
    ///
    /// The servers that returned it already have it, so usually no further request is needed.
    async fn agree(&self, fences: &mut [Option<u64>]) -> Option<u64> {
        let majority = self.quorum.majority();
        let lease = Arc::new(Lease::of(&self.request));
        let mut fence = fences.iter().flatten().copied().max()?;
        loop {
            let mut agreed = fences.iter().filter(|there| **there == Some(fence)).count();
            if agreed >= majority {
                return Some(fence);
            }
            let known: Vec<_> = fences.to_vec();
            let mut calls = self.ask(|at, node, claim| {
                (known[at] != Some(fence))
                    .then(|| question(node.confirm(claim, lease.clone(), fence)))
            });
            let mut open = fences.len() - agreed;
            let mut highest = fence;
            while agreed < majority && agreed + open >= majority {
                let Some((server, answer)) = calls.next().await else { break };
                open -= 1;
                // A server that did not answer may or may not have it: it does not count.
                fences[server] = answer.ok().flatten();
                agreed += usize::from(fences[server] == Some(fence));
                highest = highest.max(fences[server].unwrap_or(0));
            }
            calls.leave();
            if agreed >= majority {
                return Some(fence);
            }
            if highest == fence {
                return None;
            }
            // A server that answered late had a higher counter. The next round uses its number.
            fence = highest;
        }
    }

    /// Releases what a minority granted. Servers that did not answer get the request as well.
    ///
    /// If one of them may still have requests of ours to run, the next attempt has another token: the
    /// connection may be replaced meanwhile, and then a server that wakes up runs the old release after
    /// the new request.
    async fn undo(&mut self, votes: &Votes) {
        let ttl = self.request.ttl;
        let mut is_certain = votes.given() + votes.others.len() >= self.claims.len();
        let mut calls = self.ask(|at, node, claim| {
            let left_nothing = votes.others.contains(&at);
            (!left_nothing).then(|| question(node.let_go(claim, ttl, false)))
        });
        let mut awaited = votes.given();
        while awaited > 0 {
            let Some((server, answer)) = calls.next().await else { break };
            if votes.fences[server].is_some() {
                awaited -= 1;
                is_certain &= answer.is_ok();
            }
        }
        calls.leave();
        if !is_certain || awaited > 0 {
            self.request.token = Token::fresh();
            let claims = self.quorum.nodes.iter().map(|node| node.claim(&self.request));
            self.claims = claims.collect();
        }
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} {:?}", self.request.key)
    }
}

#[async_trait]
impl Claim for RedlockClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let mut votes = self.vote().await;
        if votes.is_won() {
            let is_shared = self.request.mode == Mode::Read;
            let agreed = match is_shared {
                true => self.share(&mut votes).await,
                false => self.agree(&mut votes.fences).await,
            };
            if let Some(fence) = agreed {
                self.granted = true;
                return Ok(Some(Grant {
                    fence: Fence::new(fence),
                    slots: Vec::new(),
                    ttl: self.request.ttl,
                    since: asked,
                    held: Arc::new(RedlockHeld {
                        claims: self.claims.clone(),
                        fence,
                        quorum: self.quorum.clone(),
                        lease: Lease::of(&self.request),
                    }),
                    reserved: 0,
                }));
            }
            self.undo(&votes).await;
            if is_shared && votes.is_won() {
                // A majority granted the lock, but readers at these servers use different counters.
                return Ok(None);
            }
            let doing = self.doing("acquire");
            return Err(Error::unreachable(NAME, doing, "no majority agreed on a fence in time"));
        }
        self.undo(&votes).await;
        if votes.is_unknown() {
            return Err(self.quorum.too_few(self.doing("acquire"), votes.silent));
        }
        votes.refusal().map_or(Ok(None), Err)
    }

    async fn wait(&mut self) -> Result<()> {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(DELAY))).await;
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        let (ttl, count) = (self.request.ttl, self.claims.len());
        let mut calls = self.ask(|_, node, claim| Some(question(node.let_go(claim, ttl, true))));
        let (mut silent, mut open) = (Vec::new(), count);
        let enough = |bits: u64| bits.count_ones() as usize >= self.quorum.majority();
        let mut is_done = false;
        while !is_done && open > 0 {
            let Some((server, answer)) = calls.next().await else { break };
            open -= 1;
            match answer {
                Ok(kept) => {
                    self.heard |= 1 << server;
                    self.kept |= u64::from(kept) << server;
                }
                Err(error) => silent.push((server, error)),
            }
            is_done = if self.granted { enough(self.kept) } else { enough(self.heard) };
        }
        calls.leave();
        if !enough(self.heard) {
            return Err(self.quorum.too_few(self.doing("release"), silent));
        }
        let (heard, kept) = (std::mem::take(&mut self.heard), std::mem::take(&mut self.kept));
        // Servers that did not answer may have held it to the end.
        let possible = kept.count_ones() as usize + count - heard.count_ones() as usize;
        let was_granted = std::mem::take(&mut self.granted);
        let gone = was_granted && possible < self.quorum.majority();
        Ok(if gone { Released::AlreadyGone } else { Released::Yes })
    }
}
