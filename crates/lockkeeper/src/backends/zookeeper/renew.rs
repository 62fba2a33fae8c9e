//! Renewal: one transaction that checks all nodes at once.
//!
//! The session itself is kept alive by the client's heartbeats. A follower answers those by itself, so
//! they prove nothing; this is a write, so a majority vouches for the session and for every node.

use std::sync::Arc;

use zookeeper_client as zk;

use super::error::{ends_session, failed};
use super::place::ANY_VERSION;
use super::{Held, Shared};
use crate::backend::{Lease, Renewal};
use crate::error::Result;

pub(super) async fn renew(shared: &Shared, leases: &[Lease]) -> Result<Vec<Renewal>> {
    let holds: Vec<Option<Held>> = {
        let held = shared.held();
        leases.iter().map(|lease| held.get(&lease.token).cloned()).collect()
    };
    let mut answers = vec![Renewal::Gone; leases.len()];
    let mut open: Vec<(usize, Held)> =
        holds.into_iter().enumerate().filter_map(|(n, held)| Some((n, held?))).collect();
    // Nearly always one session; two shortly after one expired.
    while let Some((_, first)) = open.first() {
        let session = first.session.clone();
        let (ours, others) =
            open.into_iter().partition(|(_, held)| Arc::ptr_eq(&held.session, &session));
        open = others;
        if !session.is_over() {
            vouch(&session.zk, ours, &mut answers).await?;
        }
    }
    Ok(answers)
}

/// Asks until everyone who is left is there; those who are not are taken out one by one.
async fn vouch(
    zk: &zk::Client,
    mut holds: Vec<(usize, Held)>,
    answers: &mut [Renewal],
) -> Result<()> {
    let doing = || format!("renew {} locks", answers.len());
    let mut moved = false;
    while !holds.is_empty() {
        let mut all = zk.new_multi_writer();
        let mut owners = Vec::new();
        for (at, (_, held)) in holds.iter().enumerate() {
            for path in &held.paths {
                all.add_check_version(path, ANY_VERSION).map_err(failed(doing()))?;
                owners.push(at);
            }
        }
        match all.commit().await {
            Ok(_) => {
                for (n, _) in holds {
                    answers[n] = Renewal::Renewed;
                }
                return Ok(());
            }
            Err(zk::MultiWriteError::OperationFailed { index, source: zk::Error::NoNode }) => {
                holds.remove(owners[index]);
            }
            Err(error) => match zk::Error::from(error) {
                error if ends_session(&error) => return Ok(()),
                // The session moves to another server, which will answer in time.
                zk::Error::ConnectionLoss if !moved => moved = true,
                error => return Err(failed(doing())(error)),
            },
        }
    }
    Ok(())
}
