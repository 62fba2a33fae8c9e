//! Many processes with many tasks on a few locks of several kinds, while everything around them
//! fails.
//!
//! The processes are real, so that they can be stopped and killed at any moment. Each logs what it
//! was granted and until when it considered the lock valid; afterwards the whole history is checked
//! by the same rules as every other one, together with every access to a resource that the locks
//! protect. There are three sorts of faults: those of the processes, which every engine has; those of
//! the network, if the processes reach the server through [proxies](Proxy); and those that the caller
//! supplies, for instance a failover.
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
//! `LOCKKEEPER_STORM_SECONDS` sets the duration, `LOCKKEEPER_STORM_SEED` repeats the choices of the
//! storm and its processes, unless the [`Plan`] does. The timing of processes is never the same
//! twice.

mod brief;
pub mod deployment;
mod fault;
mod judgement;
mod kind;
mod leftovers;
mod log;
mod margins;
mod order;
mod plan;
mod process;
mod resource;
mod route;

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use crate::WallClock;
use crate::holder::{Holder, Program};
use crate::proxy::{Proxy, Way};
use brief::Brief;
use deployment::Deployment;
use fault::Striking;
use log::Tail;
use resource::Served;

pub use fault::{ClientFault, Fault, Struck, Target};
pub use judgement::{Footprint, Judgement};
pub use kind::Kind;
pub use plan::{Plan, Progress};
pub(crate) use process::main;
pub use route::through_proxies;

/// The duration of a storm unless `LOCKKEEPER_STORM_SECONDS` sets it, as `scripts/test` does.
const SHORT: Duration = Duration::from_secs(5);

/// How long the faults of a process lie apart, in milliseconds, except for the brief ones.
const APART: Range<u64> = 80..1600;

/// How often it is looked whether a fault is over.
const TICK: Duration = Duration::from_millis(20);

/// How long the slowest machine may take until every process got a lock again, once the faults have
/// ended.
const RECOVERY: Duration = Duration::from_secs(90);

/// A running storm, and its faults so far.
#[derive(Debug)]
pub struct Storm {
    program: Program,
    urls: Vec<String>,
    plan: Plan,
    directory: TempDir,
    resource: Served,
    /// How many proxies each process has.
    hosts: usize,
    /// In the order of their numbers; killed processes are replaced.
    processes: Vec<Process>,
    /// The log of every process, and its number.
    logs: Vec<(usize, PathBuf)>,
    /// The grants of processes that were killed.
    grants: usize,
    faults: Vec<Struck>,
    /// What went wrong apart from the history.
    surprises: Vec<String>,
    /// How long it took until every process got a lock again.
    recovery: Option<Duration>,
    random: fastrand::Rng,
}

#[derive(Debug)]
struct Process {
    holder: Holder,
    tail: Tail,
    /// Its wall clock, if that can be set, and when it is set right.
    clock: Option<WallClock>,
    clock_until: Option<Instant>,
    /// When it is continued, if it is stopped or blocked.
    paused_until: Option<Instant>,
    /// What it used before the storm.
    footprint: Option<Footprint>,
}

impl Storm {
    /// Starts the processes. The n-th connects to the n-th of the URLs, which are used in turn.
    ///
    /// # Panics
    /// When a process cannot be started.
    pub fn start(program: &Program, urls: &[String], plan: Plan) -> Self {
        let said = || std::env::var("LOCKKEEPER_STORM_SEED").ok()?.parse().ok();
        let seed = plan.seed.or_else(said).unwrap_or_else(|| {
            let seed = fastrand::u64(..);
            eprintln!("storm: LOCKKEEPER_STORM_SEED={seed}");
            seed
        });
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let mut storm = Self {
            program: program.clone(),
            urls: urls.to_vec(),
            resource: Served::start(directory.path()),
            directory,
            hosts: 0,
            processes: Vec::new(),
            logs: Vec::new(),
            grants: 0,
            faults: Vec::new(),
            surprises: Vec::new(),
            recovery: None,
            random: fastrand::Rng::with_seed(seed),
            plan,
        };
        for n in 0..storm.plan.processes {
            let process = storm.process(n);
            storm.processes.push(process);
        }
        storm
    }

