//! What a process of the storm does until its input ends.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{Client, Error, Guard, Lock, Owner, Result};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Kind;
use super::log::{Log, now};
use crate::holder::say;

/// How often a holder that keeps the lock for longer records that it still has it.
const VOUCH: Duration = Duration::from_millis(20);

struct Shared {
    client: Client,
    log: Log,
    kinds: Vec<Kind>,
    ttl: Duration,
    grants: AtomicUsize,
    stop: AtomicBool,
}

/// Runs a process of the storm; the arguments are the URL, the log, the number of tasks, the lease in
/// milliseconds and the kinds.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [url, log, tasks, ttl, kinds] = arguments else {
        say(format_args!("failed a process of the storm has five arguments, not {arguments:?}"));
        return ExitCode::FAILURE;
    };
    let number = |text: &str| text.parse::<u64>().expect("the storm passes numbers");
    let (log, tasks) = (Log::create(Path::new(log)), number(tasks));
    let ttl = Duration::from_millis(number(ttl));
    let kinds = kinds.split(',').map(|name| Kind::named(name).expect("the storm knows its kinds"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be started");
    runtime.block_on(async {
        let ended = input_ended();
        let Some(client) = connect(url, &log, &ended).await else { return };
        let kinds = kinds.collect();
        let (grants, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { client, log, kinds, ttl, grants, stop });
        let mut set = JoinSet::new();
        for task in 0..tasks {
            let shared = shared.clone();
            set.spawn(async move { shared.work(task).await });
        }
        while !ended.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(20)).await;
        }
        shared.stop.store(true, Ordering::Relaxed);
        while let Some(task) = set.join_next().await {
            if let Err(error) = task {
                shared.log.surprise(&format!("a task ended badly: {error}"));
            }
        }
        shared.client.clone().close().await;
    });
    say("done");
    ExitCode::SUCCESS
}

/// A server that is down at this moment is a fault like any other.
async fn connect(url: &str, log: &Log, ended: &AtomicBool) -> Option<Client> {
    while !ended.load(Ordering::Relaxed) {
        match Client::connect(url).await {
            Ok(client) => return Some(client),
            Err(error) => {
                match error {
                    Error::Engine { .. } => log.failed(&format!("cannot connect: {error}")),
                    _ => log.surprise(&format!("cannot connect: {error}")),
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    None
}

fn input_ended() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let mark = ended.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.is_err() {
                break;
            }
        }
        mark.store(true, Ordering::Relaxed);
    });
    ended
}

impl Shared {
    async fn work(&self, task: u64) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.cycle(task).await {
                Ok(()) => {}
                // It was not free, neither now nor within the wait.
                Err(Error::Timeout { .. }) => {}
                Err(error @ Error::Engine { .. }) => {
                    self.log.failed(&error.to_string());
                    sleep(Duration::from_millis(fastrand::u64(1..50))).await;
                }
                Err(error) => {
                    self.log.surprise(&error.to_string());
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn cycle(&self, task: u64) -> Result<()> {
        let kind = self.kinds[fastrand::usize(..self.kinds.len())];
        let owner = (fastrand::u8(..4) == 0 && kind == Kind::Mutex).then(Owner::new);
        let called = now();
        let Some(guard) = self.ask(kind, owner.as_ref()).await? else { return Ok(()) };
        let n = self.grants.fetch_add(1, Ordering::Relaxed);
        // Without an owner, every grant has another identity.
        let name = format!("{}.{task}.{n}", std::process::id());
        self.log.granted(n, &guard, &name, called, self.ttl);
        if let Some(owner) = &owner {
            let called = now();
            let again = self.lock(kind, Some(owner)).acquire_within(self.ttl).await?;
            let n = self.grants.fetch_add(1, Ordering::Relaxed);
            self.log.granted(n, &again, &name, called, self.ttl);
            self.hold(n, again).await?;
        }
        self.hold(n, guard).await
    }

    /// Acquires in one of the ways that callers use, including dropping the future half way.
    async fn ask(&self, kind: Kind, owner: Option<&Owner>) -> Result<Option<Guard>> {
        let lock = self.lock(kind, owner);
        let patience = Duration::from_millis(fastrand::u64(5..4000));
        match fastrand::u8(..8) {
            0 => lock.try_acquire().await,
            1 => timeout(patience / 10, lock.acquire()).await.map_or(Ok(None), |got| got.map(Some)),
            _ => lock.acquire_within(patience).await.map(Some),
        }
    }

    fn lock(&self, kind: Kind, owner: Option<&Owner>) -> Lock {
        let lock = match kind {
            Kind::Mutex => self.client.mutex(kind.name()),
            Kind::Fair => self.client.mutex(kind.name()).fair(),
            Kind::ReadWrite if fastrand::u8(..3) == 0 => self.client.write(kind.name()),
            Kind::ReadWrite => self.client.read(kind.name()),
            Kind::Permits => {
                self.client.semaphore(kind.name(), Kind::LIMIT).permits(fastrand::u32(1..=2))
            }
        };
        let lock = lock.ttl(self.ttl);
        owner.map_or(lock.clone(), |owner| lock.owner(owner))
    }

    async fn hold(&self, n: usize, guard: Guard) -> Result<()> {
        // Usually short; one in 400 may need a renewal.
        let stay = match fastrand::u16(..400) {
            0 => self.ttl.mul_f64(1.5 * fastrand::f64()),
            _ => Duration::from_millis(fastrand::u64(..3)),
        };
        let end = now() + stay;
        loop {
            // Read before the check: a process that is stopped in between claims too little, never
            // too much.
            let at = now();
            if let Err(error) = guard.check() {
                self.log.lost(n, &error.to_string());
                break;
            }
            self.log.vouched(n, at);
            let Some(left) = end.checked_sub(at).filter(|left| !left.is_zero()) else { break };
            tokio::select! {
                () = sleep(left.min(VOUCH)) => {}
                reason = guard.lost() => {
                    self.log.lost(n, &reason.to_string());
                    break;
                }
            }
        }
        if fastrand::u8(..5) > 0 {
            self.log.released(n, guard.release().await?);
        }
        Ok(())
    }
}
