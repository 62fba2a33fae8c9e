//! A claim on permits of a semaphore: a place in the line before it, then a lease node per permit.
//!
//! Only the first in the line `locks` makes nodes in `leases`, so their number never exceeds the limit.
//! It makes all of its own and leaves the line in one transaction. The fence is that of the place in
//! line, because permits are given in that order.

use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client as zk;

use super::claim::turn;
use super::error::{NAME, ends_session, failed};
use super::layout::{Kind, Node, kazoo_permit, line};
use super::queue_node::{ANY_VERSION, QueueNode, Standing, TRIES, make_directory};
use super::session::Session;
use super::watch::{Alarm, change_in, end_of};
use super::{Entered, LEASES, LOCKS, Shared, record};
use crate::core::admission::{self, Turn};
use crate::core::clock::Moment;
use crate::engine::{Claim, Fence, Grant, Released, Request};
use crate::engines::yield_signal::YieldSignal;
use crate::error::{Error, Result};

pub(super) struct SemaphoreClaim {
    shared: Arc<Shared>,
    request: Request,
    take: u32,
    limit: u32,
    /// The lock itself, where others may stand who do not take it for a semaphore.
    base: String,
    leases: String,
    gate: QueueNode,
    step: Step,
    /// The path that the wait is for, and the alarm once we listen.
    waiting: Option<(Behind, Option<Alarm>)>,
    bell: YieldSignal,
    /// Whether it found everything taken before, by locks.
    full_before: bool,
    /// Whether deletions were asked for and not all answered.
    leaving: bool,
    /// Set while it holds.
    in_use: Option<Arc<()>>,
}

enum Step {
    /// In line, or not even there.
    Outside,
    /// The transaction that lets us in was sent from this place, and not answered.
    Entering(Standing),
    Inside(Standing, Vec<Node>),
}

/// What is there of a lock.
struct Around {
    base: Vec<String>,
    gates: Vec<Node>,
    leases: Vec<Node>,
}

/// Someone who takes the lock for something else.
enum Stranger {
    None,
    /// It came after one of us, and goes again. Whoever came after it waits for that.
    Leaves {
        path: String,
        made: i64,
    },
    /// It was there first: the lock is this.
    Is(String),
}

/// How much of a request creations may take. Servers cut whoever sends more than `jute.maxbuffer`, which is
/// 1 MB unless it is set.
const CREATIONS: usize = 1_000_000;

/// What a creation takes beside its path and its data.
const OVERHEAD: usize = 64;

enum Behind {
    /// Someone in line.
    Node(String),
    /// First in line, and everything is taken.
    Full,
}

impl SemaphoreClaim {
    pub(super) fn new(shared: &Arc<Shared>, request: Request, take: u32, limit: u32) -> Self {
        let base = shared.dir(&request.key);
        let gate = QueueNode::new(format!("{base}/{LOCKS}"), Kind::Mutex, shared.settings.acls());
        let leases = format!("{base}/{LEASES}");
        let (shared, bell) = (shared.clone(), YieldSignal::default());
        Self {
            shared,
            request,
            take,
            limit,
            base,
            leases,
            gate,
            step: Step::Outside,
            waiting: None,
            bell,
            full_before: false,
            leaving: false,
            in_use: None,
        }
    }

    fn doing(&self) -> String {
        format!("take permits of {:?}", self.request.key)
    }

    /// Refuses more than a request can hold, before anything is asked for.
    fn refuse_too_many(&self) -> Result<()> {
        let record = record::write(&self.request, Some(Fence::new(u64::MAX)));
        let (id, word) = (self.gate.id(), Kind::Lease.word());
        let path = format!("{}/{id}{}.{}-{word}", self.leases, self.limit, self.limit);
        let most = CREATIONS / (path.len() + record.len() + OVERHEAD);
        if self.take as usize <= most {
            return Ok(());
        }
        Err(Error::Unsupported {
            engine: NAME,
            what: format!(
                "take {} permits at once: with this key and note, one request to the servers has room \
                 for {most} at most",
                self.take
            ),
        })
    }

    /// What is in a directory, which may not be there.
    fn listed(&self, children: Result<Vec<String>, zk::Error>) -> Result<Vec<String>> {
        match children {
            Err(zk::Error::NoNode) => Ok(Vec::new()),
            children => children.map_err(failed(self.doing())),
        }
    }

    /// Everything that is there of the lock. All questions leave at once.
    async fn look(&self, session: &Session) -> Result<Around> {
        // Without a write of our own before it, an outdated server would show those who left already.
        let sync = session.zk.sync(&self.base);
        let base = session.zk.list_children(&self.base);
        let gates = session.zk.list_children(self.gate.dir());
        // After the places in line, because they move here at once: none is overlooked.
        let leases = session.zk.list_children(&self.leases);
        sync.await.map_err(failed(self.doing()))?;
        let (base, gates) = (self.listed(base.await)?, self.listed(gates.await)?);
        Ok(Around { base, gates: line(&gates), leases: line(&self.listed(leases.await)?) })
    }

