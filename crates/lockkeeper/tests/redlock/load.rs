//! Clients at work on many locks and what they protect, recorded and judged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::history::{Recorder, Resource, Violation, check};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a lease lasts in the load.
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// How long so much work may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Load {
    shared: Arc<Shared>,
    workers: JoinSet<()>,
}

struct Shared {
    recorder: Arc<Recorder>,
    resource: Resource,
    stop: AtomicBool,
    done: AtomicUsize,
}

impl Load {
    pub(crate) async fn start(url: &str, clients: usize, tasks: usize, keys: usize) -> Self {
        let shared = Arc::new(Shared {
            recorder: Recorder::start(),
            resource: Resource::fenced(),
            stop: AtomicBool::new(false),
            done: AtomicUsize::new(0),
        });
        let mut workers = JoinSet::new();
        for n in 0..clients {
            let client = Client::connect(url).await.expect("a majority is there");
            for task in 0..tasks {
                let (client, shared) = (client.clone(), shared.clone());
                workers.spawn(async move {
                    while !shared.stop.load(Ordering::Relaxed) {
                        let key = format!("load {}", fastrand::usize(..keys));
                        shared.cycle(&client, &format!("{n}/{task}"), key).await;
                    }
                });
            }
        }
        Self { shared, workers }
    }

    /// How many times a lock was taken and given back so far.
    pub(crate) fn done(&self) -> usize {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Waits for so many more.
    pub(crate) async fn cycles(&self, more: usize) {
        let (from, started) = (self.done(), Instant::now());
        while self.done() < from + more {
            assert!(started.elapsed() < PATIENCE, "{} of {more} cycles", self.done() - from);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the work and judges it. The only thing that may have happened is that two believed to
    /// hold a lock at the same time; how often is printed and returned.
    pub(crate) async fn judge(mut self, what: &str) -> usize {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.expect("no worker panics");
        }
        let history = self.shared.recorder.history(&self.shared.resource, Vec::new());
        let (overlaps, others): (Vec<_>, Vec<_>) =
            check(&history).into_iter().partition(|v| matches!(v, Violation::Overlap(_)));
        let count = history.acquisitions.len();
        let refused = history.accesses.iter().filter(|access| !access.accepted).count();
        println!(
            "{what}: {count} grants, {} unfenced overlaps, {refused} accesses refused by their fence",
            overlaps.len()
        );
        let others: Vec<_> = others.iter().map(|violation| violation.to_string()).collect();
        assert!(others.is_empty(), "{} of {count}: {others:#?}", others.len());
        overlaps.len()
    }
}

impl Shared {
    async fn cycle(&self, client: &Client, name: &str, key: String) {
        let called = self.recorder.now();
        let lock = client.mutex(&key).ttl(TTL);
        // Trouble is what these tests are about; only what was granted is judged.
        let Ok(guard) = lock.acquire_within(TTL).await else { return };
        // A fence has one holder: every grant is somebody else's.
        let owner = format!("{name} {}", guard.fence());
        let mark = self.recorder.granted(&guard, &owner, TTL, called, None);
        let (object, fence) = ((key, 0), guard.fence().get());
        let saw = self.resource.read(&object, fence, &owner, false);
        let lost = timeout(Duration::from_millis(fastrand::u64(0..3)), guard.lost()).await;
        if let Some(saw) = saw {
            self.resource.write(&object, fence, &owner, saw);
            mark.used();
        }
        if lost.is_ok() {
            mark.lost();
        }
        mark.releasing();
        let _ = guard.release().await;
        mark.released();
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}
