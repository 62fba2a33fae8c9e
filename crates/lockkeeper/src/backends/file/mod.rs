//! `file:`: locks between the processes of one machine, kept by the kernel. Needs nothing installed.
//!
//! A lock file is a line of claims. Each claim writes a record with its number and keeps a byte of
//! that number locked for as long as it lives; the kernel frees the byte when the process dies, however
//! it dies. Who is in is decided by the [one rule](crate::queue) over the records whose bytes are locked,
//! and a claim that has to wait sleeps in the kernel on the byte of the one before it.
//!
//! Easy to get wrong: byte numbers are never used twice, so a late watcher of a dead claim's byte
//! disturbs nobody; and every decision is made under the lock of byte 0.

mod claim;
mod directory;
mod kernel;
mod record;
mod sleepers;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use self::claim::FileClaim;
use self::directory::{Directory, Identity};
use self::kernel::{Bytes, Hold};
use self::record::{COUNTERS_AT, HEAD, Left, LockFile, NotOurs, RECORD, Record, State};
use super::Engine;
use crate::backend::{
    Backend, Claim, Death, Entry, FenceSource, Finding, Guarantees, Lease, Order, Query,
    Reentrance, Renewal, Request, Scope, Severity, Snapshot, Support, Survives, Wakeup,
};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::url::Endpoint;

/// Whoever has this byte decides.
const DECIDING: Bytes = Bytes { start: 0, len: 1 };

/// Open files that are kept for the next claim of the same key.
const SPARE: usize = 64;

/// How much of a lock file is read at once; the rest only if there is more.
const PAGE: usize = HEAD + 2 * RECORD;

