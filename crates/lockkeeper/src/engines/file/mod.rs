//! `file:`: locks between the processes of one machine, kept by the kernel. Needs nothing installed.
//!
//! A lock file is a line of claims. Each claim writes a record with its number and keeps a byte of
//! that number locked for as long as it lives; the kernel frees the byte when the process dies, however
//! it dies. Who is in is decided by the [one rule](crate::core::admission) over the records whose bytes are locked,
//! and a claim that has to wait sleeps in the kernel on the byte of the one before it.
//!
//! Easy to get wrong: byte numbers are never used twice, so a late watcher of a dead claim's byte
//! disturbs nobody; and every decision is made under the deciding byte of the current epoch.

mod claim;
mod directory;
mod epoch;
mod ofd_lock;
mod record;
mod stalled;
mod watchers;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use self::claim::FileClaim;
use self::directory::{Directory, Identity};
use self::epoch::{AREA, REMOVING, base, deciding, epoch_of};
use self::ofd_lock::{Bytes, Hold};
use self::record::{COUNTERS_AT, HEAD, Left, LockFile, MAGIC, NotOurs, RECORD, Record, State};
use super::Registration;
use crate::core::clock::Moment;
use crate::engine::{
    Claim, Death, Engine, Entry, FenceSource, Finding, Guarantees, Lease, Order, Query, Reentrance,
    Renewal, Request, Scope, Severity, Snapshot, Support, Survives, Wakeup,
};
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::key::Key;

/// Open files that are kept for the next claim of the same key.
const SPARE: usize = 64;

/// How much of a lock file is read at once; the rest only if there is more.
const PAGE: usize = HEAD + 2 * RECORD;

/// How many claims a lock file has room for.
const MOST_RECORDS: usize = (AREA as usize - HEAD) / RECORD;

pub(crate) const ENGINE: Registration = Registration {
    open: |endpoint| Box::pin(open(endpoint)),
    guarantees: |endpoint| settings(endpoint).map(|_| GUARANTEES),
    ways: &["file:"],
};

/// What this engine promises.
const GUARANTEES: Guarantees = Guarantees {
    engine: "file",
    read_write: Support::Yes,
    semaphore: Support::Yes,
    most_permits: 100_000,
    order: Order::Fifo,
    fence: FenceSource::Hybrid,
    death: Death::AtOnce,
    wakeup: Wakeup::Kernel,
    scope: Scope::Machine,
    survives: Survives::NothingApart,
    reentrance: Reentrance::Store,
};

/// Locks in a directory of this machine.
#[derive(Debug, Clone)]
pub struct Files {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: Directory,
    spare: Mutex<HashMap<Key, Opened>>,
}

/// A claim's number, and where its record is.
#[derive(Debug, Clone, Copy)]
struct Place {
    number: u64,
    epoch: u64,
    at: usize,
}

/// An open lock file, and which file that is.
#[derive(Debug)]
struct Opened {
    file: Arc<File>,
    identity: Identity,
    /// The epoch that was the current one at the last look.
    seen: AtomicU64,
    /// The last number that was given back through this file: that one need not be asked for.
    given_back: Option<u64>,
}

impl Files {
    /// Locks in this directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Config`] if everyone may write into it or it is on a network file system;
    /// [`Error::Engine`] if it cannot be made.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self> {
        Self::start(Directory::open(directory.into(), false)?)
    }

    fn start(directory: Directory) -> Result<Self> {
        let files = Self { shared: Arc::new(Shared { directory, spare: Mutex::default() }) };
        for path in files.shared.directory.to_sweep() {
            if let Err(error) = files.shared.remove_if_idle(&path) {
                tracing::debug!(path = %path.display(), %error, "cannot remove an idle lock file");
            }
        }
        Ok(files)
    }
}

/// Opens `file:` (the user's own directory) or `file:///dir`.
async fn open(endpoint: Endpoint) -> Result<Arc<dyn Engine>> {
    let network_allowed = settings(&endpoint)?;
    let url = endpoint.expose();
    let path = match url.path() {
        "/" | "" if !url.has_host() || url.host_str().is_none() => Directory::default_path()?,
        _ => url.to_file_path().map_err(|()| {
            Error::Config(format!(
                "{endpoint} does not name a directory of this machine; write file: or file:///dir"
            ))
        })?,
    };
    Ok(Arc::new(Files::start(Directory::find(path, network_allowed)?)?))
}

