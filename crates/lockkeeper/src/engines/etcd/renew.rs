//! Renewal: keeps leases alive and checks entries, both at the same time.

use std::time::Duration;

use super::client::{Client, RangeRequest, RequestOp, Response, TxnRequest};
use super::held::EtcdHeld;
use super::keepalive::KeepAliveOutcome;
use super::{OPERATIONS, Shared, patience};
use crate::engine::{Lease, Renewal};
use crate::error::{Error, Result};

/// A living lease vouches for its entry, unless the entry itself was deleted: both are checked.
pub(super) async fn renew(shared: &Shared, leases: &[Lease]) -> Result<Vec<Renewal>> {
    let held: Vec<_> = leases.iter().map(Lease::held::<EtcdHeld>).collect();
    let ours: Vec<_> = held.iter().copied().flatten().collect();
    let ids: Vec<_> = ours.iter().map(|held| held.lease).collect();
    let shortest = leases.iter().map(|lease| lease.ttl).min().unwrap_or_default();
    let patience = patience(shortest);
    let (alive, (there, failure)) = tokio::join!(
        shared.keepalive.keep(&shared.cluster, &ids, patience),
        are_there(shared, &ours, patience)
    );
    let mut answers = alive.into_iter().zip(there).map(|answer| match answer {
        (KeepAliveOutcome::Gone, _) | (_, Some(false)) => Renewal::Gone,
        (KeepAliveOutcome::Alive, Some(true)) => Renewal::Renewed,
        _ => Renewal::Unknown,
    });
    let answer = |held: Option<&EtcdHeld>| match held {
        Some(_) => answers.next().unwrap_or(Renewal::Unknown),
        None => Renewal::Gone,
    };
    let renewals: Vec<_> = held.into_iter().map(answer).collect();
    match failure {
        Some(error) if renewals.iter().all(|renewal| *renewal == Renewal::Unknown) => Err(error),
        _ => Ok(renewals),
    }
}

/// Whether entries still exist; `None` if no member could be asked, with the reason.
async fn are_there(
    shared: &Shared,
    entries: &[&EtcdHeld],
    patience: Duration,
) -> (Vec<Option<bool>>, Option<Error>) {
    let mut there = Vec::with_capacity(entries.len());
    let mut failure = None;
    for entries in entries.chunks(OPERATIONS) {
        let look = |entry: &&EtcdHeld| {
            let entry = RangeRequest::key(entry.name.clone());
            RequestOp::get(RangeRequest { keys_only: true, ..entry })
        };
        let success = entries.iter().map(look).collect();
        let txn = TxnRequest::when([], success);
        let found = |client: Client| client.txn(txn.clone());
        match shared.cluster.ask("look at entries", patience, found).await {
            Ok(found) => {
                there.extend(found.responses.iter().zip(entries).map(|(found, entry)| {
                    let Some(Response::Range(found)) = &found.response else { return None };
                    Some(found.kvs.iter().any(|kv| kv.create_revision == entry.created))
                }));
            }
            Err(error) => {
                there.extend(entries.iter().map(|_| None));
                failure = Some(error);
            }
        }
    }
    (there, failure)
}
