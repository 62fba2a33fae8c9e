//! Which process may decide, even if the one that does is stopped half way.
//!
//! A decision reads the records and writes one, under the deciding byte. A process that is stopped
//! meanwhile keeps the byte. So no process waits for it longer than [`STALL`]: the next one starts
//! a new *epoch*, with its own deciding byte and its own area of the file, and copies the records
//! of living claims there. The claims' own bytes are the same in all epochs.
//!
//! The current epoch is the one in which the file ends. A file never shrinks, so an epoch that is
//! over never returns, whichever process wakes up and writes. A stopped process still writes to its
//! old area, which is no longer read.
//!
//! Easy to get wrong: the order. A process that decides writes, and *then* checks whether its epoch
//! is still current; otherwise what it wrote does not count. A process that starts an epoch
//! announces it, and *then* reads the records of the last one. So if both happen at once, at least
//! one of the two sees the other.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::identity::Identity;
use super::ofd_lock::{self, Bytes, Hold};
use super::opened::Opened;
use super::record::{COUNTERS_AT, LockFile, MAGIC};
use crate::core::Backoff;
use crate::error::Result;
use crate::key::Key;

/// How long a decision may take before other processes continue without it.
const STALL: Duration = Duration::from_secs(2);

/// The length of an epoch's area: room for 32,766 claims. The unused part is a hole.
pub(super) const AREA: u64 = 16 << 20;

/// The last epoch. After it, processes wait for a stopped one.
const LAST: u64 = u16::MAX as u64;

/// Locked exclusively to remove the file, and shared to start an epoch.
pub(super) const REMOVING: Bytes = Bytes { start: 1 << 39, len: 1 };

/// How often the byte is tried before sleeping: a decision takes a few microseconds.
const TRIES: usize = 50;

/// How to poll for a byte after that.
const LOOK: Backoff = Backoff::between(Duration::from_millis(1), Duration::from_millis(10));

/// The byte that is locked to decide in this epoch.
pub(super) fn deciding(epoch: u64) -> Bytes {
    Bytes { start: epoch as i64, len: 1 }
}

/// The offset of an epoch's area.
pub(super) fn base(epoch: u64) -> u64 {
    epoch * AREA
}

/// The number of an epoch's first claim. Epochs share no numbers: a claim that is late with its own
/// number must not meet a later claim with the same one.
fn first_number(epoch: u64) -> u64 {
    (epoch << 44).max(1)
}

/// The epoch in which a file of this size ends.
pub(super) fn epoch_of(size: u64) -> u64 {
    size.saturating_sub(1) / AREA
}

impl Opened {
    /// The current epoch.
    pub(super) fn epoch(&self) -> Result<u64> {
        let (_, size) =
            Identity::of_file(&self.file).map_err(|error| self.failed("look at", error))?;
        Ok(epoch_of(size))
    }

    /// The current epoch, if this file is still the one at the path.
    pub(super) fn epoch_at(&self, path: &Path) -> Option<u64> {
        let (identity, size) = Identity::of_path(path).ok()?;
        (identity == self.identity).then(|| epoch_of(size))
    }

    /// Takes the deciding byte of the current epoch, and returns that epoch; `None` if this file is
    /// no longer the one at the path.
    ///
    /// `own` is the number of the claim that asks, if it has one.
    pub(super) async fn decide(
        &self,
        path: &Path,
        key: &Key,
        own: Option<u64>,
    ) -> Result<Option<u64>> {
        let mut epoch = self.seen.load(Ordering::Relaxed);
        loop {
            let settled = match self.take(epoch, path).await? {
                Taken::Yes => match self.settle(epoch, path, key, own) {
                    Ok(Settled::Current) => {
                        self.seen.store(epoch, Ordering::Relaxed);
                        return Ok(Some(epoch));
                    }
                    other => {
                        self.decided(epoch)?;
                        other?
                    }
                },
                Taken::Stalled => Settled::Other(Some((epoch + 1).min(LAST))),
                Taken::Over(current) => Settled::Other(current),
            };
            let Settled::Other(Some(next)) = settled else { return Ok(None) };
            epoch = next;
        }
    }

    /// Unlocks the deciding byte.
    pub(super) fn decided(&self, epoch: u64) -> Result<()> {
        ofd_lock::unlock(&self.file, deciding(epoch)).map_err(|error| self.failed("unlock", error))
    }