/// The only option: whether a network file system will do.
fn settings(endpoint: &Endpoint) -> Result<bool> {
    let mut options = endpoint.options();
    let network = options.choice("network", &[("refuse", false), ("allow", true)])?;
    options.finish()?;
    Ok(network.unwrap_or(false))
}

#[async_trait]
impl Engine for Files {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(FileClaim::new(self.shared.clone(), request))
    }

    /// There is nothing to extend: it only finds out whether an operator broke the lock.
    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        leases.iter().map(|lease| self.shared.vouch(lease)).collect()
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        let paths = match query {
            Query::Key(key) => vec![self.shared.directory.file_of(key)],
            Query::Prefix(_) => {
                self.shared.directory.files().map_err(|error| failed("list locks", error))?
            }
        };
        let mut snapshots = Vec::new();
        for path in paths {
            let snapshot = match (self.shared.look(&path), query) {
                (Err(error), Query::Prefix(_)) if is_foreign(&error) => continue,
                (Err(error), Query::Key(key)) => return Err(or_conflict(key, error)),
                (seen, _) => seen?,
            };
            snapshots.extend(snapshot.filter(|snapshot| query.matches(snapshot.key.as_str())));
        }
        snapshots.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(snapshots)
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>> {
        self.shared.evict(key).await.map_err(|error| or_conflict(key, error))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.shared.directory.make()?;
        Ok(self.shared.examine())
    }
}

