//! A claim on a mutex or a read-write lock: a node in the lock's own line.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use zookeeper_client as zk;

use super::error::{NAME, failed};
use super::layout::{Kind, Node, kazoo_permit, line};
use super::queue_node::{ANY_VERSION, QueueNode, Standing, TRIES};
use super::session::Session;
use super::watch::{Alarm, end_of};
use super::{Entered, LEASES, LOCKS, Shared, record};
use crate::core::admission::{self, Turn};
use crate::core::clock::Moment;
use crate::engine::{Claim, Fence, Grant, Mode, Released, Request};
use crate::engines::yield_signal::YieldSignal;
use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct QueueClaim {
    shared: Arc<Shared>,
    request: Request,
    place: QueueNode,
    waiting: Option<Waiting>,
    /// Whether it was not let in at once.
    waited: bool,
    /// Whether the holder was asked to give way.
    bell: YieldSignal,
    /// Set while it holds.
    in_use: Option<Arc<()>>,
}

/// Someone who takes the lock for something else.
enum Stranger {
    /// The lock is this.
    Is(String),
    /// It has a place before a semaphore of which nobody has a permit: in a moment it has one, or found out
    /// that it is the wrong one, and left.
    Before(String),
}

/// How long such a moment may last.
const MOMENT: Duration = Duration::from_secs(1);

/// Whom we wait for.
struct Waiting {
    path: String,
    /// Set once we listen. It outlives a wait that is dropped, so that asking again costs little.
    alarm: Option<Alarm>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("path", &self.path).finish_non_exhaustive()
    }
}

impl QueueClaim {
    pub(super) fn new(shared: &Arc<Shared>, request: Request) -> Self {
        let dir = shared.dir(&request.key);
        let place = QueueNode::new(dir, Kind::of(request.mode), shared.settings.acls());
        let (shared, bell) = (shared.clone(), YieldSignal::default());
        Self { shared, request, place, waiting: None, waited: false, bell, in_use: None }
    }

    /// What the lock is used as, if that is not what we ask for. The oldest node decides.
    ///
    /// Whoever finds out that it asked for the wrong kind leaves again. So nobody minds a stranger that is
    /// not the oldest: it is on its way out.
    async fn stranger(&self, session: &Session, children: &[String]) -> Result<Option<Stranger>> {
        let (key, dir) = (&self.request.key, self.place.dir());
        if let Some(permit) = kazoo_permit(children) {
            session.refuse_data(key, &format!("{dir}/{permit}")).await?;
            return Ok(Some(Stranger::Is("a semaphore of kazoo's".to_owned())));
        }
        let line = line(children);
        let oldest = line.first();
        if let Some(oldest) = oldest.filter(|node| !node.kind.mixes(Kind::of(self.request.mode))) {
            session.refuse_data(key, &format!("{dir}/{}", oldest.name)).await?;
            return Ok(Some(Stranger::Is(oldest.kind.name().to_owned())));
        }
        // A semaphore leaves its directories behind for a while.
        let semaphore = |name: &str| children.iter().any(|child| child == name);
        if !semaphore(LOCKS) && !semaphore(LEASES) {
            return Ok(None);
        }
        let gates = session.line(&format!("{dir}/{LOCKS}")).await?;
        let ages = match gates.first() {
            Some(gate) => {
                let gate = session.created(&format!("{dir}/{LOCKS}/{}", gate.name));
                let oldest = oldest.map(|node| session.created(&format!("{dir}/{}", node.name)));
                match oldest {
                    Some(oldest) => (gate.await?, oldest.await?),
                    None => (gate.await?, None),
                }
            }
            None => (None, None),
        };
        // Its places move from the first directory to the second at once: in this order none is
        // overlooked.
        if let Some(lease) = session.line(&format!("{dir}/{LEASES}")).await?.first() {
            session.refuse_data(key, &format!("{dir}/{LEASES}/{}", lease.name)).await?;
            return Ok(Some(Stranger::Is(match lease.permit() {
                Some((_, limit)) => format!("a semaphore of {limit}"),
                None => "a semaphore".to_owned(),
            })));
        }
        let older = match ages {
            (Some(gate), Some(oldest)) => gate < oldest,
            (gate, _) => gate.is_some(),
        };
        let Some(gate) = gates.first().filter(|_| older) else { return Ok(None) };
        let path = format!("{dir}/{LOCKS}/{}", gate.name);
        session.refuse_data(key, &path).await?;
        Ok(Some(Stranger::Before(path)))
    }

