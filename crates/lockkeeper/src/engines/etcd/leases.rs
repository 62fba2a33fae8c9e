//! Leases: every claim has its own, and returns it for a later claim when it is done.
//!
//! With its own lease, an entry in the queue is unique, ends with exactly one lock, and is as long
//! as requested. Creating and revoking a lease costs two writes to the cluster's log, so a lease
//! that is certainly unused is kept for a while.
//!
//! Easy to get wrong: a request without an answer may still run. A lease that was named in one is
//! revoked, never reused, or the late request would create an entry for another claim.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::client::Client;
use super::cluster::{Cluster, PATIENCE};
use super::error::{exists_already, is_not_found};
use crate::core::clock::Moment;
use crate::error::Result;

/// Longer leases are not kept: a forgotten one would stay for its whole length.
const KEPT_UP_TO: Duration = Duration::from_secs(60);

/// How many leases of one length are kept.
const KEPT: usize = 256;

/// A lease of the store, existing or still to be created.
#[derive(Debug)]
pub(super) struct BorrowedLease {
    pub(super) id: i64,
    /// The requested length.
    seconds: i64,
    /// What the store granted; `None` while it may not exist.
    pub(super) ttl: Option<Duration>,
    /// The moment before the last request that gave it its full length.
    pub(super) alive: Option<Moment>,
}

/// Unused leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    spare: Mutex<HashMap<i64, Vec<Spare>>>,
}

#[derive(Debug)]
struct Spare {
    lease: BorrowedLease,
    since: Instant,
}

impl Leases {
    /// A lease of at least this length: a spare one, or one still to be created.
    ///
    /// We choose the id, so that a lost reply can be recognised.
    pub(super) fn take(&self, ttl: Duration) -> BorrowedLease {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        if let Some(spare) = self.lock().get_mut(&seconds) {
            // The latest one: if that is about to expire, so are all earlier ones.
            match spare.pop() {
                Some(Spare { lease, since }) if since.elapsed() < ttl / 2 => return lease,
                _ => spare.clear(),
            }
        }
        BorrowedLease { id: random_id(), seconds, ttl: None, alive: None }
    }

    /// Takes back a lease to which nothing is attached, and which was named in no unanswered
    /// request. False if it is too long to be kept, and has to be revoked.
    pub(super) fn give_back(&self, lease: BorrowedLease) -> bool {
        if lease.ttl.is_none_or(|ttl| ttl > KEPT_UP_TO) {
            return false;
        }
        let mut spare = self.lock();
        let spare = spare.entry(lease.seconds).or_default();
        if spare.len() == KEPT {
            // It will soon expire.
            spare.remove(0);
        }
        spare.push(Spare { lease, since: Instant::now() });
        true
    }

    /// All spare leases, to be revoked.
    pub(super) fn drain(&self) -> Vec<i64> {
        let spare = std::mem::take(&mut *self.lock());
        spare.into_values().flatten().map(|spare| spare.lease.id).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Vec<Spare>>> {
        self.spare.lock().expect("nothing panics under this lock")
    }
}

impl BorrowedLease {
    /// Creates the lease, unless an earlier call did and its reply was lost.
    pub(super) async fn make(&mut self, cluster: &Cluster, asked: Moment) -> Result<Duration> {
        const DOING: &str = "create a lease";
        let (id, seconds) = (self.id, self.seconds);
        let grant = cluster.ask(DOING, PATIENCE, |client| client.lease_grant(id, seconds));
        let granted = match grant.await {
            Ok(grant) => {
                self.alive = Some(asked);
                grant.ttl
            }
            Err(error) if exists_already(&error) => {
                let look = cluster.ask(DOING, PATIENCE, |client| client.time_to_live(id));
                look.await?.granted_ttl
            }
            Err(error) => return Err(error),
        };
        let ttl = Duration::from_secs(u64::try_from(granted).unwrap_or_default());
        self.ttl = Some(ttl);
        Ok(ttl)
    }
}

/// A unique id: a lease that exists under it is ours.
fn random_id() -> i64 {
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("the operating system gives random bits");
    (i64::from_le_bytes(random) & i64::MAX).max(1)
}

/// Ends a lease and all that is attached to it. False if there was none.
pub(super) async fn revoke(cluster: &Cluster, id: i64, doubt: &mut bool) -> Result<bool> {
    let revoke = |client: Client| client.lease_revoke(id);
    let revoked = cluster.change("revoke a lease", PATIENCE, doubt, revoke);
    match revoked.await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
