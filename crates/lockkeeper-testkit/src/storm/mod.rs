//! Many processes with many tasks on a few locks of several kinds, while everything around them
//! fails.
//!
//! The processes are real, so that they can be stopped and killed at any moment. Each logs what it
//! was granted and until when it considered the lock valid; afterwards the whole history is checked
//! by the same rules as every other one. There are three sorts of faults: those of the processes,
//! which every engine has; those of the network, if the processes reach the server through
//! [proxies](Proxy); and those that the caller supplies, for instance a failover.
//!
//! ```no_run
//! # async fn example() {
//! use lockkeeper_testkit::holder::Program;
//! use lockkeeper_testkit::storm::{Fault, Plan, Storm};
//! let mut storm = Storm::start(&Program::binary(), &["redis://127.0.0.1".into()], Plan::default());
//! let flush = Fault::new("script flush", || async { /* … */ });
//! storm.rage(&[], &mut [flush]).await;
//! let judgement = storm.judge("redis://127.0.0.1").await;
//! assert!(judgement.is_clean(), "{judgement}");
//! # }
//! ```
//!
//! `LOCKKEEPER_STORM_SECONDS` sets the duration, `LOCKKEEPER_STORM_SEED` repeats the choice of
//! faults.

mod judgement;
mod log;
mod process;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::holder::{Holder, Program};
use crate::proxy::{Proxy, Way};

pub use judgement::Judgement;
pub(crate) use process::main;

/// The duration of a storm unless `LOCKKEEPER_STORM_SECONDS` sets it, as `scripts/test` does.
const SHORT: Duration = Duration::from_secs(5);

/// How long the slowest machine may take until every process got a lock again, once the faults have
/// ended.
const RECOVERY: Duration = Duration::from_secs(90);

/// What the processes do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many processes there are.
    pub processes: usize,
    /// How many tasks each of them has.
    pub tasks: usize,
    /// The kinds of locks; each kind has its own key.
    pub kinds: Vec<Kind>,
    /// The length of every lease.
    pub ttl: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            processes: 4,
            tasks: 32,
            kinds: vec![Kind::Mutex, Kind::ReadWrite, Kind::Permits],
            ttl: Duration::from_secs(2),
        }
    }
}

/// What a key of the storm is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A mutex, sometimes taken twice by one owner.
    Mutex,
    /// A fair mutex.
    Fair,
    /// Readers and writers.
    ReadWrite,
    /// A semaphore of three, of which one or two are taken.
    Permits,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Mutex, Kind::Fair, Kind::ReadWrite, Kind::Permits];

    /// How many permits there are.
    pub(crate) const LIMIT: u32 = 3;

    /// The name of this kind in arguments, and its key.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Fair => "fair",
            Kind::ReadWrite => "readwrite",
            Kind::Permits => "permits",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A fault, which ends when its future does.
pub struct Fault<'a> {
    name: &'static str,
    forgets: bool,
    strike: Box<dyn FnMut() -> Pin<Box<dyn Future<Output = ()> + 'a>> + 'a>,
}

impl<'a> Fault<'a> {
    /// A fault by its name and what it does.
    pub fn new<F: Future<Output = ()> + 'a>(
        name: &'static str,
        mut strike: impl FnMut() -> F + 'a,
    ) -> Self {
        Self { name, forgets: false, strike: Box::new(move || Box::pin(strike())) }
    }

    /// A fault by which the store may forget locks: while it lasts, and for a lease after it, two
    /// clients may hold a lock.
    pub fn forgetful<F: Future<Output = ()> + 'a>(
        name: &'static str,
        strike: impl FnMut() -> F + 'a,
    ) -> Self {
        Self { forgets: true, ..Self::new(name, strike) }
    }
}

impl std::fmt::Debug for Fault<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fault({})", self.name)
    }
}

/// A running storm, and its faults so far.
#[derive(Debug)]
pub struct Storm {
    program: Program,
    urls: Vec<String>,
    plan: Plan,
    directory: TempDir,
    /// In the order of their numbers; killed processes are replaced.
    processes: Vec<Process>,
    logs: Vec<PathBuf>,
    faults: BTreeMap<&'static str, usize>,
    /// When the store may have forgotten locks.
    forgetful: Vec<Range<Duration>>,
    random: fastrand::Rng,
}

#[derive(Debug)]
struct Process {
    holder: Holder,
    log: PathBuf,
    stopped_until: Option<Instant>,
}