    /// As [`stranger`](QueueClaim::stranger), without a place in line.
    async fn used_otherwise(&self, session: &Session) -> Result<Option<String>> {
        let mut waits = 0..TRIES;
        loop {
            match self.stranger(session, &self.place.others(session).await?).await? {
                None => return Ok(None),
                Some(Stranger::Is(found)) => return Ok(Some(found)),
                Some(Stranger::Before(path)) => {
                    if waits.next().is_none() || !session.ends_within(&path, MOMENT).await? {
                        return Ok(Some("a semaphore".to_owned()));
                    }
                }
            }
        }
    }

    fn conflict(&self, found: &str) -> Error {
        Error::Conflict {
            key: self.request.key.clone(),
            found: format!("it is used as {found}, and was asked for as {}", self.request.mode),
        }
    }

    /// Readers carry the fence of the last writer, which each writer notes before it begins.
    ///
    /// `None` when our node is gone: then somebody else may have noted a later one.
    async fn fence(&self, standing: &Standing) -> Result<Option<Fence>> {
        let own = Fence::new(standing.created.try_into().unwrap_or(0));
        if self.request.mode == Mode::Mutex {
            return Ok(Some(own));
        }
        let (zk, dir) = (&standing.session.zk, self.place.dir());
        let doing = || format!("note the fence of {dir:?}");
        for _ in 0..TRIES {
            let (data, stat) = zk.get_data(dir).await.map_err(failed(doing()))?;
            let Some(noted) = record::read_fence(&data) else {
                return Err(Error::Conflict {
                    key: self.request.key.clone(),
                    found: format!("the node {dir:?} holds data of something else"),
                });
            };
            if self.request.mode == Mode::Read {
                // A directory that was removed with what it noted was made again after all of that.
                let born = Fence::new(stat.czxid.try_into().unwrap_or(0));
                return Ok(Some(noted.max(born)));
            }
            if noted == own {
                return Ok(Some(own));
            }
            let mut all = zk.new_multi_writer();
            all.add_check_version(&standing.path, ANY_VERSION).map_err(failed(doing()))?;
            all.add_set_data(dir, &record::write_fence(own), Some(stat.version))
                .map_err(failed(doing()))?;
            match all.commit().await.map_err(zk::Error::from) {
                Ok(_) => return Ok(Some(own)),
                Err(zk::Error::NoNode) => return Ok(None),
                // By one who was there before us, and whose node is gone.
                Err(zk::Error::BadVersion) => {}
                Err(error) => return Err(failed(doing())(error)),
            }
        }
        Err(Error::unreachable(NAME, doing(), "somebody else writes there all the time"))
    }

    /// One go: `None` to try again, because the place was taken away.
    async fn go(&mut self, session: &Arc<Session>) -> Result<Option<Option<Entered>>> {
        // One who does not queue looks first, so that it does not stand in anyone's way.
        if !self.request.queue && self.place.standing().is_none() {
            let children = self.place.others(session).await?;
            // Twice, because whoever asked for the wrong kind is gone in a moment.
            if self.stranger(session, &children).await?.is_some()
                && let Some(found) = self.used_otherwise(session).await?
            {
                return Err(self.conflict(&found));
            }
            let busy = |node: &&Node| admission::conflict(self.request.mode, node.kind.mode());
            if let Some(node) = line(&children).iter().find(busy) {
                let path = format!("{}/{}", self.place.dir(), node.name);
                session.refuse_data(&self.request.key, &path).await?;
                return Ok(Some(None));
            }
        }
        let came_just_now = self.place.standing().is_none();
        let record = record::write(&self.request, None);
        let (standing, children) = self.place.stand(session, &record).await?;
        if self.stranger(session, &children).await?.is_some() {
            // We are the wrong one, unless it is on its way out. So we go first, and look then.
            self.place.leave().await?;
            return match self.used_otherwise(session).await? {
                Some(found) => Err(self.conflict(&found)),
                None => Ok(None),
            };
        }
        let line = line(&children);
        if came_just_now {
            session.refuse_data_behind(&self.request.key, &standing, &line).await?;
        }
        match turn(&line, &standing.name) {
            Turn::In => {}
            Turn::Behind(_) | Turn::Full if !self.request.queue => {
                self.place.leave().await?;
                return Ok(Some(None));
            }
            Turn::Behind(ahead) => {
                let path = format!("{}/{}", self.place.dir(), line[ahead].name);
                // It would never go.
                session.refuse_data(&self.request.key, &path).await?;
                self.waiting = Some(Waiting { path, alarm: None });
                self.waited = true;
                return Ok(Some(None));
            }
            Turn::Full => unreachable!("only a semaphore is full"),
        }
        let Some(fence) = self.fence(&standing).await? else {
            self.place.start_again();
            return Ok(None);
        };
        let paths = vec![standing.path.clone()];
        let news = self.waited.then(|| record::write_later(&self.request));
        Ok(Some(Some(Entered { standing, paths, fence, slots: Vec::new(), news })))
    }
}

