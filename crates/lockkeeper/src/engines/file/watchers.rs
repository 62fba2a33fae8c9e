//! Threads that sleep in the kernel until a byte is free: one per byte, shared by the whole process.
//!
//! A thread that sleeps in the kernel cannot be interrupted. It keeps sleeping when its claim gives
//! up, and the next claim of this process that waits for the same byte reuses it. So there are
//! never more threads than living claims of other processes, however often a wait times out.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use tokio::sync::watch;

use super::failed;
use super::identity::Identity;
use super::ofd_lock::{self, Bytes, Hold};
use crate::error::Result;

/// Which byte of which file. The process is part of it: threads do not survive a fork.
type Watched = (u32, Identity, i64);

static WATCHED: LazyLock<Mutex<HashMap<Watched, watch::Receiver<()>>>> =
    LazyLock::new(Mutex::default);

/// Signals that a byte is free.
#[derive(Debug, Clone)]
pub(super) struct Freed(watch::Receiver<()>);

impl Freed {
    /// Waits until the byte is free.
    pub(super) async fn wait(&mut self) {
        // Nothing is ever sent: the thread drops its end.
        let _ = self.0.changed().await;
    }
}

/// Watches a byte, with an existing thread or a new one on a file that `open` returns.
///
/// That file must be a separate one: the locks of a claim's file must not outlive the claim.
pub(super) fn watch(
    identity: Identity,
    byte: Bytes,
    open: impl FnOnce() -> Result<Arc<File>>,
) -> Result<Freed> {
    let key = (std::process::id(), identity, byte.start);
    let mut watched = watched();
    if let Some(freed) = watched.get(&key) {
        return Ok(Freed(freed.clone()));
    }
    let file = open()?;
    let (thread_ends, freed) = watch::channel(());
    std::thread::Builder::new()
        .name("lockkeeper-wait".to_owned())
        .stack_size(64 * 1024)
        .spawn(move || {
            let _ = ofd_lock::lock(&file, byte, Hold::Shared);
            // Remove it from the table first, so that a later wait starts a new thread.
            self::watched().remove(&key);
            drop(thread_ends);
        })
        .map_err(|error| failed("start a thread that waits", error))?;
    watched.insert(key, freed.clone());
    Ok(Freed(freed))
}

fn watched() -> MutexGuard<'static, HashMap<Watched, watch::Receiver<()>>> {
    WATCHED.lock().expect("nothing panics under this lock")
}