    /// Whether this is another lock than was asked for. The oldest node decides, and whoever finds out
    /// that it asked for the wrong kind leaves again; see `QueueClaim`.
    async fn stranger(&self, session: &Session, around: &Around) -> Result<Stranger> {
        let key = &self.request.key;
        if let Some(permit) = kazoo_permit(&around.base) {
            session.refuse_data(key, &format!("{}/{permit}", self.base)).await?;
            return Ok(Stranger::Is("a semaphore of kazoo's".to_owned()));
        }
        if let Some((lease, limit)) = self.other_limit(&around.leases) {
            session.refuse_data(key, &format!("{}/{}", self.leases, lease.name)).await?;
            return Ok(Stranger::Is(format!("a semaphore of {limit}")));
        }
        let base = line(&around.base);
        let Some(node) = base.first() else { return Ok(Stranger::None) };
        let path = format!("{}/{}", self.base, node.name);
        let data = session.refuse_data(key, &path);
        let age = |dir: &str, nodes: &[Node]| {
            nodes.first().map(|node| session.created(&format!("{dir}/{}", node.name)))
        };
        let made = session.created(&path);
        let gate = age(self.gate.dir(), &around.gates);
        let lease = age(&self.leases, &around.leases);
        data.await?;
        // One that is gone may have hidden others: whoever listens for it looks again at once.
        let Some(made) = made.await? else { return Ok(Stranger::Leaves { path, made: 0 }) };
        for ours in [gate, lease].into_iter().flatten() {
            if ours.await?.is_some_and(|ours| ours < made) {
                // It will go, but it may not know yet that it has to.
                return Ok(Stranger::Leaves { path, made });
            }
        }
        Ok(Stranger::Is(node.kind.name().to_owned()))
    }

    /// As [`stranger`](SemaphoreClaim::stranger), without a place in line.
    async fn used_otherwise(&self, session: &Session) -> Result<Option<String>> {
        match self.stranger(session, &self.look(session).await?).await? {
            Stranger::Is(found) => Ok(Some(found)),
            _ => Ok(None),
        }
    }

    fn conflict(&self, found: &str) -> Error {
        Error::Conflict {
            key: self.request.key.clone(),
            found: format!("it is used as {found}, and was asked for as {}", self.request.mode),
        }
    }

    /// Whether there is no room for us beside these.
    fn is_full(&self, leases: &[Node]) -> bool {
        leases.len() + self.take as usize > self.limit as usize
    }

