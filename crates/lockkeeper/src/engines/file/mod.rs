//! `file:`: locks between the processes of one machine, kept by the kernel. Needs nothing
//! installed.
//!
//! A lock file is a queue of claims. Each claim writes a record with its number and keeps the byte
//! of that number locked as long as it lives; the kernel unlocks the byte when the process dies,
//! however it dies. The [admission rule](crate::core::admission), applied to the records whose
//! bytes are locked, decides who holds, and a waiting claim sleeps in the kernel on the byte of the
//! one ahead.
//!
//! Easy to get wrong: byte numbers are never reused, so a late watcher of a dead claim's byte
//! disturbs nobody; and every decision is made under the deciding byte of the current epoch.

mod broken;
mod claim;
mod directory;
mod doctor;
mod epoch;
mod file_name;
mod identity;
mod inspect;
mod ofd_lock;
mod opened;
mod record;
mod stalled;
mod watchers;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use self::claim::FileClaim;
use self::directory::Directory;
use self::epoch::{REMOVING, deciding};
use self::ofd_lock::Hold;
use self::opened::Opened;
use self::record::{Left, LockFile, NotOurs, Record, State};
use super::Registration;
use crate::core::clock::Moment;
use crate::engine::{
    Break, Breaker, Claim, Death, Engine, Entry, FenceSource, Finding, Guarantees, Lease, Order,
    Query, Reentrance, Renewal, Request, Scope, Snapshot, Support, Survives, Wakeup, YieldRequest,
};
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::owner::Token;

/// How many open files are kept for the next claims of their keys.
const SPARE: usize = 64;

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
    hand_over: Support::Yes,
    keep: Support::No("nothing reaches a client through a file while it keeps a lock"),
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

impl Files {
    /// Opens a directory for locks, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`Error::Config`] if it is writable by everyone or on a network file system;
    /// [`Error::Engine`] if it cannot be created.
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
            Error::Url(format!(
                "{endpoint} does not name a directory of this machine; write file: or file:///dir"
            ))
        })?,
    };
    Ok(Arc::new(Files::start(Directory::find(path, network_allowed)?)?))
}

/// The only option: whether a network file system is accepted.
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

    /// There is nothing to extend: this only checks whether an operator broke the lock.
    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
        leases.iter().map(|lease| self.shared.vouch(lease)).collect()
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        inspect::inspect(&self.shared, query)
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        inspect::break_lock(&self.shared, key, by).await.map_err(|error| or_conflict(key, error))
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        broken::breaks(&self.shared.directory).map_err(|error| failed("list broken locks", error))
    }

    async fn request_yield(&self, key: &Key, asked: &YieldRequest) -> Result<Vec<Entry>> {
        let marked = inspect::request_yield(&self.shared, key, asked).await;
        marked.map_err(|error| or_conflict(key, error))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.shared.directory.make()?;
        Ok(doctor::examine(&self.shared.directory))
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

    /// Whether a grant is still valid.
    fn vouch(&self, lease: &Lease) -> Result<Renewal> {
        let ours = self.granted(&lease.key, lease.token)?;
        Ok(if ours.is_some() { Renewal::Renewed } else { Renewal::Gone })
    }

    /// The record of a claim that holds.
    fn granted(&self, key: &Key, token: Token) -> Result<Option<Record>> {
        let Some((_, file)) = self.read_path(&self.directory.file_of(key))? else {
            return Ok(None);
        };
        let token = token.to_string();
        let mut records = file.records.iter().flatten().filter_map(Left::read);
        Ok(records.find(|record| record.token == token && record.state == State::Granted))
    }

    /// Removes a lock file that is not in use. A process that opened it meanwhile notices that, and
    /// opens the next one.
    ///
    /// No epoch starts while [`REMOVING`] is locked: a process that is stopped before it removes
    /// the file must not find others using it when it resumes.
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

    /// Opens and reads a lock file without creating it; `None` if it does not exist or is empty.
    fn read_path(&self, path: &Path) -> Result<Option<(Opened, LockFile)>> {
        let opened = match self.directory.open_existing(path).and_then(Opened::new) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened
                .map_err(|error| failed(format!("read the lock file {}", path.display()), error))?,
        };
        Ok(opened.read_current()?.map(|(_, file)| (opened, file)))
    }
}

/// Whether something else exists under a lock file's name.
fn is_foreign(error: &Error) -> bool {
    matches!(error, Error::Engine { source, .. } if source.is::<NotOurs>())
}

/// The error for a key; if something else exists under the name of its lock file, a conflict.
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
