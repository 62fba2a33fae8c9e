//! Renewal: transactions that check all nodes, as many at once as fit into a request.
//!
//! The session itself is kept alive by the client's heartbeats. A follower answers those by itself,
//! so they prove nothing. A renewal is a write, so a majority vouches for the session and for every
//! node.

use std::collections::HashSet;
use std::sync::Arc;

use zookeeper_client as zk;

use super::error::{ends_session, failed};
use super::held::ZooKeeperHeld;
use super::nodes::ANY_VERSION;
use super::session::{PACKET, Session};
use crate::core::clock::Moment;
use crate::engine::{Lease, Renewal};
use crate::error::Result;

pub(super) async fn renew(leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>> {
    let mut answers = vec![Renewal::Gone; leases.len()];
    let holds = leases.iter().map(Lease::held::<ZooKeeperHeld>).enumerate();
    let mut open: Vec<(usize, &ZooKeeperHeld)> =
        holds.filter_map(|(n, held)| Some((n, held?))).collect();
    // Usually one session; two shortly after one expired.
    while let Some((_, first)) = open.first() {
        let session = first.node.session.clone();
        let (ours, others) =
            open.into_iter().partition(|(_, held)| Arc::ptr_eq(&held.node.session, &session));
        open = others;
        if session.is_over() {
            continue;
        }
        let there = vouch(&session, ours).await?;
        let vouched = session.vouched(&asked).unwrap_or_default();
        for n in there {
            // A process that was stopped retries in a moment, when the leader has its heartbeat.
            let enough = vouched >= leases[n].ttl;
            answers[n] = if enough { Renewal::Renewed } else { Renewal::Unknown };
        }
    }
    Ok(answers)
}

/// Which holds have all their nodes.
async fn vouch(session: &Session, holds: Vec<(usize, &ZooKeeperHeld)>) -> Result<Vec<usize>> {
    let doing = "renew locks";
    let mut moved = false;
    let mut gone = HashSet::new();
    // Every node, and the hold it belongs to.
    let nodes = holds.iter().flat_map(|(n, held)| held.paths.iter().map(|path| (*n, path)));
    let mut open: Vec<(usize, &String)> = nodes.collect();
    while !open.is_empty() {
        let mut all = session.zk.new_multi_writer();
        let (mut many, mut size) = (0, 0);
        for (_, path) in &open {
            size += path.len() + OVERHEAD;
            if many > 0 && size > PACKET {
                break;
            }
            all.add_check_version(path, ANY_VERSION).map_err(failed(doing))?;
            many += 1;
        }
        match all.commit().await {
            Ok(_) => drop(open.drain(..many)),
            // Missing nodes are taken out one by one.
            Err(zk::MultiWriteError::OperationFailed { index, source: zk::Error::NoNode }) => {
                let owner = open[index].0;
                gone.insert(owner);
                open.retain(|(n, _)| *n != owner);
            }
            Err(error) => match zk::Error::from(error) {
                error if ends_session(&error) => return Ok(Vec::new()),
                // The session moves to another server, which will answer in time.
                zk::Error::ConnectionLoss if !moved => moved = true,
                error => return Err(failed(doing)(error)),
            },
        }
    }
    Ok(holds.iter().map(|(n, _)| *n).filter(|n| !gone.contains(n)).collect())
}

/// The size of a check apart from the path of the node.
const OVERHEAD: usize = 17;
