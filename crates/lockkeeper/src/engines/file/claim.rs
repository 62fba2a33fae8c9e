//! A claim on a lock file: its open file, its number, and how it waits.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::{sleep, timeout_at};

use super::ofd_lock::{self, Bytes, Hold};
use super::opened::{MOST_RECORDS, Opened, Place, both, ticket, waiting};
use super::record::{Record, State};
use super::stalled::Stalled;
use super::watchers::{self, Freed};
use super::{Shared, failed, or_conflict};
use crate::core::Backoff;
use crate::core::admission::{self, Turn};
use crate::core::clock::Moment;
use crate::engine::{Claim, Fence, Grant, Held, Mode, Released, Request, Signal, YieldRequest};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::owner::Token;

/// How the first waiter for a semaphore polls for a free permit: the kernel cannot wait for *any*
/// of several bytes. One process per key polls, the others sleep behind it.
const LOOK: Backoff = Backoff::between(Duration::from_millis(1), Duration::from_millis(25));

/// How often a listening holder checks whether it was asked to give way.
const ASKED: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct FileClaim {
    shared: Arc<Shared>,
    request: Request,
    path: PathBuf,
    /// Open from the first attempt to the release.
    opened: Option<Opened>,
    /// Our number and the position of our record, once we are in the queue.
    place: Option<Place>,
    granted: Option<Granted>,
    /// What the last attempt found blocking us.
    obstacle: Obstacle,
    /// The thread that sleeps on a byte, for us and perhaps for other claims.
    watcher: Option<(Bytes, Freed)>,
    stalled: Stalled,
}

/// What was granted: its fence, how many fences after it are reserved, and its permits.
#[derive(Debug, Clone)]
struct Granted {
    fence: Fence,
    reserved: u32,
    slots: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    None,
    /// Nothing changes before this byte is free.
    Byte(Bytes),
    /// All permits are taken, and we are first in the queue.
    Full {
        looks: u32,
    },
}

impl FileClaim {
    pub(super) fn new(shared: Arc<Shared>, request: Request) -> Self {
        let path = shared.directory.file_of(&request.key);
        Self {
            shared,
            request,
            path,
            opened: None,
            place: None,
            granted: None,
            obstacle: Obstacle::None,
            watcher: None,
            stalled: Stalled::default(),
        }
    }

    /// Opens the file if necessary, and takes the deciding byte; returns the epoch.
    ///
    /// The locked file must be the one at the path: it may have been removed or replaced between
    /// opening and locking.
    async fn decide(&mut self) -> Result<u64> {
        loop {
            let opened = match &self.opened {
                Some(opened) => opened,
                None => self.opened.insert(self.shared.open(&self.request.key, &self.path)?),
            };
            let own = self.place.map(|place| place.number);
            if let Some(epoch) = opened.decide(&self.path, &self.request.key, own).await? {
                return Ok(epoch);
            }
            // Our place in the queue, if we had one, went with the file.
            self.opened = None;
            self.place = None;
            self.watcher = None;
        }
    }

