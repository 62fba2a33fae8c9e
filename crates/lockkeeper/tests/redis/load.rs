//! Clients that use locks and what they protect, checked at the end; and how these tests acquire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Client, Guard, Lock};
use lockkeeper_testkit::history::{Recorder, Resource, Violation, check};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long something immediate may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) async fn connect(url: &str) -> Client {
    Client::connect(url).await.expect("the server is there")
}

/// Acquires, retrying through remaining faults.
pub(crate) async fn acquire(client: &Client, key: &str) -> Guard {
    through_trouble(client.mutex(key).ttl(Duration::from_secs(2))).await
}

pub(crate) async fn through_trouble(lock: Lock) -> Guard {
    let started = Instant::now();
    loop {
        match lock.clone().acquire_within(SOON).await {
            Ok(guard) => return guard,
            Err(error) => assert!(started.elapsed() < SOON, "{error}"),
        }
    }
}

/// Clients that use a few locks and what they protect, until they are stopped.
pub(crate) struct Load {
    recorder: Arc<Recorder>,
    resource: Arc<Resource>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    workers: JoinSet<()>,
}

impl Load {
    pub(crate) async fn start(url: &str, clients: usize, keys: usize) -> Self {
        let mut load = Self {
            recorder: Recorder::start(),
            resource: Arc::new(Resource::fenced()),
            stop: Arc::default(),
            done: Arc::default(),
            workers: JoinSet::new(),
        };
        load.join(url, clients, keys).await;
        load
    }

    /// More clients.
    pub(crate) async fn join(&mut self, url: &str, clients: usize, keys: usize) {
        for _ in 0..clients {
            let (client, n) = (connect(url).await, self.workers.len());
            for task in n..n + 4 {
                let work = Self::work(
                    client.clone(),
                    format!("task {task}"),
                    keys,
                    self.recorder.clone(),
                    self.resource.clone(),
                    self.stop.clone(),
                    self.done.clone(),
                );
                self.workers.spawn(work);
            }
        }
    }

    async fn work(
        client: Client,
        name: String,
        keys: usize,
        recorder: Arc<Recorder>,
        resource: Arc<Resource>,
        stop: Arc<AtomicBool>,
        done: Arc<AtomicUsize>,
    ) {
        let ttl = Duration::from_secs(2);
        while !stop.load(Ordering::Relaxed) {
            let key = format!("load {}", fastrand::usize(..keys));
            let called = recorder.now();
            let lock = client.mutex(&key).ttl(ttl);
            // Errors are expected in these tests; only the grants are checked.
            let Ok(guard) = lock.acquire_within(Duration::from_secs(2)).await else { continue };
            // A fence has one holder: without an owner, every grant has another identity.
            let owner = format!("{name} {}", guard.fence());
            let mark = recorder.granted(&guard, &owner, ttl, called, None);
            let (object, fence) = ((key, 0), guard.fence().get());
            let saw = resource.read(&object, fence, &owner, false);
            let lost = timeout(Duration::from_millis(fastrand::u64(0..4)), guard.lost()).await;
            if let Some(saw) = saw {
                resource.write(&object, fence, &owner, saw);
                mark.used();
            }
            if lost.is_ok() {
                mark.lost();
            }
            mark.releasing();
            let _ = guard.release().await;
            mark.released();
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for this many more cycles.
    pub(crate) async fn cycles(&self, more: usize, within: Duration) {
        let (from, started) = (self.done.load(Ordering::Relaxed), Instant::now());
        while self.done.load(Ordering::Relaxed) < from + more {
            assert!(started.elapsed() < within, "no work gets done within {within:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the work and checks it. Returns the number of holds that overlapped.
    pub(crate) async fn judge(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.unwrap();
        }
        let history = self.recorder.history(&self.resource, Vec::new());
        let violations = check(&history);
        let overlaps = |v: &&Violation| matches!(v, Violation::Overlap(_));
        let others: Vec<_> =
            violations.iter().filter(|v| !overlaps(v)).map(|v| v.to_string()).collect();
        assert!(
            others.is_empty(),
            "{} of {}: {others:#?}",
            others.len(),
            history.acquisitions.len()
        );
        let overlapping = violations.iter().filter(overlaps).count();
        println!("{} grants, {overlapping} overlaps", history.acquisitions.len());
        overlapping
    }
}