impl Storm {
    /// Starts the processes. The n-th connects to the n-th of the URLs, which are used in turn.
    ///
    /// # Panics
    /// When a process cannot be started.
    pub fn start(program: &Program, urls: &[String], plan: Plan) -> Self {
        let seed = std::env::var("LOCKKEEPER_STORM_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        eprintln!("storm: LOCKKEEPER_STORM_SEED={seed}");
        let mut storm = Self {
            program: program.clone(),
            urls: urls.to_vec(),
            directory: tempfile::tempdir().expect("a temporary directory can be made"),
            processes: Vec::new(),
            logs: Vec::new(),
            faults: BTreeMap::new(),
            forgetful: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            plan,
        };
        for n in 0..storm.plan.processes {
            let process = storm.process(n);
            storm.processes.push(process);
        }
        storm
    }

    /// Injects faults, one shortly after the other and some at the same time; then repairs
    /// everything, and waits until every process got a lock again.
    ///
    /// # Panics
    /// If a process gets no lock for a long time.
    pub async fn rage(&mut self, proxies: &[Proxy], own: &mut [Fault<'_>]) {
        self.everyone_gets_in("before the storm").await;
        let seconds = std::env::var("LOCKKEEPER_STORM_SECONDS").ok();
        let length = seconds.and_then(|n| n.parse().ok()).map_or(SHORT, Duration::from_secs);
        let end = Instant::now() + length;
        let mut healed_at: Vec<Option<Instant>> = vec![None; proxies.len()];
        while Instant::now() < end {
            sleep(Duration::from_millis(self.random.u64(20..400))).await;
            self.resume(Instant::now());
            for (proxy, until) in proxies.iter().zip(&mut healed_at) {
                if until.take_if(|until| *until <= Instant::now()).is_some() {
                    proxy.heal().await;
                }
            }
            // The caller's faults are rarer and more expensive: half of all faults are theirs, if
            // there are any.
            if !own.is_empty() && self.random.bool() {
                let fault = &mut own[self.random.usize(..own.len())];
                self.count(fault.name);
                let struck = log::now();
                (fault.strike)().await;
                if fault.forgets {
                    self.forgetful.push(struck..log::now() + self.plan.ttl);
                }
            } else if !proxies.is_empty() && self.random.bool() {
                let n = self.random.usize(..proxies.len());
                self.hurt_network(&proxies[n], &mut healed_at[n]);
            } else {
                self.hurt_process();
            }
        }
        self.resume(end + RECOVERY);
        for proxy in proxies {
            proxy.heal().await;
        }
        self.everyone_gets_in("after the storm").await;
    }

    /// Ends the processes and checks what they were granted. A fresh client at `url` must then be
    /// able to acquire everything.
    pub async fn judge(mut self, url: &str) -> Judgement {
        let mut left = Vec::new();
        for (n, process) in self.processes.iter_mut().enumerate() {
            process.holder.finish();
            if timeout(RECOVERY, process.holder.said("done")).await.is_err() {
                left.push(format!("process {n} did not come to an end"));
            }
        }
        left.extend(self.still_taken(url).await);
        Judgement::of(&self.logs, left, std::mem::take(&mut self.faults), &self.forgetful)
    }

    fn hurt_process(&mut self) {
        let n = self.random.usize(..self.processes.len());
        if self.random.bool() {
            if self.processes[n].stopped_until.is_none() {
                self.count("process stopped");
                let length = self.plan.ttl.mul_f64(0.5 + 2.5 * self.random.f64());
                self.processes[n].holder.stop();
                self.processes[n].stopped_until = Some(Instant::now() + length);
            }
        } else {
            self.count("process killed");
            self.processes[n].holder.kill();
            self.processes[n] = self.process(n);
        }
    }

    fn hurt_network(&mut self, proxy: &Proxy, healed_at: &mut Option<Instant>) {
        if healed_at.is_some() {
            return;
        }
        let length = self.plan.ttl.mul_f64(1.5 * self.random.f64());
        match self.random.u8(..5) {
            0 => {
                self.count("connections reset");
                proxy.reset();
                return;
            }
            1 => {
                self.count("requests held back");
                proxy.hold(Way::ToServer);
            }
            2 => {
                self.count("replies held back");
                proxy.hold(Way::ToClient);
            }
            3 => {
                self.count("reply swallowed");
                proxy.swallow_reply_after(self.random.usize(..100));
            }
            _ => {
                self.count("latency");
                proxy.latency(Duration::from_millis(self.random.u64(1..50)));
            }
        }
        *healed_at = Some(Instant::now() + length);
    }

    /// Continues the processes whose time has come.
    fn resume(&mut self, now: Instant) {
        for process in &mut self.processes {
            if process.stopped_until.take_if(|until| *until <= now).is_some() {
                process.holder.resume();
            }
        }
    }

    fn process(&mut self, n: usize) -> Process {
        let log = self.directory.path().join(format!("{}-{n}", self.logs.len()));
        self.logs.push(log.clone());
        let kinds: Vec<_> = self.plan.kinds.iter().map(|kind| kind.name()).collect();
        let arguments = [
            "storm",
            &self.urls[n % self.urls.len()],
            &log.display().to_string(),
            &self.plan.tasks.to_string(),
            &self.plan.ttl.as_millis().to_string(),
            &kinds.join(","),
        ];
        let holder = Holder::launch(&self.program, &arguments);
        Process { holder, log, stopped_until: None }
    }

    /// Waits until every process was granted something from now on.
    async fn everyone_gets_in(&self, when: &str) {
        let grants = |process: &Process| log::grants(&process.log);
        let before: Vec<_> = self.processes.iter().map(grants).collect();
        let started = Instant::now();
        for (n, (process, before)) in self.processes.iter().zip(before).enumerate() {
            while grants(process) == before {
                assert!(
                    started.elapsed() < RECOVERY,
                    "{when}, process {n} was not let in for {RECOVERY:?}; its last words: {}",
                    log::last_words(&process.log)
                );
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// What a client cannot acquire after all others are gone.
    async fn still_taken(&self, url: &str) -> Vec<String> {
        let client = match lockkeeper::Client::connect(url).await {
            Ok(client) => client,
            Err(error) => return vec![format!("a fresh client cannot connect: {error}")],
        };
        let mut left = Vec::new();
        // A killed process keeps its locks for a lease, or for a session of the server.
        let limit = self.plan.ttl * 2 + Duration::from_secs(30);
        for kind in &self.plan.kinds {
            let lock = match kind {
                Kind::Mutex => client.mutex(kind.name()),
                Kind::Fair => client.mutex(kind.name()).fair(),
                Kind::ReadWrite => client.write(kind.name()),
                Kind::Permits => client.semaphore(kind.name(), Kind::LIMIT).permits(Kind::LIMIT),
            };
            match lock.acquire_within(limit).await {
                Ok(guard) => drop(guard.release().await),
                Err(error) => left.push(format!("{}: {error}", kind.name())),
            }
        }
        client.close().await;
        left
    }

    fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }
}
