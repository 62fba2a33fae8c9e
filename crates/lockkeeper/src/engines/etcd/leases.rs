//! Leases: every claim has one to itself, and hands it on to a later claim when it is done.
//!
//! A lease of its own makes an entry in the queue unlike all others, ends with exactly one lock, and is as
//! long as was asked. Making and revoking one costs two writes to the cluster's log, which is why a lease
//! that is certainly not used any more is kept for a while.
//!
//! Easy to get wrong: a request without an answer may still run. A lease that was named in one is
//! revoked, never handed on, or the late request would make an entry for somebody else.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::LeaseGrantOptions;
use tokio::time::Instant;

use super::cluster::{Cluster, PATIENCE};
use super::error::{exists_already, is_not_found};
use crate::core::clock::Moment;
use crate::error::Result;

/// Longer leases are not kept: one that is forgotten would stay for all its length.
const KEPT_UP_TO: Duration = Duration::from_secs(60);

/// How many leases of one length are kept.
const KEPT: usize = 256;

/// A lease of the store, wanted or there.
#[derive(Debug)]
pub(super) struct BorrowedLease {
    pub(super) id: i64,
    /// What was asked for.
    seconds: i64,
    /// What the store granted; `None` while it is not certain to exist.
    pub(super) ttl: Option<Duration>,
    /// Before the last request that gave it its full length.
    pub(super) alive: Option<Moment>,
}

/// Leases that nobody uses.
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
    /// A lease of at least this length: a spare one, or one still to be made.
    ///
    /// The id is ours to choose, so that a lost reply can be recognised.
    pub(super) fn take(&self, ttl: Duration) -> BorrowedLease {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        if let Some(spare) = self.lock().get_mut(&seconds) {
            // The latest one: if that is about to end, so are all before it.
            match spare.pop() {
                Some(Spare { lease, since }) if since.elapsed() < ttl / 2 => return lease,
                _ => spare.clear(),
            }
        }
        BorrowedLease { id: random_id(), seconds, ttl: None, alive: None }
    }

    /// Takes back a lease to which nothing is attached, and that was named in no unanswered request.
    /// False if it is too long to be kept, and has to be revoked.
    pub(super) fn give_back(&self, lease: BorrowedLease) -> bool {
        if lease.ttl.is_none_or(|ttl| ttl > KEPT_UP_TO) {
            return false;
        }
        let mut spare = self.lock();
        let spare = spare.entry(lease.seconds).or_default();
        if spare.len() == KEPT {
            // It ends by itself, soon.
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
    /// Makes the lease, unless an earlier call did and did not hear of it.
    pub(super) async fn make(&mut self, cluster: &Cluster, asked: Moment) -> Result<Duration> {
        const DOING: &str = "make a lease";
        let (id, seconds) = (self.id, self.seconds);
        let grant = cluster.ask(DOING, PATIENCE, |client| {
            let mut client = client.lease_client();
            let id = LeaseGrantOptions::new().with_id(id);
            async move { client.grant(seconds, Some(id)).await }
        });
        let granted = match grant.await {
            Ok(grant) => {
                self.alive = Some(asked);
                grant.ttl()
            }
            Err(error) if exists_already(&error) => {
                let look = cluster.ask(DOING, PATIENCE, |client| {
                    let mut client = client.lease_client();
                    async move { client.time_to_live(id, None).await }
                });
                look.await?.granted_ttl()
            }
            Err(error) => return Err(error),
        };
        let ttl = Duration::from_secs(u64::try_from(granted).unwrap_or_default());
        self.ttl = Some(ttl);
        Ok(ttl)
    }
}

/// An id that nobody else has: a lease that exists under it is ours.
fn random_id() -> i64 {
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("the operating system gives random bits");
    (i64::from_le_bytes(random) & i64::MAX).max(1)
}

/// Ends a lease and all that is attached to it. False when there was none.
pub(super) async fn revoke(cluster: &Cluster, id: i64, doubt: &mut bool) -> Result<bool> {
    let revoked = cluster.change("revoke a lease", PATIENCE, doubt, |client| {
        let mut client = client.lease_client();
        async move { client.revoke(id).await }
    });
    match revoked.await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
