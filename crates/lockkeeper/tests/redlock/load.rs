//! Clients that use many locks and what they protect, recorded and checked.
//!
//! Every other lock is a mutex, the rest are read-write locks with three readers for a writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper::engine::Mode;
use lockkeeper_testkit::history::{Acquisition, Recorder, Resource, Violation, check};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a lease lasts in the load.
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// How long this much work may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Load {
    shared: Arc<Shared>,
    workers: JoinSet<()>,
}

/// What no fence can prevent.
#[derive(Debug, PartialEq)]
pub(crate) struct Unfenced {
    /// How often two clients considered themselves the exclusive holder.
    pub(crate) overlaps: usize,
    /// How often two readers held together under different fences.
    pub(crate) apart: usize,
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
                        let key = fastrand::usize(..keys);
                        shared.cycle(&client, &format!("{n}/{task}"), key).await;
                    }
                });
            }
        }
        Self { shared, workers }
    }

    /// How often a lock was acquired and released so far.
    pub(crate) fn done(&self) -> usize {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Waits for this many more.
    pub(crate) async fn cycles(&self, more: usize) {
        let (from, started) = (self.done(), Instant::now());
        while self.done() < from + more {
            assert!(started.elapsed() < PATIENCE, "{} of {more} cycles", self.done() - from);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the work and checks it. What remains is what no fence can prevent; how often is printed
    /// and returned.
    pub(crate) async fn judge(mut self, what: &str) -> Unfenced {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.expect("no worker panics");
        }
        let history = self.shared.recorder.history(&self.shared.resource, Vec::new());
        let (overlaps, others): (Vec<_>, Vec<_>) =
            check(&history).into_iter().partition(|v| matches!(v, Violation::Overlap(_)));
        let grants = &history.acquisitions;
        let reads = grants.iter().filter(|grant| grant.mode == Mode::Read).count();
        let refused = history.accesses.iter().filter(|access| !access.accepted).count();
        let unfenced = Unfenced { overlaps: overlaps.len(), apart: apart(grants) };
        println!(
            "{what}: {} grants ({reads} to readers), {} unfenced overlaps, {} pairs of readers with different fences, {refused} accesses refused by their fence",
            grants.len(),
            unfenced.overlaps,
            unfenced.apart,
        );
        let others: Vec<_> = others.iter().map(|violation| violation.to_string()).collect();
        assert!(others.is_empty(), "{} of {}: {others:#?}", others.len(), grants.len());
        unfenced
    }
}

/// How many pairs of readers held together under different fences.
fn apart(grants: &[Acquisition]) -> usize {
    let mut readers: Vec<_> = grants.iter().filter(|grant| grant.mode == Mode::Read).collect();
    readers.sort_by_key(|reader| reader.returned);
    let pairs = readers.iter().enumerate().flat_map(|(at, first)| {
        let later = readers[at + 1..].iter();
        later.take_while(|second| second.returned < first.claimed().end).filter(|second| {
            second.key == first.key && second.fence != first.fence && !second.claimed().is_empty()
        })
    });
    pairs.count()
}

impl Shared {
    async fn cycle(&self, client: &Client, name: &str, number: usize) {
        let called = self.recorder.now();
        let key = format!("load {number}");
        let lock = match (number % 2, fastrand::u8(..4)) {
            (0, _) => client.mutex(&key),
            (_, 0) => client.write(&key),
            _ => client.read(&key),
        };
        // Errors are expected in these tests; only the grants are checked.
        let Ok(guard) = lock.ttl(TTL).acquire_within(TTL).await else { return };
        // Every grant has another identity.
        let owner = format!("{name} {called:?}");
        let mark = self.recorder.granted(&guard, &owner, TTL, called, None);
        mark.vouched();
        let (object, fence) = ((key, 0), guard.fence().get());
        let is_shared = guard.mode() == Mode::Read;
        let saw = self.resource.read(&object, fence, &owner, is_shared);
        let lost = timeout(Duration::from_millis(fastrand::u64(0..3)), guard.lost()).await;
        match saw {
            Some(_) if is_shared => drop(self.resource.read(&object, fence, &owner, true)),
            Some(saw) => {
                self.resource.write(&object, fence, &owner, saw);
                mark.used();
            }
            None => {}
        }
        if lost.is_ok() {
            mark.lost();
        }
        // On a busy machine a lock may expire before it can be reported.
        if guard.remaining() > TTL / 4 {
            mark.vouched();
        }
        mark.releasing();
        let _ = guard.release().await;
        mark.released();
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}
