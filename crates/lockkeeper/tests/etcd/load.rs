//! Many who take a few locks again and again, and a fenced resource that watches them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{Client, Error};
use lockkeeper_testkit::history::{Recorder, Resource, check};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Few enough that they get into each other's way.
const KEYS: usize = 3;

/// A load that goes on until it is ended.
pub(crate) struct Load {
    recorder: Arc<Recorder>,
    resource: Arc<Resource>,
    stop: Arc<AtomicBool>,
    cycles: Arc<AtomicUsize>,
    workers: JoinSet<()>,
    clients: Vec<Client>,
}

impl Load {
    /// Starts workers that share these clients.
    pub(crate) fn start(clients: Vec<Client>, workers: usize, ttl: Duration) -> Self {
        let mut load = Self {
            recorder: Recorder::start(),
            resource: Arc::new(Resource::fenced()),
            stop: Arc::default(),
            cycles: Arc::default(),
            workers: JoinSet::new(),
            clients,
        };
        for n in 0..workers {
            let client = load.clients[n % load.clients.len()].clone();
            let (recorder, resource) = (load.recorder.clone(), load.resource.clone());
            let (stop, cycles) = (load.stop.clone(), load.cycles.clone());
            load.workers.spawn(async move {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let owner = format!("worker {n} round {round}");
                    let key = format!("key-{}", (n + round) % KEYS);
                    match cycle(&client, &key, &owner, ttl, &recorder, &resource).await {
                        Ok(()) => _ = cycles.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Timeout { .. } | Error::Backend { .. }) => {}
                        Err(error) => panic!("{owner}: {error}"),
                    }
                }
            });
        }
        load
    }

    /// Waits until so many more cycles were finished.
    pub(crate) async fn goes_on(&self, cycles: usize) {
        let started = Instant::now();
        let goal = self.cycles.load(Ordering::Relaxed) + cycles;
        while self.cycles.load(Ordering::Relaxed) < goal {
            assert!(started.elapsed() < Duration::from_secs(60), "the load stands still");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the load and judges what happened; `left` says what is still in the store.
    pub(crate) async fn end(mut self, left: impl AsyncFnOnce() -> Vec<String>) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.expect("no worker panics");
        }
        for client in self.clients.drain(..) {
            client.close().await;
        }
        let history = self.recorder.history(&self.resource, left().await);
        let violations = check(&history);
        assert!(violations.is_empty(), "{violations:#?}");
        history.acquisitions.len()
    }
}

async fn cycle(
    client: &Client,
    key: &str,
    owner: &str,
    ttl: Duration,
    recorder: &Arc<Recorder>,
    resource: &Resource,
) -> Result<(), Error> {
    let called = recorder.now();
    let lock = client.mutex(key).ttl(ttl);
    let guard = lock.acquire_within(Duration::from_secs(20)).await?;
    let mark = recorder.granted(&guard, owner, ttl, called, None);
    let object = (key.to_owned(), 0);
    let work = async {
        let fence = guard.fence().get();
        if let Some(saw) = resource.read(&object, fence, owner, false) {
            sleep(Duration::from_millis(fastrand::u64(0..5))).await;
            mark.used();
            resource.write(&object, fence, owner, saw);
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
