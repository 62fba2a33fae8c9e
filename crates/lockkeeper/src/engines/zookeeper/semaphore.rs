//! A claim on permits of a semaphore: a node in the queue `locks`, then a node in `leases` per
//! permit.
//!
//! Only the first in the queue takes permits, so their number never exceeds the limit, and it
//! leaves the queue in the same transaction. The fence is that of its queue node, because permits
//! are granted in that order.

use std::sync::Arc;

use super::error::{NAME, failed};
use super::held::ZooKeeperHeld;
use super::layout::{self, ASKED, Kind, LEASES, LOCKS, Node, kazoo_permit, queue};
use super::permits::{Permits, Taken};
use super::queue_node::{OwnNode, QueueNode};
use super::session::Session;
use super::watch::Ahead;
use super::{Shared, turn};
use crate::core::admission;
use crate::core::clock::Moment;
use crate::engine::{Grant, Released, Request};
use crate::engines::queued::{Entered, Queue, QueuedClaim, Turn};
use crate::engines::yield_signal::YieldSignal;
use crate::error::Result;
use async_trait::async_trait;

pub(super) type SemaphoreClaim = QueuedClaim<SemaphoreQueue>;

/// The queue of a semaphore.
#[derive(Debug)]
pub(super) struct SemaphoreQueue {
    shared: Arc<Shared>,
    request: Request,
    take: u32,
    limit: u32,
    /// The directory of the lock, which may contain nodes of another kind.
    base: String,
    node: QueueNode,
    permits: Permits,
    /// Whether it found all permits taken before, by locks.
    full_before: bool,
    yielding: YieldSignal,
    /// Set while it holds.
    in_use: Option<Arc<()>>,
}

pub(super) enum View {
    /// An earlier attempt took permits.
    Taken(Taken),
    Queued {
        own: OwnNode,
        seen: Seen,
        other: OtherKind,
    },
}

/// The nodes of the lock.
pub(super) struct Seen {
    base: Vec<String>,
    queue: Vec<Node>,
    leases: Vec<Node>,
}

/// A node that shows that the lock is in use as another kind.
pub(super) enum OtherKind {
    None,
    /// It came after one of ours, and leaves again. A claim that came after it waits for that.
    Leaving {
        path: String,
        created: i64,
    },
    /// It was there first: the lock is of this kind.
    Is(String),
}

impl SemaphoreClaim {
    pub(super) fn new(shared: &Arc<Shared>, request: Request, take: u32, limit: u32) -> Self {
        let (base, acls) = (shared.dir(&request.key), shared.settings.acls());
        let queue = SemaphoreQueue {
            shared: shared.clone(),
            request: request.clone(),
            take,
            limit,
            node: QueueNode::new(format!("{base}/{LOCKS}"), Kind::Mutex, acls),
            permits: Permits::new(format!("{base}/{LEASES}"), limit, acls),
            base,
            full_before: false,
            yielding: YieldSignal::default(),
            in_use: None,
        };
        Self::over(queue, &request)
    }
}

#[async_trait]
impl Queue for SemaphoreQueue {
    const ENGINE: &'static str = NAME;
    type View = View;
    type Ahead = Ahead;

    async fn is_unchanged(&self, ahead: &Ahead) -> bool {
        ahead.is_unchanged(self.node.own()).await
    }

    async fn enter(&mut self, asked: Moment) -> Result<Entered<View>> {
        self.permits.refuse_too_many(&self.request, self.take)?;
        let session = self.shared.sessions.get().await?;
        if let Some(taken) = self.permits.taken(&session).await? {
            self.node.start_over();
            return Ok(Entered::Queued(View::Taken(taken)));
        }
        let is_new = self.node.own().is_none();
        if is_new && self.is_busy(&session).await? {
            return Ok(Entered::Busy);
        }
        let record = layout::write_record(&self.request, None);
        let (own, _) = self.node.enter(&session, &record, asked).await?;
        let seen = self.look(&session).await?;
        let other = self.other_kind(&session, &seen).await?;
        if let OtherKind::Is(_) = other {
            // We are the wrong one, unless the other is about to leave. So we leave first, then
            // check.
            self.node.leave().await?;
            self.refuse_other_kind(&session).await?;
            return Ok(Entered::Gone);
        }
        if !seen.queue.iter().any(|node| node.name == own.name) {
            // Another client deleted it in between.
            self.node.start_over();
            return Ok(Entered::Gone);
        }
        if is_new {
            session.refuse_data_behind(&self.request.key, &own, &seen.queue).await?;
        }
        Ok(Entered::Queued(View::Queued { own, seen, other }))
    }

    async fn turn(&mut self, view: &View) -> Result<Turn<Ahead>> {
        let View::Queued { own, seen, other } = view else { return Ok(Turn::In) };
        let ahead = match (turn(&seen.queue, own), other) {
            (admission::Turn::Behind(ahead), _) => self.node.path_of(&seen.queue[ahead].name),
            (_, OtherKind::Leaving { path, created }) if *created < own.created => path.clone(),
            _ if self.is_full(&seen.leases) => {
                self.refuse_data_among(&own.session, &seen.leases).await?;
                return Ok(Turn::Behind(self.free_permits()));
            }
            _ => return Ok(Turn::In),
        };
        Ok(Turn::Behind(Ahead::node(&self.request.key, ahead, own, false).await?))
    }