#[async_trait]
impl Claim for QueueClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        if let Some(Waiting { path, alarm: Some(_) }) = &self.waiting
            && self.place.still_behind(path).await
        {
            return Ok(None);
        }
        self.waiting = None;
        let session = self.shared.sessions.get().await?;
        for _ in 0..TRIES {
            match self.go(&session).await {
                Ok(None) => {}
                Ok(Some(None)) => return Ok(None),
                Err(error @ Error::Conflict { .. }) => {
                    // Whoever is refused stands in nobody's way, not even for a moment.
                    self.place.leave().await?;
                    return Err(error);
                }
                Err(error) => return Err(error),
                Ok(Some(Some(entered))) => {
                    let grant = self.shared.grant(&self.request, entered, &self.bell, &asked)?;
                    self.in_use = Some(self.shared.in_use.clone());
                    return Ok(Some(grant));
                }
            }
        }
        let doing = format!("take a place in {:?}", self.place.dir());
        Err(Error::unreachable(NAME, doing, "it is taken away as soon as it is there"))
    }

    async fn wait(&mut self) -> Result<()> {
        let (Some(waiting), Some(standing)) = (&mut self.waiting, self.place.standing()) else {
            return Ok(());
        };
        if waiting.alarm.is_none() {
            waiting.alarm = end_of(&waiting.path, standing).await?;
        }
        if let Some(alarm) = &mut waiting.alarm {
            alarm.await;
        }
        self.waiting = None;
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        self.in_use = None;
        self.waiting = None;
        self.place.leave().await
    }
}

/// Whether the one of this name is in. Being first in line *is* holding.
pub(super) fn turn(line: &[Node], name: &str) -> Turn {
    let places: Vec<_> = line
        .iter()
        .map(|node| admission::Queued { owner: &node.name, mode: node.kind.mode(), granted: false })
        .collect();
    match line.iter().position(|node| node.name == name) {
        Some(at) => admission::turn(&places, at),
        None => unreachable!("a place is taken before the turn is asked for"),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_testkit::server::zookeeper::Ensemble;
    use tokio::task::spawn_blocking;

    use super::super::open;
    use super::*;
    use crate::core::clock::Clock;
    use crate::key::Key;
    use crate::owner::Token;

    fn writer(shared: &Arc<Shared>) -> QueueClaim {
        let request = Request {
            key: Key::new("key").unwrap(),
            token: Token::fresh(),
            owner: None,
            mode: Mode::Write,
            ttl: Duration::from_secs(30),
            fixed: false,
            fair: false,
            queue: true,
            note: None,
        };
        QueueClaim::new(shared, request)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_whose_lock_was_broken_does_not_note_its_fence_over_a_later_one() {
        let servers = spawn_blocking(Ensemble::single).await.expect("a server can be started");
        let url = servers.url("broken", Duration::from_secs(20));
        let shared = open(url.parse().unwrap()).await.unwrap().shared;
        let session = shared.sessions.get().await.unwrap();
        // It is first in line, and has not noted its fence yet.
        let mut broken = writer(&shared);
        let (standing, _) = broken.place.stand(&session, b"").await.unwrap();
        session.zk.delete(&standing.path, None).await.unwrap();
        let later =
            writer(&shared).attempt(Clock::System.now()).await.unwrap().expect("it is free").fence;
        let noted = broken.fence(&standing).await;
        let (data, _) = session.zk.get_data(broken.place.dir()).await.unwrap();
        assert_eq!(record::read_fence(&data), Some(later), "{noted:?} was noted over it");
        // It stands behind the later one when it asks again.
        assert!(broken.attempt(Clock::System.now()).await.unwrap().is_none());
    }
}