    /// Decides under the deciding byte whether it is our turn, and records the outcome.
    fn judge(&mut self, epoch: u64, asked: Moment) -> Result<Option<Grant>> {
        let opened = self.opened.as_ref().expect("a file is open while it is decided on");
        let begun = opened.read_or_begin(epoch, &self.request.key);
        let mut file = begun.map_err(|error| or_conflict(&self.request.key, error))?;
        if file.key != self.request.key {
            let found = format!("its file {} says that it is {:?}", self.path.display(), file.key);
            return Err(Error::Conflict { key: self.request.key.clone(), found });
        }
        let mut own = self.place.map(|place| place.number);
        let mut living = opened.living(&file, own)?;
        if let Some(number) = own {
            let ours = living.iter().find(|(_, record)| record.number == number);
            match ours.map(|(at, record)| (*at, record.state)) {
                Some((at, State::Waiting)) => self.place = Some(Place { number, epoch, at }),
                // We were granted, but could not be sure of it: another process had started a new
                // epoch.
                Some((at, State::Granted)) => {
                    self.granted = ours.map(|(_, record)| Granted {
                        fence: record.fence,
                        reserved: 0,
                        slots: record.slots.clone(),
                    });
                    self.place = Some(Place { number, epoch, at });
                    self.unlock(waiting(number))?;
                    return self.grant(asked);
                }
                // Our place did not make it into this epoch, or was removed: we start again.
                Some((_, State::Broken)) | None => {
                    self.unlock(both(number))?;
                    self.place = None;
                    own = None;
                }
            }
        }
        let opened = self.opened.as_ref().expect("a file is open while it is decided on");
        let used: Vec<usize> = living.iter().map(|(at, _)| *at).collect();
        living.retain(|(_, record)| Some(record.number) != own && record.state != State::Broken);
        let queue: Vec<Record> = living.into_iter().map(|(_, record)| record).collect();
        if let Some(other) =
            queue.iter().find(|other| !admission::mixes(self.request.mode, other.mode))
        {
            return Err(self.request.conflict(other.mode));
        }

        let turn = self.stalled.turn(&self.request, own.unwrap_or(u64::MAX), &queue);
        self.obstacle = match turn {
            Turn::In => Obstacle::None,
            Turn::Behind(j) => Obstacle::Byte(match (self.request.mode, queue[j].state) {
                (Mode::Permits { .. }, State::Waiting) => waiting(queue[j].number),
                _ => ticket(queue[j].number),
            }),
            Turn::Full => match self.obstacle {
                Obstacle::Full { looks } => Obstacle::Full { looks: looks + 1 },
                _ => Obstacle::Full { looks: 0 },
            },
        };
        if turn != Turn::In && (own.is_some() || !self.request.queue) {
            return Ok(None);
        }

        let mut record = Record::new(&self.request, own.unwrap_or(file.next));
        let mut reserved = 0;
        if turn == Turn::In {
            record.state = State::Granted;
            if let Mode::Permits { take, .. } = self.request.mode {
                record.slots =
                    admission::free_slots(queue.iter().flat_map(|other| other.slots.clone()), take);
            }
            // An owner that re-enters keeps its fence, or the resource would reject its first
            // guard.
            let again = !matches!(self.request.mode, Mode::Permits { .. })
                && queue.iter().any(|other| {
                    other.state == State::Granted
                        && other.mode.is_exclusive()
                        && other.identity() == record.identity()
                });
            if self.request.mode != Mode::Read && !again {
                let now = SystemTime::now();
                (record.fence, reserved) = file.fence.after_with(now, self.request.reserve);
                file.fence = file.fence.after(now);
            } else {
                record.fence = file.fence;
            }
        }
        let granted = Granted { fence: record.fence, reserved, slots: record.slots.clone() };
        let number = record.number;
        let at = match self.place {
            Some(place) => place.at,
            None => {
                // No other claim ever gets this number, so the byte is free.
                let bytes = if turn == Turn::In { ticket(number) } else { both(number) };
                let locked = ofd_lock::try_lock(&opened.file, bytes, Hold::Exclusive)
                    .map_err(|error| failed("lock a lock file", error))?;
                if !locked {
                    return Err(
                        opened.failed("lock", io::Error::other("its numbers went backwards"))
                    );
                }
                file.next = number + 1;
                file.make_room(&used)
            }
        };
        if at >= MOST_RECORDS {
            self.unlock(both(number))?;
            let room = format!("there is room for {MOST_RECORDS} holders and waiters of a lock");
            return Err(opened.failed("write", io::Error::other(room)));
        }
        if let Err(error) = opened.write(epoch, &file, at, &record) {
            if own.is_none() {
                self.unlock(both(number))?;
            }
            return Err(error);
        }
        self.place = Some(Place { number, epoch, at });
        if turn != Turn::In {
            return Ok(None);
        }
        if own.is_some() {
            self.unlock(waiting(number))?;
        }
        self.granted = Some(granted);
        self.grant(asked)
    }

    fn unlock(&self, bytes: Bytes) -> Result<()> {
        let Some(opened) = &self.opened else { return Ok(()) };
        ofd_lock::unlock(&opened.file, bytes).map_err(|error| opened.failed("unlock", error))
    }