impl Shared {
    /// An open file of the key: a spare one, or a new one.
    fn open(&self, key: &Key, path: &Path) -> Result<Opened> {
        if let Some(opened) = self.spare().remove(key) {
            return Ok(opened);
        }
        let opened = match self.directory.open_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.directory.make()?.open_file(path)
            }
            opened => opened,
        };
        let opened = opened.and_then(Opened::new);
        opened.map_err(|error| failed(format!("open the lock file {}", path.display()), error))
    }

    /// Keeps an open file for the next claim of the same key.
    fn put_back(&self, key: &Key, opened: Opened) {
        let mut spare = self.spare();
        if spare.len() < SPARE {
            spare.insert(key.clone(), opened);
        }
    }

    fn spare(&self) -> MutexGuard<'_, HashMap<Key, Opened>> {
        self.spare.lock().expect("nothing panics under this lock")
    }

    /// Whether a grant still stands.
    fn vouch(&self, lease: &Lease) -> Result<Renewal> {
        let path = self.directory.file_of(&lease.key);
        let Some((_, file)) = self.read_path(&path)? else { return Ok(Renewal::Gone) };
        let token = lease.token.to_string();
        let mut records = file.records.iter().flatten().filter_map(Left::read);
        let ours = records.any(|record| record.token == token && record.state == State::Granted);
        Ok(if ours { Renewal::Renewed } else { Renewal::Gone })
    }

    fn look(&self, path: &Path) -> Result<Option<Snapshot>> {
        let Some((opened, file)) = self.read_path(path)? else { return Ok(None) };
        let mut holders = Vec::new();
        let mut waiters = Vec::new();
        for (_, record) in opened.living(&file, None)? {
            match record.state {
                State::Granted => holders.push(entry(&record)),
                State::Waiting => waiters.push(entry(&record)),
                State::Broken => {}
            }
        }
        if holders.is_empty() && waiters.is_empty() {
            return Ok(None);
        }
        let fence = Some(file.fence);
        Ok(Some(Snapshot { key: file.key, holders, waiters: Some(waiters), fence }))
    }

    /// Marks every grant of the key as broken.
    async fn evict(&self, key: &Key) -> Result<Vec<Entry>> {
        let path = self.directory.file_of(key);
        loop {
            let Some((opened, _)) = self.read_path(&path)? else { return Ok(Vec::new()) };
            let Some(epoch) = opened.decide(&path, key, None).await? else { continue };
            // Read again, now that nobody else decides. Closing the file gives the byte back.
            let Some(file) = opened.read(epoch, Some(key))? else { return Ok(Vec::new()) };
            let mut broken = Vec::new();
            for (at, mut record) in opened.living(&file, None)? {
                if record.state == State::Granted {
                    broken.push(entry(&record));
                    record.state = State::Broken;
                    opened.write(epoch, &file, at, &record)?;
                }
            }
            if opened.epoch()? == epoch {
                return Ok(broken);
            }
        }
    }

    /// Removes a lock file that nobody uses. Whoever opened it meanwhile notices and opens the next one.
    ///
    /// No epoch begins while [`REMOVING`] is ours: a process that is stopped before it removes the file
    /// must not find others at work in it when it goes on.
    fn remove_if_idle(&self, path: &Path) -> Result<()> {
        let Some((opened, _)) = self.read_path(path)? else { return Ok(()) };
        let doing = || format!("remove the lock file {}", path.display());
        let take = |byte| ofd_lock::try_lock(&opened.file, byte, Hold::Exclusive);
        if !take(REMOVING).map_err(|error| failed(doing(), error))? {
            return Ok(());
        }
        let epoch = opened.epoch()?;
        if !take(deciding(epoch)).map_err(|error| failed(doing(), error))?
            || opened.epoch_at(path) != Some(epoch)
        {
            return Ok(());
        }
        let idle = match opened.read_current()? {
            Some((_, file)) => opened.living(&file, None)?.is_empty(),
            None => true,
        };
        if idle { std::fs::remove_file(path).map_err(|e| failed(doing(), e)) } else { Ok(()) }
    }

    /// Opens and reads a lock file without making it; `None` if it is not there or empty.
    fn read_path(&self, path: &Path) -> Result<Option<(Opened, LockFile)>> {
        let opened = match self.directory.open_existing(path).and_then(Opened::new) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened
                .map_err(|error| failed(format!("read the lock file {}", path.display()), error))?,
        };
        Ok(opened.read_current()?.map(|(_, file)| (opened, file)))
    }

    fn examine(&self) -> Vec<Finding> {
        let place = self.directory.path().display();
        let finding = |severity, what: String, advice: &str| Finding {
            severity,
            what,
            advice: advice.to_owned(),
        };
        let tried = (|| {
            let scratch = self.directory.scratch()?;
            let second = self.directory.open_existing(&scratch.path)?;
            ofd_lock::lock(&scratch.file, deciding(0), Hold::Exclusive)?;
            let excludes = !ofd_lock::try_lock(&second, deciding(0), Hold::Exclusive)?;
            // As much as a new lock file, and not only into a cache.
            scratch.file.write_all_at(&[b'\n'; PAGE], 0)?;
            scratch.file.sync_all()?;
            Ok::<_, io::Error>((excludes, self.directory.is_shared_well(&scratch.file)?))
        })();
        let shared_well = !matches!(tried, Ok((_, false)));
        let excludes = match tried {
            Ok((true, _)) => finding(
                Severity::Fine,
                format!("locks in {place} exclude each other, and can be written"),
                "",
            ),
            Ok((false, _)) => finding(
                Severity::Problem,
                format!("locks in {place} do not exclude each other"),
                "use a directory on a local file system",
            ),
            Err(error) => finding(
                Severity::Problem,
                format!("cannot use lock files in {place}: {error}"),
                match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                        "make room on the disk: keys that are new cannot be locked"
                    }
                    _ => "make the directory writable for this user, or name another one",
                },
            ),
        };
        let network = match self.directory.network() {
            Ok(None) => finding(Severity::Fine, format!("{place} is on a local file system"), ""),
            Ok(Some(kind)) => finding(
                Severity::Problem,
                format!("{place} is on a network file system ({kind})"),
                "use a local directory, or an engine made for several machines",
            ),
            Err(error) => finding(
                Severity::Warning,
                format!("cannot tell what kind of file system {place} is on: {error}"),
                "make sure that it is a local one",
            ),
        };
        let mut findings = vec![excludes, network];
        if !shared_well {
            findings.push(finding(
                Severity::Problem,
                format!("{place} is for a group, but files that this user makes there are not"),
                "be a member of the directory's group, or set its group bit: chmod 2770",
            ));
        }
        findings
    }
}