pub(crate) const ENGINE: Engine = Engine {
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

/// An open lock file, and which file that is.
#[derive(Debug)]
struct Opened {
    file: File,
    identity: Identity,
    /// The last number that was given back through this file: that one need not be asked for.
    given_back: Option<u64>,
}

impl Files {
    /// Locks in this directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Config`] if everyone may write into it or it is on a network file system;
    /// [`Error::Backend`] if it cannot be made.
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
async fn open(endpoint: Endpoint) -> Result<Arc<dyn Backend>> {
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
    let directory = Directory::open(path, network_allowed)?;
    Ok(Arc::new(Files::start(directory)?))
}

/// The only option: whether a network file system will do.
fn settings(endpoint: &Endpoint) -> Result<bool> {
    let mut options = endpoint.options();
    let network = options.choice("network", &[("refuse", false), ("allow", true)])?;
    options.finish()?;
    Ok(network.unwrap_or(false))
}

#[async_trait]
impl Backend for Files {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(FileClaim::new(self.shared.clone(), request))
    }

    /// There is nothing to extend: it only finds out whether an operator broke the lock.
    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Renewal>> {
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
        let shared = self.shared.clone();
        let key = key.clone();
        let evict = move || shared.evict(&key).map_err(|error| or_conflict(&key, error));
        let broken = tokio::task::spawn_blocking(evict).await;
        broken.map_err(|error| failed("break a lock", io::Error::other(error)))?
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(self.shared.examine())
    }
}

impl Shared {
    /// An open file of the key: a spare one, or a new one.
    fn open(&self, key: &Key, path: &Path) -> Result<Opened> {
        if let Some(opened) = self.spare().remove(key) {
            return Ok(opened);
        }
        let opened = self.directory.open_file(path).and_then(Opened::new);
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
        let Some((_, file)) = read_path(&path)? else { return Ok(Renewal::Gone) };
        let token = lease.token.to_string();
        let mut records = file.records.iter().flatten().filter_map(Left::read);
        let ours = records.any(|record| record.token == token && record.state == State::Granted);
        Ok(if ours { Renewal::Renewed } else { Renewal::Gone })
    }

    fn look(&self, path: &Path) -> Result<Option<Snapshot>> {
        let Some((opened, file)) = read_path(path)? else { return Ok(None) };
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

    /// Marks every grant of the key as broken. Blocks while someone else decides.
    fn evict(&self, key: &Key) -> Result<Vec<Entry>> {
        let path = self.directory.file_of(key);
        let Some((opened, _)) = read_path(&path)? else { return Ok(Vec::new()) };
        let doing = || format!("break the lock {key:?}");
        kernel::lock(&opened.file, DECIDING, Hold::Exclusive).map_err(|e| failed(doing(), e))?;
        // Read again, now that nobody else decides. Closing the file gives the byte back.
        let Some(file) = opened.read(Some(key))? else { return Ok(Vec::new()) };
        let mut broken = Vec::new();
        for (at, mut record) in opened.living(&file, None)? {
            if record.state == State::Granted {
                broken.push(entry(&record));
                record.state = State::Broken;
                opened.write(&file, at, &record)?;
            }
        }
        Ok(broken)
    }

    /// Removes a lock file that nobody uses. Whoever opened it meanwhile notices and opens the next one.
    fn remove_if_idle(&self, path: &Path) -> Result<()> {
        let Some((opened, _)) = read_path(path)? else { return Ok(()) };
        let doing = || format!("remove the lock file {}", path.display());
        let deciding = kernel::try_lock(&opened.file, DECIDING, Hold::Exclusive);
        if !deciding.map_err(|error| failed(doing(), error))? || !opened.is_at(path) {
            return Ok(());
        }
        let idle = match opened.read(None)? {
            Some(file) => opened.living(&file, None)?.is_empty(),
            None => true,
        };
        if idle { std::fs::remove_file(path).map_err(|e| failed(doing(), e)) } else { Ok(()) }
    }

    fn examine(&self) -> Vec<Finding> {
        let place = self.directory.path().display();
        let finding = |severity, what: String, advice: &str| Finding {
            severity,
            what,
            advice: advice.to_owned(),
        };
        let scratch = self.directory.path().join(format!(".doctor-{}", std::process::id()));
        let tried = (|| {
            let first = self.directory.open_file(&scratch)?;
            let second = self.directory.open_file(&scratch)?;
            kernel::lock(&first, DECIDING, Hold::Exclusive)?;
            Ok::<_, io::Error>(!kernel::try_lock(&second, DECIDING, Hold::Exclusive)?)
        })();
        let _ = std::fs::remove_file(&scratch);
        let excludes = match tried {
            Ok(true) => finding(Severity::Fine, format!("locks in {place} exclude each other"), ""),
            Ok(false) => finding(
                Severity::Problem,
                format!("locks in {place} do not exclude each other"),
                "use a directory on a local file system",
            ),
            Err(error) => finding(
                Severity::Problem,
                format!("cannot use lock files in {place}: {error}"),
                "make the directory writable for this user, or name another one",
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
        vec![excludes, network]
    }
}

impl Opened {
    fn new(file: File) -> io::Result<Self> {
        let identity = Identity::of_file(&file)?;
        Ok(Self { file, identity, given_back: None })
    }

    /// Whether the path leads to this very file.
    fn is_at(&self, path: &Path) -> bool {
        Identity::of_path(path).is_ok_and(|identity| identity == self.identity)
    }

    /// What the file says; `None` while it is empty.
    fn read(&self, expected: Option<&Key>) -> Result<Option<LockFile>> {
        let cannot = |error| self.failed("read", error);
        let mut page = [0; PAGE];
        let length = self.file.read_at(&mut page, 0).map_err(cannot)?;
        let page = &page[..length];
        if page.is_empty() {
            return Ok(None);
        }
        let whole = HEAD + LockFile::announced(page).unwrap_or(0) * RECORD;
        if whole <= PAGE {
            return LockFile::parse(page, expected).map(Some).map_err(|error| self.named(error));
        }
        let mut text = vec![0; whole];
        let length = self.file.read_at(&mut text, 0).map_err(cannot)?;
        LockFile::parse(&text[..length], expected).map(Some).map_err(|error| self.named(error))
    }

    /// What the file says; an empty one is begun.
    fn read_or_begin(&self, key: &Key) -> Result<LockFile> {
        if let Some(file) = self.read(Some(key))? {
            return Ok(file);
        }
        let file = LockFile::new(key);
        let mut text = file.head();
        text.extend(file.counters());
        self.file.write_all_at(&text, 0).map_err(|error| self.failed("write", error))?;
        Ok(file)
    }

    /// Whether the record at this position is that of a granted claim with this number.
    fn is_granted(&self, number: u64, at: usize) -> Result<bool> {
        let expected = Record::granted_text(number);
        let mut text = [0; 64];
        let place = (HEAD + at * RECORD) as u64;
        let length =
            self.file.read_at(&mut text, place).map_err(|error| self.failed("read", error))?;
        Ok(text[..length].starts_with(expected.as_bytes()))
    }

    /// Writes the counters and one record; in one go where they are neighbours.
    fn write(&self, file: &LockFile, at: usize, record: &Record) -> Result<()> {
        let record = record.text()?;
        let mut counters = file.counters();
        let written = if at == 0 {
            counters.extend(record);
            self.file.write_all_at(&counters, COUNTERS_AT as u64)
        } else {
            // The counters first: a number that was announced is never given to two claims.
            let place = (HEAD + at * RECORD) as u64;
            let counters = self.file.write_all_at(&counters, COUNTERS_AT as u64);
            counters.and_then(|()| self.file.write_all_at(&record, place))
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
                    && kernel::is_held(&self.file, ticket(left.number))
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
        if let Error::Backend { doing, .. } = &mut error {
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

/// Opens and reads a lock file without making it; `None` if it is not there or empty.
fn read_path(path: &Path) -> Result<Option<(Opened, LockFile)>> {
    let doing = || format!("read the lock file {}", path.display());
    let opened = match File::options().read(true).write(true).open(path).and_then(Opened::new) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| failed(doing(), error))?,
    };
    Ok(opened.read(None)?.map(|file| (opened, file)))
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
    matches!(error, Error::Backend { source, .. } if source.is::<NotOurs>())
}

/// An error at a key: if something else is at the name of its lock file, that is a conflict.
fn or_conflict(key: &Key, error: Error) -> Error {
    match error {
        Error::Backend { doing, source, .. } if source.is::<NotOurs>() => {
            Error::Conflict { key: key.clone(), found: format!("cannot {doing}: {source}") }
        }
        other => other,
    }
}

fn failed(doing: impl Into<String>, error: io::Error) -> Error {
    Error::broken("file", doing, error)
}
