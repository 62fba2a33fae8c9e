//! What a waiter waits for, and the look that follows the start of its watches.

use super::Shared;
use super::client::{RangeRequest, RequestOp, ResponseOp, TxnRequest};
use super::enter::revision;
use super::watch::Target;

/// What has to happen before it can be our turn.
#[derive(Debug, Clone)]
pub(super) struct Ahead {
    pub(super) theirs: Target,
    /// How many keys this was when we looked.
    pub(super) stored: usize,
    /// The end of our own entry.
    pub(super) ours: Target,
    /// The create revision of our entry.
    pub(super) own: i64,
    /// The revision at which we looked.
    pub(super) seen: i64,
}

impl Shared {
    /// Whether what a waiter waits for did not happen before its watches started at this revision.
    pub(super) async fn is_unchanged(&self, ahead: &Ahead, started: i64) -> bool {
        if started <= ahead.seen {
            return true;
        }
        let Target { key, end, changes, .. } = ahead.theirs.clone();
        let theirs = RangeRequest {
            key,
            range_end: end.unwrap_or_default(),
            max_create_revision: ahead.own,
            ..RangeRequest::default()
        };
        let ours = RangeRequest::key(ahead.ours.key.clone());
        // From the member that has the watches, without asking the others.
        let look = |range| {
            let range = RangeRequest { keys_only: true, serializable: true, ..range };
            RequestOp::get(range)
        };
        let txn = TxnRequest::when([], vec![look(theirs), look(ours)]);
        let Ok(answer) = self.txn("look at the entry ahead", txn, &mut false).await else {
            return false;
        };
        // It may have been another member.
        if revision(&answer) < started {
            return false;
        }
        let mut found = answer.responses.into_iter().map(ResponseOp::found);
        let (theirs, ours) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
        theirs.len() == ahead.stored
            && ours.iter().any(|entry| entry.create_revision == ahead.own)
            && !(changes && theirs.iter().any(|entry| entry.mod_revision > ahead.seen))
    }
}
