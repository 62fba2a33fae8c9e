//! A claim on a mutex or a read-write lock: a node in the lock's own directory.

use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client as zk;

use super::error::{NAME, failed};
use super::held::ZooKeeperHeld;
use super::layout::{self, Kind, Node, kazoo_permit, queue};
use super::nodes::ANY_VERSION;
use super::other_kind::has_semaphore;
use super::queue_node::{OwnNode, QueueNode};
use super::session::Session;
use super::watch::Ahead;
use super::{Shared, turn};
use crate::core::admission;
use crate::core::clock::Moment;
use crate::engine::{Fence, Grant, Mode, Released, Request};
use crate::engines::queued::{Entered, Queue, QueuedClaim, Turn};
use crate::engines::yield_signal::YieldSignal;
use crate::error::{Error, Result};

pub(super) type LockClaim = QueuedClaim<LockQueue>;

/// The queue of a mutex or a read-write lock.
#[derive(Debug)]
pub(super) struct LockQueue {
    shared: Arc<Shared>,
    pub(super) request: Request,
    pub(super) node: QueueNode,
    /// Whether it was not granted at once.
    waited: bool,
    /// Whether it is our turn now, if our node exists.
    is_next: bool,
    yielding: YieldSignal,
    /// Set while it holds.
    in_use: Option<Arc<()>>,
}

pub(super) struct View {
    own: OwnNode,
    queue: Vec<Node>,
    /// Whether there are directories of a semaphore, which may have older nodes than ours.
    beside_semaphore: bool,
    /// The moment from before our node was confirmed by a write.
    confirmed: Moment,
}

/// A confirmation counts as new within this part of the lease: the first renewal is then due soon.
const RECENT: u32 = 3;

/// How often an operation is retried if other clients interfere.
pub(super) const TRIES: usize = 4;

impl LockClaim {
    pub(super) fn new(shared: &Arc<Shared>, request: Request) -> Self {
        let dir = shared.dir(&request.key);
        let node = QueueNode::new(dir, Kind::of(request.mode), shared.settings.acls());
        let queue = LockQueue {
            shared: shared.clone(),
            request: request.clone(),
            node,
            waited: false,
            is_next: false,
            yielding: YieldSignal::default(),
            in_use: None,
        };
        Self::over(queue, &request)
    }
}

#[async_trait]
impl Queue for LockQueue {
    const ENGINE: &'static str = NAME;
    type View = View;
    type Ahead = Ahead;

    async fn is_unchanged(&self, ahead: &Ahead) -> bool {
        ahead.is_unchanged(self.node.own()).await
    }

    async fn enter(&mut self, asked: Moment) -> Result<Entered<View>> {
        let session = self.shared.sessions.get().await?;
        if let Some(view) = self.look_again(&session, asked).await {
            return Ok(Entered::Queued(view));
        }
        let is_new = self.node.own().is_none();
        if is_new && !self.request.queue && self.is_busy(&session).await? {
            return Ok(Entered::Busy);
        }
        let record = layout::write_record(&self.request, None);
        let (own, children) = self.node.enter(&session, &record, asked).await?;
        if self.other_kind(&session, &children).await?.is_some() {
            // We are the wrong one, unless the other is about to leave. So we leave first, then
            // check.
            self.node.leave().await?;
            return match self.settled_kind(&session).await? {
                Some(found) => Err(self.request.conflict(found)),
                None => Ok(Entered::Gone),
            };
        }
        let queue = queue(&children);
        if is_new {
            session.refuse_data_behind(&self.request.key, &own, &queue).await?;
        }
        let beside_semaphore = has_semaphore(&children);
        Ok(Entered::Queued(View { own, queue, beside_semaphore, confirmed: asked }))
    }

    async fn turn(&mut self, view: &View) -> Result<Turn<Ahead>> {
        let admission::Turn::Behind(ahead) = turn(&view.queue, &view.own) else {
            return Ok(Turn::In);
        };
        let path = self.node.path_of(&view.queue[ahead].name);
        let mut rest = view.queue.clone();
        rest.remove(ahead);
        let is_last =
            !view.beside_semaphore && matches!(turn(&rest, &view.own), admission::Turn::In);
        let ahead = Ahead::node(&self.request.key, path, &view.own, is_last).await?;
        self.waited = true;
        Ok(Turn::Behind(ahead))
    }

    async fn confirm(&mut self, view: View, _asked: Moment) -> Result<Option<Grant>> {
        let Some(fence) = self.fence(&view.own).await? else {
            self.node.start_over();
            return Ok(None);
        };
        let held = ZooKeeperHeld {
            paths: vec![view.own.path.clone()],
            node: view.own,
            yielding: self.yielding.clone(),
            list: self.shared.list(layout::ASKED),
            record: self.waited.then(|| layout::write_later(&self.request)),
        };
        let grant = held.grant(&self.request, fence, Vec::new(), view.confirmed)?;
        self.in_use = Some(self.shared.in_use.clone());
        Ok(Some(grant))
    }