impl Opened {
    fn new(file: File) -> io::Result<Self> {
        let (identity, size) = Identity::of_file(&file)?;
        Ok(Self { file: Arc::new(file), identity, seen: epoch_of(size).into(), given_back: None })
    }

    /// What the area of an epoch says; `None` if it is not filled in.
    fn read(&self, epoch: u64, expected: Option<&Key>) -> Result<Option<LockFile>> {
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

    /// What the area of an epoch says; an empty file is begun.
    fn read_or_begin(&self, epoch: u64, key: &Key) -> Result<LockFile> {
        match self.read(epoch, Some(key)) {
            Ok(Some(file)) => return Ok(file),
            // On a full disk not even the head may have got in.
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
    fn is_begun(&self, key: &Key) -> Result<bool> {
        let mut page = [0; HEAD];
        let length = self.file.read_at(&mut page, 0).map_err(|error| self.failed("read", error))?;
        Ok(length >= COUNTERS_AT || !LockFile::new(key).head().starts_with(&page[..length]))
    }

    /// Whether the record of this claim is that of a granted one.
    fn is_granted(&self, place: Place) -> Result<bool> {
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

    /// Writes the counters and one record; in one go where they are neighbours.
    fn write(&self, epoch: u64, file: &LockFile, at: usize, record: &Record) -> Result<()> {
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

    /// The records whose claims live, in order of their numbers, each with its position.
    ///
    /// The kernel does not tell a file of its own locks, so our own number is named.
    fn living(&self, file: &LockFile, own: Option<u64>) -> Result<Vec<(usize, Record)>> {
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

    fn failed(&self, doing: &str, error: io::Error) -> Error {
        self.named(failed(doing, error))
    }

    /// An error with the path of this file. Asked of the kernel, since only failures need it.
    fn named(&self, mut error: Error) -> Error {
        if let Error::Engine { doing, .. } = &mut error {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
            let path = path.map_or_else(|_| String::new(), |path| format!(" {}", path.display()));
            *doing += &format!(" the lock file{path}");
        }
        error
    }
}

/// The byte that a claim keeps locked for as long as it lives.
fn ticket(number: u64) -> Bytes {
    // Far behind everything that is written, and two bytes apart: see `waiting`.
    Bytes { start: (1 << 40) + (number as i64) * 2, len: 1 }
}

/// The byte that a claim keeps locked until it is let in: who waits for a permit sleeps on the one
/// before it only that long.
fn waiting(number: u64) -> Bytes {
    Bytes { start: ticket(number).start + 1, len: 1 }
}

/// All bytes of a claim.
fn both(number: u64) -> Bytes {
    Bytes { len: 2, ..ticket(number) }
}

/// Where a record stands in the file.
fn place_of(epoch: u64, at: usize) -> u64 {
    base(epoch) + (HEAD + at * RECORD) as u64
}

fn entry(record: &Record) -> Entry {
    let granted = record.state != State::Waiting;
    Entry {
        identity: record.identity().to_owned(),
        mode: record.mode,
        who: Some(record.who.clone()),
        note: record.note.clone(),
        since: Some(record.since),
        left: None,
        fence: granted.then_some(record.fence),
        slots: record.slots.clone(),
    }
}

/// Whether something else is at a lock file's name.
fn is_foreign(error: &Error) -> bool {
    matches!(error, Error::Engine { source, .. } if source.is::<NotOurs>())
}

/// An error at a key: if something else is at the name of its lock file, that is a conflict.
fn or_conflict(key: &Key, error: Error) -> Error {
    match error {
        Error::Engine { doing, source, .. } if source.is::<NotOurs>() => {
            Error::Conflict { key: key.clone(), found: format!("cannot {doing}: {source}") }
        }
        other => other,
    }
}

fn failed(doing: impl Into<String>, error: io::Error) -> Error {
    Error::broken("file", doing, error)
}