    /// Someone who counts otherwise, and its limit.
    fn other_limit<'a>(&self, leases: &'a [Node]) -> Option<(&'a Node, u32)> {
        let mut limits = leases.iter().filter_map(|node| Some((node, node.permit()?.1)));
        limits.find(|(_, limit)| *limit != self.limit)
    }

    /// Refuses what only looks as if it were in the way: a place in line, or permits that are taken.
    async fn refuse_data(
        &mut self,
        session: &Session,
        around: &Around,
        behind: &Behind,
    ) -> Result<()> {
        match behind {
            Behind::Node(path) => session.refuse_data(&self.request.key, path).await,
            // A request for each permit is a lot for one who looks again at every change.
            Behind::Full if self.full_before => Ok(()),
            Behind::Full => {
                session.refuse_data_in(&self.request.key, &self.leases, &around.leases).await?;
                self.full_before = true;
                Ok(())
            }
        }
    }

    /// The transaction: one lease per permit, and out of the line.
    async fn enter(&mut self, gate: &Standing, slots: &[u32]) -> Result<Vec<Node>> {
        let fence = Fence::new(gate.created.try_into().unwrap_or(0));
        let record = record::write(&self.request, Some(fence));
        let options = zk::CreateMode::EphemeralSequential.with_acls(self.shared.settings.acls());
        let (id, word) = (self.gate.id().to_owned(), Kind::Lease.word());
        let doing = self.doing();
        for _ in 0..2 {
            let mut all = gate.session.zk.new_multi_writer();
            for slot in slots {
                let path = format!("{}/{id}{slot}.{}-{word}", self.leases, self.limit);
                all.add_create(&path, &record, &options).map_err(failed(&*doing))?;
            }
            all.add_delete(&gate.path, None).map_err(failed(&*doing))?;
            let entering = all.commit();
            self.step = Step::Entering(gate.clone());
            match entering.await {
                Ok(results) => {
                    let name = |result: &zk::MultiWriteResult| match result {
                        zk::MultiWriteResult::Create { path, .. } => {
                            path.rsplit_once('/').map(|(_, name)| name.to_owned())
                        }
                        _ => None,
                    };
                    let ours = line(&results.iter().filter_map(name).collect::<Vec<_>>());
                    self.gate.left();
                    self.step = Step::Inside(gate.clone(), ours.clone());
                    return Ok(ours);
                }
                Err(zk::MultiWriteError::OperationFailed {
                    index: 0,
                    source: zk::Error::NoNode,
                }) => {
                    self.step = Step::Outside;
                    make_directory(&gate.session, &self.leases, self.shared.settings.acls())
                        .await?;
                }
                Err(error) => {
                    let known = matches!(error, zk::MultiWriteError::OperationFailed { .. });
                    let error = zk::Error::from(error);
                    if known || ends_session(&error) {
                        self.step = Step::Outside;
                    }
                    return Err(failed(doing)(error));
                }
            }
        }
        Err(Error::unreachable(NAME, doing, "its directory is removed at once"))
    }

    /// Whether the transaction took effect: then our leases are there, with their slots in their names.
    async fn entered(&mut self, gate: Standing) -> Result<Option<Vec<Node>>> {
        // The server that answers now may be another one, which has not heard of it yet.
        let sync = gate.session.zk.sync(&self.base);
        let leases = gate.session.zk.list_children(&self.leases);
        sync.await.map_err(failed(self.doing()))?;
        let id = self.gate.id();
        let mut ours = line(&self.listed(leases.await)?);
        ours.retain(|node| node.id() == id);
        if ours.is_empty() {
            self.step = Step::Outside;
            return Ok(None);
        }
        self.gate.left();
        self.step = Step::Inside(gate, ours.clone());
        Ok(Some(ours))
    }

    fn granted(&mut self, gate: &Standing, ours: &[Node], asked: &Moment) -> Result<Grant> {
        self.in_use = Some(self.shared.in_use.clone());
        let paths: Vec<_> =
            ours.iter().map(|node| format!("{}/{}", self.leases, node.name)).collect();
        let slots = ours.iter().filter_map(|node| node.permit()).map(|(slot, _)| slot).collect();
        let fence = Fence::new(gate.created.try_into().unwrap_or(0));
        let standing = Standing { path: paths[0].clone(), ..gate.clone() };
        let entered = Entered { standing, paths, fence, slots, news: None };
        self.shared.grant(&self.request, entered, &self.bell, asked)
    }

    /// Asks again for what was given before: is it still ours?
    async fn confirm(&self, gate: &Standing, ours: &[Node]) -> Result<bool> {
        let mut all = gate.session.zk.new_multi_writer();
        for node in ours {
            let path = format!("{}/{}", self.leases, node.name);
            all.add_check_version(&path, ANY_VERSION).map_err(failed(self.doing()))?;
        }
        match all.commit().await.map_err(zk::Error::from) {
            Ok(_) => Ok(true),
            Err(zk::Error::NoNode) => Ok(false),
            Err(error) => Err(failed(self.doing())(error)),
        }
    }

    async fn ask(&mut self, asked: Moment) -> Result<Option<Grant>> {
        if let Some((Behind::Node(path), Some(_))) = &self.waiting
            && self.gate.still_behind(path).await
        {
            return Ok(None);
        }
        self.waiting = None;
        self.refuse_too_many()?;
        let session = self.shared.sessions.get().await?;
        let step = std::mem::replace(&mut self.step, Step::Outside);
        let known = match step {
            Step::Entering(gate) if Arc::ptr_eq(&gate.session, &session) => {
                self.step = Step::Entering(gate.clone());
                self.entered(gate.clone()).await?.map(|ours| (gate, ours))
            }
            Step::Inside(gate, ours) if Arc::ptr_eq(&gate.session, &session) => Some((gate, ours)),
            Step::Outside => None,
            // Another session took everything along, or will do so soon.
            Step::Entering(_) | Step::Inside(..) => {
                self.gate.start_again();
                None
            }
        };
        if let Some((gate, ours)) = known {
            self.step = Step::Inside(gate.clone(), ours.clone());
            if self.confirm(&gate, &ours).await? {
                return self.granted(&gate, &ours, &asked).map(Some);
            }
            self.step = Step::Outside;
            self.gate.start_again();
        }
        // It looks before it stands, so that it is not in the way of those who take the lock for
        // something else: there is no order between their line and this one.
        if self.gate.standing().is_none() {
            let around = self.look(&session).await?;
            // Twice, because whoever asked for the wrong kind is gone in a moment.
            if matches!(self.stranger(&session, &around).await?, Stranger::Is(_))
                && let Some(found) = self.used_otherwise(&session).await?
            {
                return Err(self.conflict(&found));
            }
            let busy = match around.gates.first() {
                Some(gate) => Some(Behind::Node(format!("{}/{}", self.gate.dir(), gate.name))),
                None => self.is_full(&around.leases).then_some(Behind::Full),
            };
            if let Some(busy) = busy.filter(|_| !self.request.queue) {
                self.refuse_data(&session, &around, &busy).await?;
                return Ok(None);
            }
        }
        let record = record::write(&self.request, None);
        for _ in 0..TRIES {
            let came_just_now = self.gate.standing().is_none();
            let (gate, _) = self.gate.stand(&session, &record).await?;
            let around = self.look(&session).await?;
            let stranger = self.stranger(&session, &around).await?;
            if let Stranger::Is(_) = stranger {
                // We are the wrong one, unless it is on its way out. So we go first, and look then.
                self.gate.leave().await?;
                match self.used_otherwise(&session).await? {
                    Some(found) => return Err(self.conflict(&found)),
                    None => continue,
                }
            }
            let line = &around.gates;
            if !line.iter().any(|node| node.name == gate.name) {
                // Somebody deleted it in between.
                self.gate.start_again();
                continue;
            }
            if came_just_now {
                session.refuse_data_behind(&self.request.key, &gate, line).await?;
            }
            let behind = match turn(line, &gate.name) {
                Turn::Behind(ahead) => {
                    Behind::Node(format!("{}/{}", self.gate.dir(), line[ahead].name))
                }
                Turn::In | Turn::Full => match stranger {
                    Stranger::Leaves { path, made } if made < gate.created => Behind::Node(path),
                    _ if self.is_full(&around.leases) => Behind::Full,
                    _ => {
                        let taken = around.leases.iter().filter_map(Node::permit);
                        let slots = admission::free_slots(taken.map(|(slot, _)| slot), self.take);
                        let ours = self.enter(&gate, &slots).await?;
                        return self.granted(&gate, &ours, &asked).map(Some);
                    }
                },
            };
            if self.request.queue {
                self.refuse_data(&session, &around, &behind).await?;
                self.waiting = Some((behind, None));
            } else {
                self.gate.leave().await?;
            }
            return Ok(None);
        }
        Err(Error::unreachable(
            NAME,
            self.doing(),
            "its place is taken away as soon as it is there",
        ))
    }
}

