//! A claim on a lock file: its open file, its number, and how it waits.

use std::fs::File;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout_at};

use super::kernel::{self, Bytes, Hold};
use super::record::{Record, State};
use super::sleepers::Sleepers;
use super::{DECIDING, Opened, Shared, both, failed, or_conflict, ticket, waiting};
use crate::backend::{Claim, Fence, Grant, Lease, Mode, Released, Request};
use crate::engine::Backoff;
use crate::error::{Error, Result};
use crate::queue::{self, Turn};

/// How the first in line for a semaphore looks for a free permit: the kernel cannot wait for *any*
/// of several bytes. One process per key does this, the others sleep behind it.
const LOOK: Backoff = Backoff::between(Duration::from_millis(1), Duration::from_millis(25));

/// How often the byte of decisions is tried before a thread is asked to wait for it.
const TRIES: usize = 50;

#[derive(Debug)]
pub(super) struct FileClaim {
    shared: Arc<Shared>,
    request: Request,
    path: PathBuf,
    /// Open from the first attempt to the release.
    opened: Option<Opened>,
    /// Our number and the position of our record, once we are in line.
    place: Option<(u64, usize)>,
    granted: Option<(Fence, Vec<u32>)>,
    /// What the last attempt found in our way.
    obstacle: Obstacle,
    /// The thread that sleeps on a byte for us.
    watcher: Option<(Bytes, oneshot::Receiver<()>)>,
    sleepers: Sleepers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    None,
    /// Nothing changes before this byte is free.
    Byte(Bytes),
    /// All permits are taken, and we are first in line.
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
            sleepers: Sleepers::default(),
        }
    }

    /// Opens the file if need be, and takes the byte of decisions.
    ///
    /// The file that is locked must be the one that the path leads to: it may have been removed or
    /// replaced between opening and locking.
    async fn decide(&mut self) -> Result<()> {
        loop {
            let opened = match &self.opened {
                Some(opened) => opened,
                None => self.opened.insert(self.shared.open(&self.request.key, &self.path)?),
            };
            take_decision(&opened.file).await.map_err(|error| failed("lock a lock file", error))?;
            if opened.is_at(&self.path) {
                return Ok(());
            }
            // Our place in line went with the file, if we had one.
            self.opened = None;
            self.place = None;
            self.watcher = None;
        }
    }

    /// Decides under the byte of decisions whether it is our turn, and writes down what follows.
    fn judge(&mut self) -> Result<Option<Grant>> {
        let opened = self.opened.as_ref().expect("a file is open while it is decided on");
        let begun = opened.read_or_begin(&self.request.key);
        let mut file = begun.map_err(|error| or_conflict(&self.request.key, error))?;
        if file.key != self.request.key {
            let found = format!("its file {} says that it is {:?}", self.path.display(), file.key);
            return Err(Error::Conflict { key: self.request.key.clone(), found });
        }
        let own = self.place.map(|(number, _)| number);
        let mut living = opened.living(&file, own)?;
        let used: Vec<usize> = living.iter().map(|(at, _)| *at).collect();
        living.retain(|(_, record)| Some(record.number) != own && record.state != State::Broken);
        let line: Vec<Record> = living.into_iter().map(|(_, record)| record).collect();
        if let Some(other) = line.iter().find(|other| !queue::mixes(self.request.mode, other.mode))
        {
            let found =
                format!("it is used as {}, and was asked for as {}", other.mode, self.request.mode);
            return Err(Error::Conflict { key: self.request.key.clone(), found });
        }

        let turn = self.sleepers.turn(&self.request, own.unwrap_or(u64::MAX), &line);
        self.obstacle = match turn {
            Turn::In => Obstacle::None,
            Turn::Behind(j) => Obstacle::Byte(match (self.request.mode, line[j].state) {
                (Mode::Permits { .. }, State::Waiting) => waiting(line[j].number),
                _ => ticket(line[j].number),
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
        if turn == Turn::In {
            record.state = State::Granted;
            if let Mode::Permits { take, .. } = self.request.mode {
                record.slots =
                    queue::free_slots(line.iter().flat_map(|other| other.slots.clone()), take);
            }
            // An owner that enters again keeps its fence, or the resource would refuse its first guard.
            let again = !matches!(self.request.mode, Mode::Permits { .. })
                && line.iter().any(|other| {
                    other.state == State::Granted
                        && other.mode.is_exclusive()
                        && other.identity() == record.identity()
                });
            if self.request.mode != Mode::Read && !again {
                file.fence = file.fence.after(SystemTime::now());
            }
            record.fence = file.fence;
        }
        let granted = (record.fence, record.slots.clone());
        let number = record.number;
        let at = match self.place {
            Some((_, at)) => at,
            None => {
                // Nobody else ever gets this number, so nobody is in the way.
                let bytes = if turn == Turn::In { ticket(number) } else { both(number) };
                kernel::lock(&opened.file, bytes, Hold::Exclusive)
                    .map_err(|error| failed("lock a lock file", error))?;
                file.next = number + 1;
                file.make_room(&used)
            }
        };
        opened.write(&file, at, &record)?;
        self.place = Some((number, at));
        if turn != Turn::In {
            return Ok(None);
        }
        if own.is_some() {
            kernel::unlock(&opened.file, waiting(number))
                .map_err(|error| failed("unlock a lock file", error))?;
        }
        self.granted = Some(granted);
        Ok(self.grant())
    }

    fn grant(&self) -> Option<Grant> {
        let (fence, slots) = self.granted.clone()?;
        Some(Grant { fence, slots, lease: Lease::of(&self.request), bound: true, gone: None })
    }

    /// Starts a thread that sleeps until the byte is free, unless one does already.
    fn watch(&mut self, byte: Bytes) -> Result<()> {
        if self.watcher.as_ref().is_some_and(|(watched, _)| *watched == byte) {
            return Ok(());
        }
        let opened = self.opened.as_ref().expect("who waits has attempted");
        // A file of its own: the locks of the claim's file must not outlive the claim with the thread.
        let file = self.shared.directory.open_file(&self.path);
        let file = file.and_then(Opened::new).map_err(|error| failed("open a lock file", error))?;
        if file.identity != opened.identity {
            // Replaced: the next attempt sees to it.
            return Ok(());
        }
        let (freed, watcher) = oneshot::channel();
        std::thread::Builder::new()
            .name("lockkeeper-wait".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || {
                let _ = kernel::lock(&file.file, byte, Hold::Shared);
                let _ = freed.send(());
            })
            .map_err(|error| failed("start a thread that waits", error))?;
        self.watcher = Some((byte, watcher));
        Ok(())
    }

    /// Gives our bytes back.
    fn leave(&mut self) -> Result<()> {
        self.granted = None;
        let (Some((number, _)), Some(opened)) = (self.place.take(), &self.opened) else {
            return Ok(());
        };
        kernel::unlock(&opened.file, both(number))
            .map_err(|error| failed("unlock a lock file", error))
    }
}

#[async_trait]
impl Claim for FileClaim {
    async fn attempt(&mut self) -> Result<Option<Grant>> {
        if let Some(grant) = self.grant() {
            return Ok(Some(grant));
        }
        self.decide().await?;
        let answer = self.judge();
        let opened = self.opened.as_ref().expect("it was just decided on");
        kernel::unlock(&opened.file, DECIDING).map_err(|e| failed("unlock a lock file", e))?;
        answer
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
        let freed = match self.sleepers.pass_at {
            Some(until) => timeout_at(until, watcher).await.is_ok(),
            None => watcher.await.map_or(true, |()| true),
        };
        if freed {
            self.watcher = None;
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        let broken = match (&self.opened, self.place, &self.granted) {
            (Some(opened), Some((number, at)), Some(_)) => !opened.is_granted(number, at)?,
            _ => false,
        };
        let number = self.place.map(|(number, _)| number);
        self.leave()?;
        if let Some(mut opened) = self.opened.take() {
            opened.given_back = number.or(opened.given_back);
            self.shared.put_back(&self.request.key, opened);
        }
        Ok(if broken { Released::AlreadyGone } else { Released::Yes })
    }

    fn bequeath(&self) -> Option<OwnedFd> {
        self.granted.as_ref()?;
        self.opened.as_ref()?.file.try_clone().ok().map(OwnedFd::from)
    }
}

impl Drop for FileClaim {
    /// For the case that nobody released it, such as the end of the runtime: a child may have
    /// inherited the open file, and closing ours would not end the lock then.
    fn drop(&mut self) {
        let _ = self.leave();
    }
}

/// Takes the byte of decisions: at once in most cases, else by a thread that may sleep.
async fn take_decision(file: &File) -> std::io::Result<()> {
    for _ in 0..TRIES {
        if kernel::try_lock(file, DECIDING, Hold::Exclusive)? {
            return Ok(());
        }
        // The one who decides needs some microseconds.
        std::thread::yield_now();
    }
    let file = file.try_clone()?;
    let locked =
        tokio::task::spawn_blocking(move || kernel::lock(&file, DECIDING, Hold::Exclusive)).await;
    match locked {
        Ok(locked) => locked,
        // The runtime ends: nobody will ever poll us again.
        Err(_) => pending().await,
    }
}
