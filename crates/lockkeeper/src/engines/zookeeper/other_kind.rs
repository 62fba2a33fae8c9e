//! What a lock is in use as: one key is of one kind at a time.

use std::time::Duration;

use super::claim::{LockQueue, TRIES};
use super::layout::{Kind, LEASES, LOCKS, kazoo_permit, queue};
use super::session::Session;
use crate::error::Result;

/// A node that shows that the lock is in use as another kind.
pub(super) enum OtherKind {
    /// The lock is of this kind.
    Is(String),
    /// This node waits for permits of a semaphore of which none is taken. In a moment it will have
    /// one, or will have noticed that it is the wrong one and left.
    Undecided(String),
}

/// How long such a moment may last.
const MOMENT: Duration = Duration::from_secs(1);

impl LockQueue {
    /// What the lock is in use as, if that is not what we ask for. The oldest node decides.
    ///
    /// A client that asked for the wrong kind leaves again. So a node of another kind that is not
    /// the oldest does not matter: it is about to leave.
    pub(super) async fn other_kind(
        &self,
        session: &Session,
        children: &[String],
    ) -> Result<Option<OtherKind>> {
        let key = &self.request.key;
        if let Some(permit) = kazoo_permit(children) {
            session.refuse_data(key, &self.node.path_of(permit)).await?;
            return Ok(Some(OtherKind::Is("a semaphore of kazoo's".to_owned())));
        }
        let queue = queue(children);
        let oldest = queue.first();
        if let Some(oldest) = oldest.filter(|node| !node.kind.mixes(Kind::of(self.request.mode))) {
            session.refuse_data(key, &self.node.path_of(&oldest.name)).await?;
            return Ok(Some(OtherKind::Is(oldest.kind.name().to_owned())));
        }
        // A semaphore leaves its directories behind for a while.
        if !has_semaphore(children) {
            return Ok(None);
        }
        let (locks, leases) = (self.node.path_of(LOCKS), self.node.path_of(LEASES));
        let waiter = session.queue(&locks).await?.into_iter().next();
        let waiter = waiter.map(|node| format!("{locks}/{}", node.name));
        let older = match &waiter {
            Some(waiter) => {
                let waiter = session.created(waiter);
                let oldest = oldest.map(|node| session.created(&self.node.path_of(&node.name)));
                let waiter = waiter.await?;
                let oldest = match oldest {
                    Some(oldest) => oldest.await?,
                    None => None,
                };
                waiter.is_some_and(|waiter| oldest.is_none_or(|oldest| waiter < oldest))
            }
            None => false,
        };
        // A waiter's node moves from the first directory to the second atomically: read in this
        // order, none is missed.
        if let Some(lease) = session.queue(&leases).await?.first() {
            session.refuse_data(key, &format!("{leases}/{}", lease.name)).await?;
            return Ok(Some(OtherKind::Is(match lease.permit() {
                Some((_, limit)) => format!("a semaphore of {limit}"),
                None => "a semaphore".to_owned(),
            })));
        }
        let Some(waiter) = waiter.filter(|_| older) else { return Ok(None) };
        session.refuse_data(key, &waiter).await?;
        Ok(Some(OtherKind::Undecided(waiter)))
    }

    /// Same as [`other_kind`](LockQueue::other_kind), once that is decided, for a claim without a
    /// node.
    pub(super) async fn settled_kind(&self, session: &Session) -> Result<Option<String>> {
        let mut waits = 0..TRIES;
        loop {
            match self.other_kind(session, &session.list_current(self.node.dir()).await?).await? {
                None => return Ok(None),
                Some(OtherKind::Is(found)) => return Ok(Some(found)),
                Some(OtherKind::Undecided(path)) => {
                    if waits.next().is_none() || !session.ends_within(&path, MOMENT).await? {
                        return Ok(Some("a semaphore".to_owned()));
                    }
                }
            }
        }
    }
}

/// Whether a directory has, or lately had, a semaphore.
pub(super) fn has_semaphore(children: &[String]) -> bool {
    children.iter().any(|name| name == LOCKS || name == LEASES)
}