#[async_trait]
impl Claim for SemaphoreClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let answer = self.ask(asked).await;
        if let Err(Error::Conflict { .. }) = &answer {
            // Whoever is refused stands in nobody's way, not even for a moment.
            self.gate.leave().await?;
        }
        answer
    }

    async fn wait(&mut self) -> Result<()> {
        let (Some((behind, alarm)), Some(standing)) = (&mut self.waiting, self.gate.standing())
        else {
            return Ok(());
        };
        if alarm.is_none() {
            *alarm = match behind {
                Behind::Node(path) => end_of(path, standing).await?,
                Behind::Full => {
                    let (listening, room) = change_in(&self.leases, standing).await?;
                    // It may have come free before we listened.
                    let taken = line(&room).len() + self.take as usize;
                    (taken > self.limit as usize).then_some(listening)
                }
            };
        }
        if let Some(alarm) = alarm {
            alarm.await;
        }
        self.waiting = None;
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        self.in_use = None;
        self.waiting = None;
        if let Step::Entering(gate) = &self.step {
            let gate = gate.clone();
            if gate.session.is_over() {
                self.step = Step::Outside;
            } else {
                self.entered(gate).await?;
            }
        }
        let Step::Inside(gate, ours) = &self.step else { return self.gate.leave().await };
        // All leave on the first poll; the answers come in order.
        let delete =
            |node: &Node| gate.session.zk.delete(&format!("{}/{}", self.leases, node.name), None);
        let deletions: Vec<_> = ours.iter().map(delete).collect();
        // A request before, whose reply was lost, may have deleted them.
        let asked_before = std::mem::replace(&mut self.leaving, true);
        let mut released = if asked_before { Released::Yes } else { Released::AlreadyGone };
        for deletion in deletions {
            match deletion.await {
                Ok(()) => released = Released::Yes,
                Err(zk::Error::NoNode) => {}
                Err(error) if ends_session(&error) => {}
                Err(error) => {
                    let doing = format!("give permits of {:?} back", self.request.key);
                    return Err(failed(doing)(error));
                }
            }
        }
        self.step = Step::Outside;
        self.leaving = false;
        Ok(released)
    }
}

impl std::fmt::Debug for SemaphoreClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SemaphoreClaim").field("request", &self.request).finish_non_exhaustive()
    }
}
