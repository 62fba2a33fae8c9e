//! A claim on a mutex or a read-write lock: a node in the lock's own line.

use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client as zk;

use super::error::failed;
use super::names::{Kind, Node, line};
use super::place::{Place, Standing};
use super::watch::{Alarm, end_of};
use super::{LEASES, LOCKS, Shared, record};
use crate::backend::{Asked, Claim, Fence, Grant, Mode, Released, Request};
use crate::backends::bell::Bell;
use crate::error::{Error, Result};
use crate::queue::{self, Turn};

#[derive(Debug)]
pub(super) struct Line {
    shared: Arc<Shared>,
    request: Request,
    place: Place,
    waiting: Option<Waiting>,
    /// Whether the holder was asked to give way.
    bell: Bell,
}

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

impl Line {
    pub(super) fn new(shared: &Arc<Shared>, request: Request) -> Self {
        let dir = shared.dir(&request.key);
        let place = Place::new(dir, Kind::of(request.mode), shared.settings.acls());
        Self { shared: shared.clone(), request, place, waiting: None, bell: Bell::default() }
    }

    /// Refuses to stand in a line with those who do not see each other.
    async fn refuse_other_kinds(&self, standing: &Standing, children: &[String]) -> Result<()> {
        let conflict = |found: &str| Error::Conflict {
            key: self.request.key.clone(),
            found: format!("it is used as {found}, and was asked for as {}", self.request.mode),
        };
        let mine = Kind::of(self.request.mode);
        if let Some(other) = line(children).iter().find(|node| !node.kind.mixes(mine)) {
            return Err(conflict(other.kind.mode().kind()));
        }
        // A semaphore leaves its directories behind for a while. Its places move from the first to
        // the second at once, so in this order none is overlooked.
        let semaphore = |name: &&str| children.iter().any(|child| child == name);
        for name in [LOCKS, LEASES].iter().filter(|name| semaphore(name)) {
            let path = format!("{}/{name}", self.place.dir());
            match standing.session.zk.list_children(&path).await {
                Ok(there) => {
                    if let Some(node) = line(&there).first() {
                        return Err(conflict(&match node.permit() {
                            Some((_, limit)) => format!("a semaphore of {limit}"),
                            None => "a semaphore".to_owned(),
                        }));
                    }
                }
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failed(format!("look at {path:?}"))(error)),
            }
        }
        Ok(())
    }

    /// Readers carry the fence of the last writer, which each writer notes before it begins.
    async fn fence(&self, standing: &Standing) -> Result<Fence> {
        let own = Fence::new(standing.created.try_into().unwrap_or(0));
        if self.request.mode == Mode::Mutex {
            return Ok(own);
        }
        let (zk, dir) = (&standing.session.zk, self.place.dir());
        let doing = || format!("note the fence of {:?}", self.request.key);
        let (data, stat) = zk.get_data(dir).await.map_err(failed(doing()))?;
        let Some(noted) = record::read_fence(&data) else {
            return Err(Error::Conflict {
                key: self.request.key.clone(),
                found: format!("the node {dir:?} holds data of something else"),
            });
        };
        match self.request.mode {
            // A directory that was removed with what it noted was made again after all of that.
            Mode::Read => Ok(noted.max(Fence::new(stat.czxid.try_into().unwrap_or(0)))),
            _ if noted == own => Ok(own),
            _ => {
                let note = record::write_fence(own);
                zk.set_data(dir, &note, None).await.map_err(failed(doing()))?;
                Ok(own)
            }
        }
    }
}

#[async_trait]
impl Claim for Line {
    async fn attempt(&mut self) -> Result<Option<Grant>> {
        if let Some(Waiting { path, alarm: Some(_) }) = &self.waiting
            && self.place.still_behind(path).await
        {
            return Ok(None);
        }
        self.waiting = None;
        let session = self.shared.sessions.get().await?;
        // One who does not queue looks first, so that it does not stand in anyone's way.
        if !self.request.queue && self.place.standing().is_none() {
            let others = line(&self.place.others(&session).await?);
            let (mode, mine) = (self.request.mode, Kind::of(self.request.mode));
            let busy = others.iter().any(|node| queue::conflict(mode, node.kind.mode()));
            if busy && others.iter().all(|node| node.kind.mixes(mine)) {
                return Ok(None);
            }
        }
        let record = record::write(&self.request, None);
        let (standing, children) = self.place.stand(&session, &record).await?;
        if let Err(refused) = self.refuse_other_kinds(&standing, &children).await {
            self.place.leave().await?;
            return Err(refused);
        }
        let line = line(&children);
        match turn(&line, &standing.name) {
            Turn::In => {}
            Turn::Behind(_) | Turn::Full if !self.request.queue => {
                self.place.leave().await?;
                return Ok(None);
            }
            Turn::Behind(ahead) => {
                let path = format!("{}/{}", self.place.dir(), line[ahead].name);
                self.waiting = Some(Waiting { path, alarm: None });
                return Ok(None);
            }
            Turn::Full => unreachable!("only a semaphore is full"),
        }
        let fence = self.fence(&standing).await?;
        let paths = vec![standing.path.clone()];
        Ok(Some(self.shared.grant(&self.request, &standing, paths, fence, Vec::new(), &self.bell)))
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
        self.shared.forget(self.request.token);
        self.waiting = None;
        self.place.leave().await
    }

    fn yield_requested(&self) -> Option<Asked> {
        Some(self.bell.rung())
    }
}

/// Whether the one of this name is in. Being first in line *is* holding.
pub(super) fn turn(line: &[Node], name: &str) -> Turn {
    let places: Vec<_> = line
        .iter()
        .map(|node| queue::Place { owner: &node.name, mode: node.kind.mode(), granted: false })
        .collect();
    match line.iter().position(|node| node.name == name) {
        Some(at) => queue::turn(&places, at),
        None => unreachable!("a place is taken before the turn is asked for"),
    }
}
