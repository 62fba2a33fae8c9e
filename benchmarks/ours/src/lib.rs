//! What the workers of `benchmarks/run` that are written in Rust share.
//!
//! A worker is started with `CLIENT ADDRESS KEY CLIENTS TASKS own|hot SECTION_US`. It connects
//! that many clients with that many tasks each, prints `ready`, and reads moments from its input,
//! one per line: nanoseconds of the monotonic clock, which all processes of a machine share. Until
//! that moment every task locks, stays for the section and unlocks. Then the worker prints a line
//! `TASK ASKED GRANTED LEAVING` for every cycle, `errors N FIRST`, and `end`.
//!
//! A task that waits when the time is up waits on until it gets the lock: a waiter that starved is
//! then seen as such.

use std::error::Error;
use std::future::Future;
use std::io::{self, BufRead, BufWriter, Write};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::task::JoinSet;

/// Whatever went wrong; the first one of a run is reported.
pub type Failure = Box<dyn Error + Send + Sync>;

/// What a worker has to do, from its arguments.
#[derive(Debug, Clone)]
pub struct Order {
    /// Which client library, and how it is used.
    pub client: String,
    /// Where the servers are.
    pub address: String,
    /// How many clients, each with its own connections.
    pub clients: usize,
    /// How many tasks each client has.
    pub tasks: usize,
    key: String,
    own: bool,
    section: Duration,
}

impl Order {
    /// Reads the arguments of this process.
    pub fn from_arguments() -> Result<Self, Failure> {
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let [client, address, key, clients, tasks, keys, section] = &arguments[..] else {
            return Err("usage: CLIENT ADDRESS KEY CLIENTS TASKS own|hot SECTION_US".into());
        };
        Ok(Self {
            client: client.clone(),
            address: address.clone(),
            clients: clients.parse()?,
            tasks: tasks.parse()?,
            key: key.clone(),
            own: keys == "own",
            section: Duration::from_micros(section.parse()?),
        })
    }

    /// The key that this task locks.
    pub fn key(&self, task: usize) -> String {
        match self.own {
            true => format!("{}-{task}", self.key),
            false => self.key.clone(),
        }
    }

    /// A runtime as programs have it, or with a thread for every task that blocks.
    pub fn runtime(&self, blocking: bool) -> io::Result<tokio::runtime::Runtime> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        if blocking {
            builder.worker_threads(self.clients * self.tasks + 1);
        }
        builder.enable_all().build()
    }
}

/// A task with its lock.
pub trait Contender: Send + 'static {
    /// Locks, stays for the section, and unlocks.
    fn visit(&mut self, section: &mut Section) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// What is done under the lock, and the record of it.
#[derive(Debug)]
pub struct Section {
    length: Duration,
    asked: u64,
    cycles: Vec<[u64; 3]>,
}

impl Section {
    /// Called as soon as the lock is held; it is to be released at once afterwards.
    pub async fn enter(&mut self) -> Result<(), Failure> {
        let granted = now();
        if !self.length.is_zero() {
            // The runtime's own timers count whole milliseconds.
            let length = self.length;
            tokio::task::spawn_blocking(move || std::thread::sleep(length)).await?;
        }
        self.cycles.push([self.asked, granted, now()]);
        Ok(())
    }
}

/// Runs whatever is ordered on the input until it ends.
pub async fn serve<C: Contender>(order: &Order, contenders: Vec<C>) -> Result<(), Failure> {
    let mut contenders: Vec<_> = contenders.into_iter().map(Some).collect();
    println!("ready");
    for line in io::stdin().lock().lines() {
        let until: u64 = line?.trim().parse()?;
        let mut running = JoinSet::new();
        for (task, contender) in contenders.iter_mut().enumerate() {
            let mut contender = contender.take().ok_or("a task of the last run is missing")?;
            let mut section = Section { length: order.section, asked: 0, cycles: Vec::new() };
            running.spawn(async move {
                let mut errors = Vec::new();
                loop {
                    section.asked = now();
                    if section.asked >= until {
                        break;
                    }
                    if let Err(error) = contender.visit(&mut section).await {
                        errors.push(error.to_string());
                    }
                }
                (task, contender, section.cycles, errors)
            });
        }
        let (mut out, mut errors) = (BufWriter::new(io::stdout().lock()), Vec::new());
        while let Some(done) = running.join_next().await {
            let (task, contender, cycles, failed) = done?;
            contenders[task] = Some(contender);
            errors.extend(failed);
            for [asked, granted, leaving] in cycles {
                writeln!(out, "{task} {asked} {granted} {leaving}")?;
            }
        }
        let first = errors.first().map_or(String::new(), |error| error.replace('\n', " "));
        writeln!(out, "errors {} {first}\nend", errors.len())?;
        out.flush()?;
    }
    Ok(())
}

fn now() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}