    /// A whole storm over servers: every process has proxies of its own, where that is possible.
    pub async fn over(program: &Program, servers: &dyn Deployment, plan: Plan) -> Judgement {
        let (url, hosts) = (servers.url(), servers.hosts());
        let (mut urls, mut proxies) = (Vec::new(), Vec::new());
        for _ in 0..plan.processes {
            let (through, own) = through_proxies(&url, &hosts).await;
            urls.push(if own.is_empty() { url.clone() } else { through });
            proxies.extend(own);
        }
        let mut faults = servers.faults(plan.ttl);
        if let Some(names) = &plan.server_faults {
            faults.retain(|fault| names.iter().any(|name| name == fault.name()));
        }
        let mut storm = Self::start(program, &urls, plan);
        storm.hosts = hosts.len();
        storm.rage(&proxies, &mut faults).await;
        storm.judge(&url).await
    }

    /// Injects faults, one shortly after the other and some at the same time; then repairs
    /// everything, and waits until every process got a lock again.
    pub async fn rage(&mut self, proxies: &[Proxy], own: &mut [Fault<'_>]) {
        if self.everyone_gets_in("before the storm").await.is_none() {
            return;
        }
        for process in &mut self.processes {
            process.footprint = Some(Footprint::of(&process.holder));
        }
        let seconds = || std::env::var("LOCKKEEPER_STORM_SECONDS").ok()?.parse().ok();
        let length = self.plan.length.or_else(|| seconds().map(Duration::from_secs));
        let end = Instant::now() + length.unwrap_or(SHORT);
        let mut healed_at: Vec<Option<Instant>> = vec![None; proxies.len()];
        let possible = self.plan.faults.iter().copied();
        let possible = possible.filter(|fault| !fault.is_network() || !proxies.is_empty());
        let (brief, long): (Vec<_>, Vec<_>) = possible.partition(|fault| fault.is_brief());
        let rate = u64::from(self.plan.rate.max(1));
        // One fault of the servers at a time; clients fail meanwhile.
        let mut striking: Option<(Struck, Striking<'_>)> = None;
        let (mut next_brief, mut next_long) = (Instant::now(), Instant::now());
        while Instant::now() < end && !self.has_enough() {
            let pause = sleep_until(next_brief.min(next_long).min(Instant::now() + TICK));
            match &mut striking {
                Some((_, fault)) => {
                    tokio::select! {
                        () = fault => {
                            let (fault, _) = striking.take().expect("it has just ended");
                            self.struck(fault.name, fault.target, fault.time.start, fault.forgets);
                        }
                        () = pause => {}
                    }
                }
                None => pause.await,
            }
            self.resume(Instant::now());
            for (proxy, until) in proxies.iter().zip(&mut healed_at) {
                // A reply cannot be lost before there is a request.
                let limit =
                    self.plan.ttl.mul_f64(if proxy.still_to_swallow() > 0 { 1.5 } else { 0.0 });
                if until.take_if(|until| *until + limit <= Instant::now()).is_some() {
                    proxy.heal().await;
                }
            }
            let now = Instant::now();
            if next_brief <= now {
                next_brief = now + self.apart(0..2000 / rate);
                self.hurt(&brief, proxies, &mut healed_at);
            }
            if next_long > now {
                continue;
            }
            next_long = now + self.apart(APART);
            // The caller's faults are rarer and more expensive: half of all faults are theirs, if
            // there are any.
            if !own.is_empty() && striking.is_none() && self.random.bool() {
                let fault = &mut own[self.random.usize(..own.len())];
                let (now, target) = (log::now(), Target::Servers);
                let start =
                    Struck { name: fault.name, target, time: now..now, forgets: fault.forgets };
                striking = Some((start, (fault.strike)()));
            } else {
                self.hurt(&long, proxies, &mut healed_at);
            }
        }
        if let Some((fault, rest)) = striking {
            rest.await;
            self.struck(fault.name, fault.target, fault.time.start, fault.forgets);
        }
        self.resume(end + RECOVERY);
        for proxy in proxies {
            proxy.heal().await;
        }
        self.recovery = self.everyone_gets_in("after the storm").await;
    }

    /// Ends the processes and checks what they were granted. A fresh client at `url` must then be
    /// able to acquire everything.
    pub async fn judge(mut self, url: &str) -> Judgement {
        let mut left = Vec::new();
        let mut footprints = Vec::new();
        for process in &mut self.processes {
            if let Some(before) = process.footprint {
                footprints.push([before, Footprint::of(&process.holder)]);
            }
            process.holder.finish();
        }
        for (n, process) in self.processes.iter_mut().enumerate() {
            if let Err(why) = process.holder.listen("done").await {
                left.push(format!("process {n} did not come to an end: {why}"));
            }
        }
        left.extend(self.left(url).await);
        Judgement::of(self, left, footprints)
    }

    /// A random time between two faults. A process has as many in a storm of many as in one of few.
    fn apart(&mut self, millis: Range<u64>) -> Duration {
        let micros = self.random.u64(millis.start * 1000..=millis.end * 1000);
        Duration::from_micros(micros / self.processes.len().max(1) as u64)
    }

    /// Causes one of these, if there are any: one of a connection as often as one of a process.
    fn hurt(
        &mut self,
        faults: &[ClientFault],
        proxies: &[Proxy],
        healed_at: &mut [Option<Instant>],
    ) {
        let (network, process): (Vec<_>, Vec<_>) =
            faults.iter().copied().partition(|fault| fault.is_network());
        let is_network = process.is_empty() || (!network.is_empty() && self.random.bool());
        let faults = if is_network { network } else { process };
        if faults.is_empty() {
            return;
        }
        let fault = faults[self.random.usize(..faults.len())];
        if is_network {
            let n = self.random.usize(..proxies.len());
            self.hurt_network(fault, n, &proxies[n], &mut healed_at[n]);
        } else {
            self.hurt_process(fault);
        }
    }

    fn hurt_process(&mut self, fault: ClientFault) {
        let n = self.random.usize(..self.processes.len());
        if self.processes[n].paused_until.is_some() {
            return;
        }
        let (start, length) = (log::now(), self.plan.ttl.mul_f64(0.5 + 2.5 * self.random.f64()));
        let process = &mut self.processes[n];
        match fault {
            ClientFault::Kill => {
                process.holder.kill();
                self.grants += process.tail.grants();
                self.processes[n] = self.process(n);
            }
            ClientFault::Block => process.holder.tell(&format!("block {}", length.as_millis())),
            ClientFault::DropFutures => process.holder.tell("drop"),
            ClientFault::Clock => {
                let Some(clock) = &process.clock else { return };
                clock.set(self.random.i64(-3_600_000..3_600_000));
            }
            _ => process.holder.stop(),
        }
        self.struck(fault.name(), Target::Client(n), start, false);
        let until = Some(Instant::now() + length);
        match fault {
            ClientFault::Stop | ClientFault::Block => self.processes[n].paused_until = until,
            ClientFault::Clock => self.processes[n].clock_until = until,
            _ => return,
        }
        self.faults.last_mut().expect("it was added").time.end = start + length;
    }

    fn hurt_network(
        &mut self,
        fault: ClientFault,
        n: usize,
        proxy: &Proxy,
        healed_at: &mut Option<Instant>,
    ) {
        if healed_at.is_some() {
            return;
        }
        let (start, mut length) = (log::now(), self.plan.ttl.mul_f64(1.5 * self.random.f64()));
        match fault {
            ClientFault::HoldRequests => proxy.hold(Way::ToServer),
            ClientFault::HoldReplies => proxy.hold(Way::ToClient),
            ClientFault::SwallowReply => {
                proxy.swallow_reply_after(self.random.usize(..100));
                if self.random.u8(..4) > 0 {
                    length = Duration::ZERO;
                }
            }
            ClientFault::Latency => proxy.latency(Duration::from_millis(self.random.u64(1..50))),
            _ => proxy.reset(),
        }
        self.struck(fault.name(), Target::Network(n), start, false);
        if fault != ClientFault::Reset {
            // The request whose reply is lost may come later.
            let later =
                if fault == ClientFault::SwallowReply { self.plan.ttl / 2 } else { Duration::ZERO };
            self.faults.last_mut().expect("it was added").time.end = start + length + later;
            *healed_at = Some(Instant::now() + length);
        }
    }

    fn struck(&mut self, name: &'static str, target: Target, start: Duration, forgets: bool) {
        self.faults.push(Struck { name, target, time: start..log::now(), forgets });
    }

    /// Continues the processes whose time has come, and sets clocks right. One that was blocked
    /// continues by itself.
    fn resume(&mut self, now: Instant) {
        for process in &mut self.processes {
            if process.paused_until.take_if(|until| *until <= now).is_some() {
                process.holder.resume();
            }
            if process.clock_until.take_if(|until| *until <= now).is_some() {
                process.clock.as_ref().inspect(|clock| clock.set(0));
            }
        }
    }

    fn process(&mut self, n: usize) -> Process {
        let log = self.directory.path().join(format!("{}-{n}", self.logs.len()));
        self.logs.push((n, log.clone()));
        let plan = &self.plan;
        let brief = Brief {
            url: self.urls[n % self.urls.len()].clone(),
            log: log.clone(),
            resource: self.resource.socket.clone(),
            tasks: plan.tasks,
            ttl: plan.ttl,
            kinds: plan.kinds.clone(),
            prefix: plan.prefix.clone(),
            keys: plan.keys,
            bug: plan.bug,
            seed: self.random.u64(..),
        };
        let arguments = brief.to_arguments();
        let arguments: Vec<_> =
            std::iter::once("storm").chain(arguments.iter().map(String::as_str)).collect();
        let clock = self.plan.faults.contains(&ClientFault::Clock).then(WallClock::if_possible);
        let clock = clock.flatten();
        let holder = Holder::launch(&self.program, &arguments, clock.as_ref());
        let tail = Tail::new(log);
        Process { holder, tail, clock, clock_until: None, paused_until: None, footprint: None }
    }

    /// Waits until every process was granted something from now on. Returns how long it took, or
    /// `None` if one waits for too long.
    async fn everyone_gets_in(&mut self, when: &str) -> Option<Duration> {
        let before: Vec<_> =
            self.processes.iter_mut().map(|process| process.tail.grants()).collect();
        let started = Instant::now();
        for (n, (process, before)) in self.processes.iter_mut().zip(before).enumerate() {
            while process.tail.grants() == before {
                if started.elapsed() > RECOVERY {
                    let last = process.tail.last_words();
                    self.surprises.push(format!(
                        "{when}, process {n} was granted nothing for {RECOVERY:?}; its last words: {last}"
                    ));
                    return None;
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
        Some(started.elapsed())
    }

    /// Counts, and returns whether there were enough grants.
    fn has_enough(&mut self) -> bool {
        let running = self.processes.iter_mut().map(|process| process.tail.grants()).sum::<usize>();
        let (grants, faults) = (self.grants + running, self.faults.len());
        self.plan.progress.send_replace(Progress { grants, faults });
        self.plan.grants.is_some_and(|enough| grants >= enough)
    }
}
