//! Whole systems in paused time: several clients, a store behind faults, and a seed that determines
//! everything.
//!
//! Workers acquire locks of every kind and use a fenced resource under them. Meanwhile links are
//! cut, calls fail, hang and lose their replies, futures are dropped at any poll, holders are
//! evicted, and the store's clock is fast. Afterwards the history is
//! [checked](crate::history::check). The same seed gives the same history, to the nanosecond.

mod nemesis;
mod store;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::engine::Engine;
use lockkeeper::layers::faults::{Faults, Plan};
use lockkeeper::{Client, Owner};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::bugs::{Bug, Buggy};
use crate::fault_link::FaultLink;
use crate::history::{History, Recorder, Resource, Violation, check};
use nemesis::Nemesis;
use store::Store;
use worker::Worker;

/// The keys that the workers of a simulation compete for.
const KEYS: [&str; 4] = ["m0", "m1", "rw", "sem"];

/// How long everything in progress may take to complete once the faults have ended.
const QUIET: Duration = Duration::from_secs(8);

/// One simulated system.
#[derive(Debug, Clone, Copy)]
pub struct Simulation {
    /// Determines everything.
    pub seed: u64,
    /// A bug in the engine, if any.
    pub bug: Option<Bug>,
    /// Whether the resource checks fences.
    pub fenced: bool,
}

/// The result.
#[derive(Debug)]
pub struct Outcome {
    /// What happened.
    pub history: History,
    /// What should not have happened.
    pub violations: Vec<Violation>,
}

impl Simulation {
    /// A system without bugs, but with faults.
    pub fn new(seed: u64) -> Self {
        Self { seed, bug: None, fenced: true }
    }

    /// The seed from `LOCKKEEPER_SEED`, or all of these.
    ///
    /// # Panics
    /// When the variable is not a number.
    pub fn seeds(all: std::ops::Range<u64>) -> std::ops::Range<u64> {
        match std::env::var("LOCKKEEPER_SEED") {
            Ok(seed) => {
                let seed = seed.parse().expect("LOCKKEEPER_SEED is a number");
                seed..seed + 1
            }
            Err(_) => all,
        }
    }

    /// Runs the simulation.
    pub fn run(self) -> Outcome {
        // The core's jitter comes from here.
        fastrand::seed(self.seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime can be started");
        runtime.block_on(self.play())
    }

    async fn play(self) -> Outcome {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let recorder = Recorder::start();
        let resource =
            Arc::new(if self.fenced { Resource::fenced() } else { Resource::unfenced() });
        let store = Store::new(random.u32(0..=9), recorder.clone());
        let ways: Vec<_> =
            (0..random.usize(2..=4)).map(|_| self.way(&store, &mut random)).collect();
        let clients: Vec<_> = ways.iter().map(|way| way.client.clone()).collect();
        let permits = random.u32(1..=3);

        let mut workers = JoinSet::new();
        for n in 0..random.usize(3..=7) {
            let worker = Worker {
                name: format!("w{n}"),
                owner: Owner::named(format!("w{n}")).expect("a fine name"),
                clients: clients.clone(),
                home: random.usize(..clients.len()),
                permits,
                store: store.clone(),
                recorder: recorder.clone(),
                resource: resource.clone(),
                random: random.fork(),
            };
            workers.spawn(worker.work());
        }
        let nemesis = Nemesis { ways, store: store.clone(), random: random.fork() };
        let nemesis = tokio::spawn(nemesis.rage());

        let mut surprises = Vec::new();
        let ended = timeout(Duration::from_secs(600), async {
            while let Some(worker) = workers.join_next().await {
                match worker {
                    Ok(met) => surprises.extend(met),
                    Err(panic) => surprises.push(format!("a worker panicked: {panic}")),
                }
            }
        });
        if ended.await.is_err() {
            surprises.push(format!("{} workers wait for ever", workers.len()));
        }
        nemesis.await.expect("the nemesis ends by itself");
        sleep(QUIET).await;
        let mut left = store.left(false).await;
        drop(clients);
        workers.shutdown().await;
        sleep(Duration::from_secs(1)).await;
        // What is kept goes with the client that keeps it.
        left.extend(store.left(true).await);
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        if tasks > 0 {
            surprises.push(format!("{tasks} tasks outlive all clients"));
        }

        let history = recorder.history(&resource, left);
        let mut violations = check(&history);
        violations.extend(surprises.into_iter().map(Violation::Surprise));
        Outcome { history, violations }
    }

    /// A client's connection to the store, with everything that can fail.
    fn way(self, store: &Store, random: &mut fastrand::Rng) -> Way {
        let faults = Faults::new(store.clone(), random.u64(..));
        let link = FaultLink::new(Arc::new(faults.clone()));
        let engine: Arc<dyn Engine> = match self.bug {
            Some(bug) => Arc::new(Buggy::new(Arc::new(link.clone()), bug)),
            None => Arc::new(link.clone()),
        };
        // Half of the links are slow even without faults.
        let delay = if random.bool() { random.f64() } else { 0.0 };
        let calm = Plan::NONE.delay(delay).longest(Duration::from_millis(random.u64(1..60)));
        faults.set(calm);
        Way { client: Client::shared(engine), link, faults, calm }
    }
}

/// A client, and the switches of its connection to the store.
#[derive(Debug)]
struct Way {
    client: Client,
    link: FaultLink,
    faults: Faults,
    calm: Plan,
}