    fn grant(&self, asked: Moment) -> Result<Option<Grant>> {
        let (Some(granted), Some(opened)) = (self.granted.clone(), &self.opened) else {
            return Ok(None);
        };
        let Granted { fence, reserved, slots } = granted;
        let held = FileHeld {
            file: Arc::downgrade(&opened.file),
            shared: self.shared.clone(),
            key: self.request.key.clone(),
            token: self.request.token,
        };
        let (ttl, since) = (self.request.ttl, asked);
        Ok(Some(Grant { fence, slots, ttl, since, held: Arc::new(held), reserved }))
    }

    /// Makes sure that a thread sleeps until the byte is free.
    fn watch(&mut self, byte: Bytes) -> Result<()> {
        if self.watcher.as_ref().is_some_and(|(watched, _)| *watched == byte) {
            return Ok(());
        }
        let opened = self.opened.as_ref().expect("a claim attempts before it waits");
        let freed = watchers::watch(opened.identity, byte, || {
            let file = self.shared.directory.open_existing(&self.path).and_then(Opened::new);
            let file = file.map_err(|error| failed("open a lock file", error))?;
            if file.identity == opened.identity {
                return Ok(file.file);
            }
            // The next attempt handles that.
            Err(opened.failed("watch", io::Error::other("it was replaced")))
        })?;
        self.watcher = Some((byte, freed));
        Ok(())
    }

    /// Unlocks our bytes.
    fn leave(&mut self) -> Result<()> {
        self.granted = None;
        self.place.take().map_or(Ok(()), |place| self.unlock(both(place.number)))
    }
}

#[async_trait]
impl Claim for FileClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        if let Some(grant) = self.grant(asked)? {
            return Ok(Some(grant));
        }
        loop {
            let epoch = self.decide().await?;
            let answer = self.judge(epoch, asked);
            let opened = self.opened.as_ref().expect("it was just decided on");
            // Another process may have considered us stopped. Then what we wrote does not count,
            // unless it was copied: the next round will tell.
            let counts = opened.epoch().map(|current| current == epoch);
            opened.decided(epoch)?;
            if counts? || answer.is_err() {
                return answer;
            }
            self.granted = None;
        }
    }

    async fn wait(&mut self) -> Result<()> {
        match self.obstacle {
            Obstacle::None => return Ok(()),
            Obstacle::Full { looks } => {
                sleep(LOOK.delay(looks)).await;
                return Ok(());
            }
            Obstacle::Byte(byte) => self.watch(byte)?,
        }
        let Some((_, watcher)) = &mut self.watcher else { return Ok(()) };
        let freed = match self.stalled.pass_at {
            Some(until) => timeout_at(until, watcher.wait()).await.is_ok(),
            None => {
                watcher.wait().await;
                true
            }
        };
        if freed {
            self.watcher = None;
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        let broken = match (&self.opened, self.place, &self.granted) {
            (Some(opened), Some(place), Some(_)) => !opened.is_granted(place)?,
            _ => false,
        };
        let number = self.place.map(|place| place.number);
        self.leave()?;
        if let Some(mut opened) = self.opened.take() {
            opened.given_back = number.or(opened.given_back);
            self.shared.put_back(&self.request.key, opened);
        }
        Ok(if broken { Released::AlreadyGone } else { Released::Yes })
    }
}

/// The open file whose kernel lock is the grant. The claim keeps it open.
#[derive(Debug)]
struct FileHeld {
    file: Weak<File>,
    shared: Arc<Shared>,
    key: Key,
    token: Token,
}

impl Held for FileHeld {
    fn expires(&self) -> bool {
        false
    }

    /// Nothing tells of a change in a file, so it is looked for.
    fn yield_requested(&self) -> Option<Signal<YieldRequest>> {
        let (shared, key, token) = (self.shared.clone(), self.key.clone(), self.token);
        Some(Box::pin(async move {
            loop {
                match shared.granted(&key, token).map(|found| found.map(|record| record.asked)) {
                    Ok(Some(Some(asked))) => return asked,
                    Ok(None) => std::future::pending().await,
                    _ => sleep(ASKED).await,
                }
            }
        }))
    }

    fn bequeath(&self) -> Option<OwnedFd> {
        self.file.upgrade()?.try_clone().ok().map(OwnedFd::from)
    }
}

impl Drop for FileClaim {
    /// For a hold that was never released, for instance because the runtime ended: a child may have
    /// inherited the open file, and then closing ours would not end the lock.
    fn drop(&mut self) {
        let _ = self.leave();
    }
}