    /// Tries to lock the deciding byte of an epoch, until its holder must be considered stopped.
    async fn take(&self, epoch: u64, path: &Path) -> Result<Taken> {
        let started = Instant::now();
        for looks in 0.. {
            for _ in 0..TRIES {
                let taken = ofd_lock::try_lock(&self.file, deciding(epoch), Hold::Exclusive);
                if taken.map_err(|error| self.failed("lock", error))? {
                    return Ok(Taken::Yes);
                }
                std::thread::yield_now();
            }
            match self.epoch_at(path) {
                Some(current) if current <= epoch => {}
                current => return Ok(Taken::Over(current)),
            }
            if started.elapsed() >= STALL {
                break;
            }
            sleep(LOOK.delay(looks)).await;
        }
        Ok(Taken::Stalled)
    }

    /// Under the deciding byte: makes sure that the epoch is current, and that its area is filled
    /// in.
    fn settle(&self, epoch: u64, path: &Path, key: &Key, own: Option<u64>) -> Result<Settled> {
        match self.epoch_at(path) {
            None => return Ok(Settled::Other(None)),
            Some(current) if current > epoch => return Ok(Settled::Other(Some(current))),
            Some(current) if current < epoch && !self.announce(epoch)? => {
                return Ok(Settled::Other(Some(current)));
            }
            Some(_) => {}
        }
        if epoch > 0 && self.read(epoch, None)?.is_none() {
            self.fill_in(epoch, key, own)?;
        }
        Ok(Settled::Current)
    }

    /// Makes an epoch current, unless the file is about to be removed.
    fn announce(&self, epoch: u64) -> Result<bool> {
        let shared = ofd_lock::try_lock(&self.file, REMOVING, Hold::Shared);
        if !shared.map_err(|error| self.failed("lock", error))? {
            return Ok(false);
        }
        tracing::debug!(epoch, "a process is stopped while it decides; continuing without it");
        let written = self.file.write_all_at(b"\n", base(epoch));
        let unlocked = ofd_lock::unlock(&self.file, REMOVING);
        written.and(unlocked).map_err(|error| self.failed("write", error))?;
        Ok(true)
    }

    /// Copies the records of living claims from the last epoch that has any.
    fn fill_in(&self, epoch: u64, key: &Key, own: Option<u64>) -> Result<()> {
        let mut file = match self.read_below(epoch)? {
            Some((_, before)) => {
                let living = self.living(&before, own)?;
                let records = living.into_iter().map(|(_, record)| record.left().map(Some));
                LockFile { records: records.collect::<Result<_>>()?, ..before }
            }
            None => LockFile::new(key),
        };
        file.next = first_number(epoch);
        let mut text = file.counters();
        text.extend(file.records.iter().flatten().flat_map(|left| left.text().as_bytes()));
        // The head comes last: it marks the rest as complete.
        self.file
            .write_all_at(&text, base(epoch) + COUNTERS_AT as u64)
            .and_then(|()| self.file.write_all_at(&file.head(), base(epoch)))
            .map_err(|error| self.failed("write", error))
    }

    /// The contents of the last epoch that was filled in; `None` while the file is empty.
    pub(super) fn read_current(&self) -> Result<Option<(u64, LockFile)>> {
        self.read_below(self.epoch()? + 1)
    }

    fn read_below(&self, epoch: u64) -> Result<Option<(u64, LockFile)>> {
        for epoch in (0..epoch).rev() {
            // The head first, then the rest again: it may be filled in right now.
            if self.is_filled_in(epoch)?
                && let Some(file) = self.read(epoch, None)?
            {
                return Ok(Some((epoch, file)));
            }
        }
        Ok(None)
    }

    fn is_filled_in(&self, epoch: u64) -> Result<bool> {
        let starts = |epoch, with: &[u8]| {
            let mut text = [0; MAGIC.len()];
            let length = self.file.read_at(&mut text, base(epoch));
            length.map(|length| text[..length].starts_with(with))
        };
        let is = match epoch {
            // A process was stopped, or its disk was full, before it wrote anything. Others went on
            // without it, and what they skipped is a hole. A file of others may consist of zeros,
            // but not have our mark behind them.
            0 => starts(0, &[0; MAGIC.len()]).and_then(|hole| Ok(!(hole && starts(1, b"\n")?))),
            _ => starts(epoch, MAGIC.as_bytes()),
        };
        is.map_err(|error| self.failed("read", error))
    }
}

/// The outcome of locking a deciding byte.
enum Taken {
    Yes,
    /// Its holder has had it for too long.
    Stalled,
    /// Another epoch is current; `None` if the path leads to another file.
    Over(Option<u64>),
}

/// What is found under a deciding byte.
enum Settled {
    /// The epoch is current.
    Current,
    /// Another one is; `None` if the path leads to another file.
    Other(Option<u64>),
}
