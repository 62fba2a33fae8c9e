//! An open lock file: reading and writing its records, and which claims are alive.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::epoch::{AREA, base, epoch_of};
use super::failed;
use super::identity::Identity;
use super::ofd_lock::{self, Bytes};
use super::record::{COUNTERS_AT, HEAD, Left, LockFile, MAGIC, RECORD, Record, State};
use crate::error::{Error, Result};
use crate::key::Key;

/// How much of a lock file is read at once; the rest only if there is more.
pub(super) const PAGE: usize = HEAD + 2 * RECORD;

/// How many claims fit into a lock file.
pub(super) const MOST_RECORDS: usize = (AREA as usize - HEAD) / RECORD;

/// A claim's number, and the position of its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) at: usize,
}

/// An open lock file, and its identity.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Arc<File>,
    pub(super) identity: Identity,
    /// The epoch that was current at the last read.
    pub(super) seen: AtomicU64,
    /// The last number that was released through this file: it need not be checked.
    pub(super) given_back: Option<u64>,
}

impl Opened {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let (identity, size) = Identity::of_file(&file)?;
        Ok(Self { file: Arc::new(file), identity, seen: epoch_of(size).into(), given_back: None })
    }

    /// The contents of an epoch's area; `None` if it is not filled in.
    pub(super) fn read(&self, epoch: u64, expected: Option<&Key>) -> Result<Option<LockFile>> {
        let cannot = |error| self.failed("read", error);
        let mut page = [0; PAGE];
        let length = self.file.read_at(&mut page, base(epoch)).map_err(cannot)?;
        let page = &page[..length];
        if page.is_empty() || epoch > 0 && !page.starts_with(MAGIC.as_bytes()) {
            return Ok(None);
        }
        let whole = HEAD + LockFile::announced(page).unwrap_or(0).min(MOST_RECORDS) * RECORD;
        if whole <= PAGE {
            return LockFile::parse(page, expected).map(Some).map_err(|error| self.named(error));
        }
        let mut text = vec![0; whole];
        let length = self.file.read_at(&mut text, base(epoch)).map_err(cannot)?;
        LockFile::parse(&text[..length], expected).map(Some).map_err(|error| self.named(error))
    }

    /// The contents of an epoch's area; initializes an empty file.
    pub(super) fn read_or_begin(&self, epoch: u64, key: &Key) -> Result<LockFile> {
        match self.read(epoch, Some(key)) {
            Ok(Some(file)) => return Ok(file),
            // On a full disk, not even the head may have been written.
            Err(error) if !self.is_begun(key)? => tracing::debug!(%error, "begun again"),
            Err(error) => return Err(error),
            Ok(None) => {}
        }
        let file = LockFile::new(key);
        let mut text = file.head();
        text.extend(file.counters());
        self.file.write_all_at(&text, 0).map_err(|error| self.failed("write", error))?;
        Ok(file)
    }

    /// Whether the file is more than the first part of the head of a lock file.
    pub(super) fn is_begun(&self, key: &Key) -> Result<bool> {
        let mut page = [0; HEAD];
        let length = self.file.read_at(&mut page, 0).map_err(|error| self.failed("read", error))?;
        Ok(length >= COUNTERS_AT || !LockFile::new(key).head().starts_with(&page[..length]))
    }

    /// Whether the record of this claim says that it is granted.
    pub(super) fn is_granted(&self, place: Place) -> Result<bool> {
        if self.epoch()? != place.epoch {
            let current = self.read_current()?;
            let mut records = current.iter().flat_map(|(_, file)| file.records.iter().flatten());
            let ours = records.find(|left| left.number == place.number).and_then(Left::read);
            return Ok(ours.is_some_and(|record| record.state == State::Granted));
        }
        let expected = Record::granted_text(place.number);
        let mut text = [0; 64];
        let length = self.file.read_at(&mut text, place_of(place.epoch, place.at));
        let length = length.map_err(|error| self.failed("read", error))?;
        Ok(text[..length].starts_with(expected.as_bytes()))
    }

    /// Writes the counters and one record; in one write if they are adjacent.
    pub(super) fn write(
        &self,
        epoch: u64,
        file: &LockFile,
        at: usize,
        record: &Record,
    ) -> Result<()> {
        let record = record.text()?;
        let mut counters = file.counters();
        let counters_at = base(epoch) + COUNTERS_AT as u64;
        let written = if at == 0 {
            counters.extend(record);
            self.file.write_all_at(&counters, counters_at)
        } else {
            // The counters first: a number that was announced is never given to two claims.
            let counters = self.file.write_all_at(&counters, counters_at);
            counters.and_then(|()| self.file.write_all_at(&record, place_of(epoch, at)))
        };
        written.map_err(|error| self.failed("write", error))
    }

    /// The records of living claims, ordered by number, each with its position.
    ///
    /// The kernel does not report a file's own locks, so our own number is passed in.
    pub(super) fn living(&self, file: &LockFile, own: Option<u64>) -> Result<Vec<(usize, Record)>> {
        let mut living = Vec::new();
        for (at, left) in file.records.iter().enumerate() {
            let Some(left) = left else { continue };
            let number = Some(left.number);
            let lives = number == own
                || number != self.given_back
                    && ofd_lock::is_held(&self.file, ticket(left.number))
                        .map_err(|error| self.failed("look at", error))?;
            if lives {
                let Some(record) = left.read() else {
                    let damaged = io::Error::other("a living claim's record is damaged");
                    return Err(self.failed("read", damaged));
                };
                living.push((at, record));
            }
        }
        living.sort_by_key(|(_, record)| record.number);
        Ok(living)
    }

    pub(super) fn failed(&self, doing: &str, error: io::Error) -> Error {
        self.named(failed(doing, error))
    }

    /// An error with the path of this file. Read from the kernel, since only failures need it.
    pub(super) fn named(&self, mut error: Error) -> Error {
        if let Error::Engine { doing, .. } = &mut error {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
            let path = path.map_or_else(|_| String::new(), |path| format!(" {}", path.display()));
            *doing += &format!(" the lock file{path}");
        }
        error
    }
}

/// The byte that a claim keeps locked as long as it lives.
pub(super) fn ticket(number: u64) -> Bytes {
    // Far behind all data, and two bytes apart: see `waiting`.
    Bytes { start: (1 << 40) + (number as i64) * 2, len: 1 }
}

/// The byte that a claim keeps locked until it is granted: a waiter for permits sleeps on the claim
/// ahead only until then.
pub(super) fn waiting(number: u64) -> Bytes {
    Bytes { start: ticket(number).start + 1, len: 1 }
}

/// All bytes of a claim.
pub(super) fn both(number: u64) -> Bytes {
    Bytes { len: 2, ..ticket(number) }
}

/// The offset of a record in the file.
pub(super) fn place_of(epoch: u64, at: usize) -> u64 {
    base(epoch) + (HEAD + at * RECORD) as u64
}
