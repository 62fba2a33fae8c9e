//! Many workers that repeatedly acquire a few locks, and a fenced resource that watches them.
//!
//! Errors on the way are counted, not judged: a test that breaks servers gets errors. The grants
//! are checked at the end, by the whole history.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{Client, Error, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::history::{Recorder, Resource, Violation, check};

/// How long the slowest machine may take for a few cycles.
const PATIENCE: Duration = Duration::from_secs(60);

/// A load that continues until it is [judged](Load::judge).
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    workers: JoinSet<()>,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Shared {
    recorder: Arc<Recorder>,
    resource: Resource,
    keys: usize,
    ttl: Duration,
    stop: AtomicBool,
    cycles: AtomicUsize,
    errors: Mutex<Vec<String>>,
}

/// The result of a load.
#[derive(Debug)]
pub struct Judgement {
    /// How many grants there were.
    pub grants: usize,
    /// The errors that callers got.
    pub errors: Vec<String>,
    /// All violations, in words.
    pub violations: Vec<String>,
    /// Holds that overlapped without a violation of the fence, if the store forgets locks.
    pub overlaps: usize,
}

impl Load {
    /// Starts this many workers for each client, on this many keys.
    pub fn start(clients: Vec<Client>, workers: usize, keys: usize, ttl: Duration) -> Self {
        let shared = Arc::new(Shared {
            recorder: Recorder::start(),
            resource: Resource::fenced(),
            keys,
            ttl,
            stop: AtomicBool::new(false),
            cycles: AtomicUsize::new(0),
            errors: Mutex::default(),
        });
        let mut set = JoinSet::new();
        for (n, client) in clients.iter().enumerate() {
            for worker in 0..workers {
                let name = format!("client {n} worker {worker}");
                set.spawn(shared.clone().work(client.clone(), name));
            }
        }
        Self { shared, workers: set, clients }
    }

    /// Waits until this many more cycles were completed.
    ///
    /// # Panics
    /// If the load makes no progress.
    pub async fn goes_on(&self, cycles: usize) {
        let (started, done) = (Instant::now(), || self.shared.cycles.load(Ordering::Relaxed));
        let goal = done() + cycles;
        while done() < goal {
            assert!(started.elapsed() < PATIENCE, "the load stands still");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the load and checks it.
    ///
    /// # Panics
    /// When a worker panicked.
    pub async fn judge(mut self) -> Judgement {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.expect("no worker panics");
        }
        for client in self.clients.drain(..) {
            client.close().await;
        }
        let history = self.shared.recorder.history(&self.shared.resource, Vec::new());
        let (overlaps, others): (Vec<_>, Vec<_>) = check(&history)
            .into_iter()
            .partition(|violation| matches!(violation, Violation::Overlap(_)));
        Judgement {
            grants: history.acquisitions.len(),
            errors: std::mem::take(&mut *self.shared.errors.lock().expect("nothing panics here")),
            violations: others.iter().map(Violation::to_string).collect(),
            overlaps: overlaps.len(),
        }
    }
}

impl Shared {
    async fn work(self: Arc<Self>, client: Client, name: String) {
        while !self.stop.load(Ordering::Relaxed) {
            let key = format!("load {}", fastrand::usize(..self.keys));
            match self.cycle(&client, &key, &name).await {
                Ok(()) => _ = self.cycles.fetch_add(1, Ordering::Relaxed),
                Err(error @ (Error::Timeout { .. } | Error::Engine { .. })) => {
                    let told = format!("{name}: {error}");
                    self.errors.lock().expect("nothing panics here").push(told);
                }
                Err(error) => panic!("{name}: no fault explains this: {error}"),
            }
        }
    }

    async fn cycle(&self, client: &Client, key: &str, name: &str) -> Result<(), Error> {
        let called = self.recorder.now();
        let lock = client.mutex(key).ttl(self.ttl);
        let guard = lock.acquire_within(Duration::from_secs(20)).await?;
        // A fence has one holder: without an owner, every grant has another identity.
        let owner = format!("{name} {}", guard.fence());
        let mark = self.recorder.granted(&guard, &owner, self.ttl, called, None);
        let (object, fence) = ((key.to_owned(), 0), guard.fence().get());
        let work = async {
            if let Some(saw) = self.resource.read(&object, fence, &owner, false) {
                sleep(Duration::from_millis(fastrand::u64(0..4))).await;
                mark.used();
                self.resource.write(&object, fence, &owner, saw);
            }
        };
        tokio::select! {
            () = work => {}
            _ = guard.lost() => mark.lost(),
        }
        mark.releasing();
        guard.release().await?;
        mark.released();
        Ok(())
    }
}
