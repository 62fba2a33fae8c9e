//! Extends leases at every server, and acquires locks that a majority has at the servers that lack
//! them.
//!
//! A lease is renewed if a majority extended it, and gone if so many servers lack it that no
//! majority can. A lock is filled in only if it was just renewed: a lost lock is never revived.
//!
//! Easy to get wrong: a server whose counter is not a reader's fence does not count, although the
//! reader holds the lock there as well. Otherwise two readers might have only such servers in
//! common.

use std::sync::Arc;

use crate::engine::{Lease, Mode, Renewal};
use crate::error::Result;

use super::fan_out::{FanOut, question};
use super::{Quorum, RedlockHeld};

/// The servers' answers about some leases so far.
struct Survey {
    quorum: Arc<Quorum>,
    /// What we know of each lease, unless it was released meanwhile.
    held: Vec<Option<RedlockHeld>>,
    shared: Vec<bool>,
    /// How many servers extended each lease.
    renewed: Vec<usize>,
    /// The servers that do not have it.
    missing: Vec<Vec<usize>>,
}

/// Renews leases.
pub(super) async fn renew(quorum: &Arc<Quorum>, leases: &[Lease]) -> Result<Vec<Renewal>> {
    // The owner is not in the store, and the token may be that of a later attempt.
    let asked: Arc<[_]> = leases
        .iter()
        .map(|lease| {
            let held = lease.held::<RedlockHeld>();
            let token = held.map_or(lease.token, |held| held.lease.token);
            Lease { owner: None, token, ..lease.clone() }
        })
        .collect();
    let questions = quorum.nodes.iter().enumerate();
    let questions = questions.map(|(at, node)| (at, question(node.clone().renew(asked.clone()))));
    let mut calls = FanOut::new(questions.collect());

    let mut survey = Survey {
        quorum: quorum.clone(),
        held: leases.iter().map(|lease| lease.held::<RedlockHeld>().cloned()).collect(),
        shared: leases.iter().map(|lease| lease.mode == Mode::Read).collect(),
        renewed: vec![0; leases.len()],
        missing: vec![Vec::new(); leases.len()],
    };
    let mut silent = Vec::new();
    while !(0..leases.len()).all(|at| survey.verdict(at) != Renewal::Unknown) {
        match calls.next().await {
            Some((server, Ok(renewals))) => survey.add(server, &renewals),
            Some((server, Err(error))) => silent.push((server, error)),
            None => break,
        }
    }
    if silent.len() > quorum.minority() {
        calls.leave();
        return Err(quorum.too_few("renew locks", silent));
    }
    let renewals = (0..leases.len()).map(|at| survey.verdict(at)).collect();
    // The caller does not wait for servers that are slower than the majority.
    tokio::spawn(async move {
        while let Some((server, answer)) = calls.next().await {
            survey.add(server, &answer.unwrap_or_default());
        }
        survey.fill_in();
    });
    Ok(renewals)
}

impl Survey {
    fn add(&mut self, server: usize, renewals: &[Renewal]) {
        for (at, renewal) in renewals.iter().enumerate() {
            match renewal {
                Renewal::Renewed if self.counts(at, server) => self.renewed[at] += 1,
                Renewal::Renewed | Renewal::Gone => self.missing[at].push(server),
                Renewal::Unknown => {}
            }
        }
    }

    /// Whether a hold at this server counts towards a majority.
    fn counts(&self, at: usize, server: usize) -> bool {
        let held = self.held[at].as_ref().filter(|_| self.shared[at]);
        held.is_none_or(|held| held.claims[server].agrees(held.fence))
    }

    fn verdict(&self, at: usize) -> Renewal {
        if self.renewed[at] >= self.quorum.majority() {
            return Renewal::Renewed;
        }
        let is_gone = self.missing[at].len() > self.quorum.minority();
        if is_gone { Renewal::Gone } else { Renewal::Unknown }
    }

    /// Acquires the renewed locks at the servers that lack them. A claim that has ended acquires
    /// nothing.
    fn fill_in(&self) {
        for (at, servers) in self.missing.iter().enumerate() {
            if self.verdict(at) != Renewal::Renewed {
                continue;
            }
            let Some(held) = &self.held[at] else { continue };
            let questions = servers.iter().map(|server| {
                let (node, claim) =
                    (self.quorum.nodes[*server].clone(), held.claims[*server].clone());
                (*server, question(node.fill(claim, held.fence)))
            });
            FanOut::new(questions.collect()).leave();
        }
    }
}