    async fn confirm(&mut self, view: View, asked: Moment) -> Result<Option<Grant>> {
        let taken = match view {
            View::Taken(taken) => match self.permits.confirm(&taken).await? {
                true => taken,
                false => return Ok(None),
            },
            View::Queued { own, seen, .. } => {
                let others = seen.leases.iter().filter_map(Node::permit).map(|(slot, _)| slot);
                let slots = admission::free_slots(others, self.take);
                let taken = self.permits.take(own, &self.request, &slots).await?;
                self.node.start_over();
                taken
            }
        };
        let paths = self.permits.paths(&taken);
        let slots = taken.slots();
        let fence = taken.from.fence();
        let node = OwnNode { path: paths[0].clone(), ..taken.from };
        let (yielding, list) = (self.yielding.clone(), self.shared.list(ASKED));
        let held = ZooKeeperHeld { node, paths, yielding, list, record: None };
        self.in_use = Some(self.shared.in_use.clone());
        held.grant(&self.request, fence, slots, asked).map(Some)
    }

    async fn wait(&mut self, ahead: &mut Ahead) -> Result<()> {
        ahead.wait(&self.request.key, self.node.own()).await?;
        Ok(())
    }

    async fn leave(&mut self) -> Result<Released> {
        self.in_use = None;
        match self.permits.release().await? {
            Some(released) => {
                self.node.start_over();
                Ok(released)
            }
            None => self.node.leave().await,
        }
    }
}

impl SemaphoreQueue {
    /// Before it creates a node: whether a single attempt would have to wait.
    ///
    /// Every claim reads first, so that it does not block claims of another kind: there is no order
    /// between their queue and this one.
    async fn is_busy(&mut self, session: &Session) -> Result<bool> {
        let seen = self.look(session).await?;
        if let OtherKind::Is(_) = self.other_kind(session, &seen).await? {
            // Twice, because a client that asked for the wrong kind is gone in a moment.
            self.refuse_other_kind(session).await?;
        }
        if self.request.queue {
            return Ok(false);
        }
        if let Some(ahead) = seen.queue.first() {
            let path = self.node.path_of(&ahead.name);
            session.refuse_data(&self.request.key, &path).await?;
            return Ok(true);
        }
        if self.is_full(&seen.leases) {
            self.refuse_data_among(session, &seen.leases).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Reads all nodes of the lock. All requests are sent at once.
    async fn look(&self, session: &Session) -> Result<Seen> {
        // Without a preceding write of our own, an outdated server would list nodes that are gone.
        let sync = session.zk.sync(&self.base);
        let base = session.list(&self.base);
        let waiting = session.list(self.node.dir());
        // After the queue, whose nodes move here atomically: none is missed.
        let leases = session.list(self.permits.dir());
        sync.await.map_err(failed(format!("look at {:?}", self.base)))?;
        let (base, waiting) = (base.await?, queue(&waiting.await?));
        Ok(Seen { base, queue: waiting, leases: queue(&leases.await?) })
    }

    /// Whether the lock is in use as another kind. The oldest node decides, and a client that asked
    /// for the wrong kind leaves again; see `LockQueue::other_kind`.
    async fn other_kind(&self, session: &Session, seen: &Seen) -> Result<OtherKind> {
        let key = &self.request.key;
        if let Some(permit) = kazoo_permit(&seen.base) {
            session.refuse_data(key, &format!("{}/{permit}", self.base)).await?;
            return Ok(OtherKind::Is("a semaphore of kazoo's".to_owned()));
        }
        let mut limits = seen.leases.iter().filter_map(|node| Some((node, node.permit()?.1)));
        if let Some((lease, limit)) = limits.find(|(_, limit)| *limit != self.limit) {
            session.refuse_data(key, &format!("{}/{}", self.permits.dir(), lease.name)).await?;
            return Ok(OtherKind::Is(format!("a semaphore of {limit}")));
        }
        let base = queue(&seen.base);
        let Some(node) = base.first() else { return Ok(OtherKind::None) };
        let path = format!("{}/{}", self.base, node.name);
        let data = session.refuse_data(key, &path);
        let created = session.created(&path);
        let oldest = |dir: &str, nodes: &[Node]| {
            nodes.first().map(|node| session.created(&format!("{dir}/{}", node.name)))
        };
        let ours = [oldest(self.node.dir(), &seen.queue), oldest(self.permits.dir(), &seen.leases)];
        data.await?;
        // A node that is gone may have hidden others: a claim that waits for it checks again at
        // once.
        let Some(created) = created.await? else {
            return Ok(OtherKind::Leaving { path, created: 0 });
        };
        for ours in ours.into_iter().flatten() {
            if ours.await?.is_some_and(|ours| ours < created) {
                // It will leave, but it may not know yet that it has to.
                return Ok(OtherKind::Leaving { path, created });
            }
        }
        Ok(OtherKind::Is(node.kind.name().to_owned()))
    }

    /// Refuses a lock that is in use as another kind, for a claim without a node.
    async fn refuse_other_kind(&self, session: &Session) -> Result<()> {
        match self.other_kind(session, &self.look(session).await?).await? {
            OtherKind::Is(found) => Err(self.request.conflict(found)),
            _ => Ok(()),
        }
    }

    /// Whether these leave no room for us.
    fn is_full(&self, leases: &[Node]) -> bool {
        leases.len() + self.take as usize > self.limit as usize
    }

    /// Waits until there is room for us.
    fn free_permits(&self) -> Ahead {
        let most = (self.limit as usize).saturating_sub(self.take as usize);
        Ahead::permits(self.permits.dir().to_owned(), most)
    }

    /// Refuses permits that are application data, and would never be released.
    async fn refuse_data_among(&mut self, session: &Session, leases: &[Node]) -> Result<()> {
        // Only once: one request per node is too much for a claim that checks again at every
        // change.
        if !self.full_before {
            session.refuse_data_in(&self.request.key, self.permits.dir(), leases).await?;
            self.full_before = true;
        }
        Ok(())
    }
}