    async fn wait(&mut self, ahead: &mut Ahead) -> Result<()> {
        self.is_next = ahead.wait(&self.request.key, self.node.own()).await?;
        Ok(())
    }

    async fn leave(&mut self) -> Result<Released> {
        self.in_use = None;
        self.node.leave().await
    }
}

impl LockQueue {
    /// The queue, if a read shows that we are first: then nothing waits for the servers' disks. The
    /// grant counts from the write that last confirmed our node, so that must not be long ago.
    ///
    /// Only after the node ahead has ended, because a reader that was that writer has a node with
    /// the same sequence, which was created before: a server that shows the end shows that node too.
    async fn look_again(&mut self, session: &Arc<Session>, asked: Moment) -> Option<View> {
        let is_next = std::mem::take(&mut self.is_next) && !self.request.fixed;
        let age = asked.since(&self.node.confirmed().filter(|_| is_next)?);
        if age > self.request.ttl.min(session.length() / 2) / RECENT {
            return None;
        }
        let (own, children, confirmed) = self.node.look_again(session).await?;
        let queue = queue(&children);
        let is_in = matches!(turn(&queue, &own), admission::Turn::In);
        let is_other = has_semaphore(&children) || kazoo_permit(&children).is_some();
        (is_in && !is_other).then_some(View { own, queue, beside_semaphore: false, confirmed })
    }

    /// For a single attempt: whether it would have to wait.
    async fn is_busy(&self, session: &Session) -> Result<bool> {
        let children = session.list_current(self.node.dir()).await?;
        // Twice, because a client that asked for the wrong kind is gone in a moment.
        if self.other_kind(session, &children).await?.is_some()
            && let Some(found) = self.settled_kind(session).await?
        {
            return Err(self.request.conflict(found));
        }
        let blocks = |node: &&Node| admission::conflict(self.request.mode, node.kind.mode());
        let Some(name) = queue(&children).iter().find(blocks).map(|node| node.name.clone()) else {
            return Ok(false);
        };
        session.refuse_data(&self.request.key, &self.node.path_of(&name)).await?;
        Ok(true)
    }

    /// Readers carry the fence of the last writer, which each writer records before it starts.
    ///
    /// `None` if our node is gone: another client may have recorded a later fence by now.
    async fn fence(&self, own: &OwnNode) -> Result<Option<Fence>> {
        let fence = own.fence();
        if self.request.mode == Mode::Mutex {
            return Ok(Some(fence));
        }
        let (zk, dir) = (&own.session.zk, self.node.dir());
        let doing = || format!("note the fence of {dir:?}");
        for _ in 0..TRIES {
            let (data, stat) = zk.get_data(dir).await.map_err(failed(doing()))?;
            let Some(noted) = layout::read_fence(&data) else {
                return Err(Error::Conflict {
                    key: self.request.key.clone(),
                    found: format!("the node {dir:?} holds data of something else"),
                });
            };
            if self.request.mode == Mode::Read {
                return Ok(layout::fence_of_readers(&data, &stat));
            }
            if noted == fence {
                return Ok(Some(fence));
            }
            let mut all = zk.new_multi_writer();
            all.add_check_version(&own.path, ANY_VERSION).map_err(failed(doing()))?;
            all.add_set_data(dir, &layout::write_fence(fence), Some(stat.version))
                .map_err(failed(doing()))?;
            match all.commit().await.map_err(zk::Error::from) {
                Ok(_) => return Ok(Some(fence)),
                Err(zk::Error::NoNode) => return Ok(None),
                // Written by a writer that was there before us, and whose node is gone.
                Err(zk::Error::BadVersion) => {}
                Err(error) => return Err(failed(doing())(error)),
            }
        }
        Err(Error::unreachable(NAME, doing(), "another client keeps writing there"))
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_testkit::server::zookeeper::Ensemble;
    use tokio::task::spawn_blocking;

    use std::time::Duration;

    use super::super::layout::LOCKS;
    use super::super::open;
    use super::*;
    use crate::core::clock::Clock;
    use crate::engine::Claim;
    use crate::key::Key;
    use crate::owner::Token;

    fn claim(shared: &Arc<Shared>, mode: Mode) -> LockClaim {
        let (key, ttl) = (Key::new("key").unwrap(), Duration::from_secs(30));
        LockClaim::new(shared, Request::new(key, Token::fresh(), mode, ttl))
    }

    fn writer(shared: &Arc<Shared>) -> LockClaim {
        claim(shared, Mode::Write)
    }

    /// A holder, and a waiter that entered at this moment.
    async fn two(shared: &Arc<Shared>, mode: Mode, entered: Moment) -> [LockClaim; 2] {
        let [mut holder, mut next] = [claim(shared, Mode::Write), claim(shared, mode)];
        holder.attempt(Clock::System.now()).await.unwrap().expect("it is free");
        assert!(next.attempt(entered).await.unwrap().is_none());
        [holder, next]
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_grant_counts_from_the_write_that_confirmed_it() {
        let servers = spawn_blocking(Ensemble::single).await.expect("a server can be started");
        let url = servers.url("since", Duration::from_secs(60));
        let shared = open(url.parse().unwrap()).await.unwrap().shared;
        for mode in [Mode::Write, Mode::Read] {
            for (age, is_recent) in [(0, true), (11, false)] {
                let entered = Clock::System.now().before(Duration::from_secs(age));
                let [mut holder, mut next] = two(&shared, mode, entered).await;
                holder.release().await.unwrap();
                next.wait().await.unwrap();
                let asked = Clock::System.now();
                let grant = next.attempt(asked).await.unwrap().expect("it is its turn");
                let since = if is_recent { entered } else { asked };
                let apart = grant.since.since(&since).max(since.since(&grant.since));
                assert_eq!(apart, Duration::ZERO, "{mode:?} {age}");
                next.release().await.unwrap();
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nobody_is_next_whose_node_is_gone_or_may_be_younger_than_a_semaphore() {
        let servers = spawn_blocking(Ensemble::single).await.expect("a server can be started");
        let url = servers.url("next", Duration::from_secs(20));
        let shared = open(url.parse().unwrap()).await.unwrap().shared;
        let session = shared.sessions.get().await.unwrap();
        let [mut holder, mut next] = two(&shared, Mode::Write, Clock::System.now()).await;
        let mut last = writer(&shared);
        assert!(last.attempt(Clock::System.now()).await.unwrap().is_none());
        holder.release().await.unwrap();
        next.wait().await.unwrap();
        assert!(next.queue.is_next);
        session.zk.delete(&next.queue.node.own().unwrap().path, None).await.unwrap();
        assert!(
            next.attempt(Clock::System.now()).await.unwrap().is_none(),
            "it is behind the last"
        );
        // The one behind knows that it is first only after it has looked at the queue.
        last.wait().await.unwrap();
        assert!(!last.queue.is_next);
        last.attempt(Clock::System.now()).await.unwrap().expect("it is its turn");
        for claim in [&mut last, &mut next] {
            claim.release().await.unwrap();
        }
        let locks = format!("{}/{LOCKS}", next.queue.node.dir());
        session.make_directory(&locks, shared.settings.acls()).await.unwrap();
        let [mut holder, mut next] = two(&shared, Mode::Write, Clock::System.now()).await;
        holder.release().await.unwrap();
        next.wait().await.unwrap();
        assert!(!next.queue.is_next);
        next.attempt(Clock::System.now()).await.unwrap().expect("it is its turn");
    }

    /// A thread of Curator's may take the read lock while it has the write lock, and then release
    /// that: its second node has the sequence of the first.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_waits_for_a_reader_that_was_the_writer_ahead() {
        let servers = spawn_blocking(Ensemble::single).await.expect("a server can be started");
        let url = servers.url("downgraded", Duration::from_secs(20));
        let shared = open(url.parse().unwrap()).await.unwrap().shared;
        let session = shared.sessions.get().await.unwrap();
        let [mut holder, mut next] = two(&shared, Mode::Write, Clock::System.now()).await;
        let name = &holder.queue.node.own().unwrap().name;
        let sequence = &name[name.len() - 10..];
        let reader = next.queue.node.path_of(&format!("{}__READ__{sequence}", layout::new_id()));
        let options = zk::CreateMode::Ephemeral.with_acls(shared.settings.acls());
        session.zk.create(&reader, b"", &options).await.unwrap();
        holder.release().await.unwrap();
        next.wait().await.unwrap();
        assert!(next.attempt(Clock::System.now()).await.unwrap().is_none(), "a reader is inside");
        session.zk.delete(&reader, None).await.unwrap();
        next.wait().await.unwrap();
        next.attempt(Clock::System.now()).await.unwrap().expect("it is its turn");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_whose_lock_was_broken_does_not_overwrite_a_later_fence() {
        let servers = spawn_blocking(Ensemble::single).await.expect("a server can be started");
        let url = servers.url("broken", Duration::from_secs(20));
        let shared = open(url.parse().unwrap()).await.unwrap().shared;
        let session = shared.sessions.get().await.unwrap();
        // It is first in the queue, and has not recorded its fence yet.
        let mut broken = writer(&shared);
        let (own, _) = broken.queue.node.enter(&session, b"", Clock::System.now()).await.unwrap();
        session.zk.delete(&own.path, None).await.unwrap();
        let later =
            writer(&shared).attempt(Clock::System.now()).await.unwrap().expect("it is free").fence;
        let noted = broken.queue.fence(&own).await;
        let (data, _) = session.zk.get_data(broken.queue.node.dir()).await.unwrap();
        assert_eq!(layout::read_fence(&data), Some(later), "{noted:?} was noted over it");
        // It is behind the later one when it asks again.
        assert!(broken.attempt(Clock::System.now()).await.unwrap().is_none());
    }
}
