//! What a process of the storm does until its input ends.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lockkeeper::endpoint::Endpoint;
use lockkeeper::{Client, Error, Guard, Lock, Loss, Multi, MultiGuard, Owner, Result, Term};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::Kind;
use super::brief::Brief;
use super::log::{Log, now};
use super::resource::{Read, Remote};
use crate::bugs::Buggy;
use crate::history::Object;
use crate::holder::say;

/// How often a holder that keeps the lock for longer records that it still has it.
const VOUCH: Duration = Duration::from_millis(20);

/// What a task may still take at the end of the storm. One that waits for longer than it asked to is not
/// cut short: it must be seen.
const REST: Duration = Duration::from_millis(300);

/// How long a task does other things between two long sections, on average.
const BETWEEN_LONG: Duration = Duration::from_secs(45);

/// Of this many tasks, one always uses the first key.
const FIGHTERS: usize = 4;

/// The threads of its executor.
const THREADS: usize = 2;

struct Shared {
    client: Client,
    resource: Remote,
    log: Log,
    brief: Brief,
    grants: AtomicUsize,
    /// Whether the storm is over.
    ended: watch::Receiver<bool>,
    /// Drops every acquire in progress.
    dropped: Arc<Notify>,
}

/// Runs a process of the storm.
///
/// Lines in: `block MS` blocks all threads of the executor, `drop` drops the acquires in progress.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let Some(brief) = Brief::parse(arguments) else {
        say(format_args!("failed a process of the storm cannot use {} arguments", arguments.len()));
        return ExitCode::FAILURE;
    };
    let log = Log::create(&brief.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .expect("a runtime can be started");
    runtime.block_on(async {
        let (end, mut ended) = watch::channel(false);
        let dropped = Arc::new(Notify::new());
        obey(end, dropped.clone());
        let Some(client) = connect(&brief, &log, &ended).await else { return };
        let resource = match Remote::connect(&brief.resource).await {
            Ok(resource) => resource,
            Err(error) => return log.surprise(&format!("there is no resource: {error}")),
        };
        let (grants, tasks) = (AtomicUsize::new(0), brief.tasks);
        let shared = Shared { client, resource, log, brief, grants, ended: ended.clone(), dropped };
        let shared = Arc::new(shared);
        let mut set = JoinSet::new();
        for n in 0..tasks {
            let shared = shared.clone();
            set.spawn(async move { shared.task(n).await });
        }
        // Fails if there is nobody to say so, which is the end as well.
        let _ = ended.wait_for(|ended| *ended).await;
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
async fn connect(brief: &Brief, log: &Log, ended: &watch::Receiver<bool>) -> Option<Client> {
    while !*ended.borrow() {
        let client = async {
            let Some(bug) = brief.bug else { return Client::connect(&brief.url).await };
            let engine = lockkeeper::engines::open(Endpoint::parse(&brief.url)?).await?;
            Ok(Client::new(Buggy::new(engine, bug)))
        };
        match client.await {
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

/// Carries out the lines of its input, until that ends.
fn obey(ended: watch::Sender<bool>, dropped: Arc<Notify>) {
    let runtime = Handle::current();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
            let length = line.strip_prefix("block ").and_then(|length| length.parse().ok());
            match length.map(Duration::from_millis) {
                Some(length) => {
                    for _ in 0..THREADS {
                        runtime.spawn(async move { std::thread::sleep(length) });
                    }
                }
                None => dropped.notify_waiters(),
            }
        }
        ended.send_replace(true);
    });
}

/// What a task holds.
enum Held {
    Lock(Guard),
    Multi(MultiGuard),
    Term(Term),
}

impl Held {
    fn guards(&self) -> &[Guard] {
        match self {
            Held::Lock(guard) => std::slice::from_ref(guard),
            Held::Multi(guards) => guards.guards(),
            Held::Term(term) => std::slice::from_ref(term.guard()),
        }
    }

    fn check(&self) -> Result<()> {
        self.guards().iter().try_for_each(Guard::check)
    }

    async fn lost(&self) -> Loss {
        match self {
            Held::Lock(guard) => guard.lost().await,
            Held::Multi(guards) => guards.lost().await.1,
            Held::Term(term) => term.lost().await,
        }
    }

    async fn release(self) -> Result<lockkeeper::Release> {
        match self {
            Held::Lock(guard) => guard.release().await,
            Held::Multi(guards) => guards.release().await,
            Held::Term(term) => term.step_down().await,
        }
    }
}

impl Shared {
    /// Returns when the storm is over, unless a wait until this moment is over too by then, or almost.
    async fn cut_short(&self, until: Instant) {
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
        if until < Instant::now() + REST {
            std::future::pending::<()>().await;
        }
    }

    async fn task(&self, n: usize) {
        let random = Rng::with_seed(self.brief.seed ^ ((n as u64) << 32));
        let mut task = Task { shared: self, n, random, stayed: Instant::now() };
        while !*self.ended.borrow() {
            match task.cycle().await {
                Ok(()) => {}
                // It was not free, neither now nor within the wait.
                Err(Error::Timeout { .. }) => {}
                Err(error @ Error::Engine { .. }) => {
                    self.log.failed(&error.to_string());
                    sleep(Duration::from_millis(task.random.u64(1..50))).await;
                }
                Err(error) => {
                    self.log.surprise(&error.to_string());
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

struct Task<'a> {
    shared: &'a Shared,
    n: usize,
    random: Rng,
    /// When its last section began.
    stayed: Instant,
}

impl Task<'_> {
    async fn cycle(&mut self) -> Result<()> {
        let shared = self.shared;
        let kind = shared.brief.kinds[self.random.usize(..shared.brief.kinds.len())];
        let owner = (kind == Kind::Reentrant).then(Owner::new);
        let keys = self.keys(kind);
        let called = now();
        let asked = self.ask(kind, &keys, owner.as_ref()).await;
        if kind == Kind::Fair && !matches!(asked, Ok(Some(_))) {
            shared.log.gave_up(&keys[0]);
        }
        let Some(held) = asked? else { return Ok(()) };
        // Without an owner, every grant has another identity.
        let name =
            format!("{}.{}.{}", std::process::id(), self.n, shared.grants.load(Ordering::Relaxed));
        let numbers = self.granted(&held, &name, called);
        if let Some(owner) = &owner {
            let called = now();
            let key = held.guards()[0].key().to_string();
            let lock = shared.client.mutex(key).ttl(shared.brief.ttl).owner(owner);
            let again = Held::Lock(lock.acquire_within(shared.brief.ttl).await?);
            let numbers = self.granted(&again, &name, called);
            self.stay(&numbers, &again).await;
            self.leave(&numbers, again).await?;
        }
        self.work(&numbers, &held, &name).await;
        self.leave(&numbers, held).await
    }

    /// Two keys of this kind, or one if there is only one. Some tasks fight over the first key
    /// together with those that happen to choose it: however many keys there are, one is contended.
    fn keys(&mut self, kind: Kind) -> Vec<String> {
        let brief = &self.shared.brief;
        let count = kind.count(brief.keys);
        let first = if self.n % FIGHTERS == 0 { 0 } else { self.random.usize(..count) };
        let second = (first + self.random.usize(..count.max(2) - 1) + 1) % count;
        let mut keys = vec![first, second];
        if kind == Kind::Multi {
            self.random.shuffle(&mut keys);
        }
        keys.into_iter().map(|n| kind.key(&brief.prefix, n)).collect()
    }

    /// Records grants, and returns their numbers in the log.
    fn granted(&self, held: &Held, name: &str, called: Duration) -> Vec<usize> {
        let record = |guard: &Guard| {
            let n = self.shared.grants.fetch_add(1, Ordering::Relaxed);
            self.shared.log.granted(n, guard, name, called, self.shared.brief.ttl);
            n
        };
        held.guards().iter().map(record).collect()
    }

    /// Acquires in one of the ways that callers use, including dropping the future half way.
    async fn ask(
        &mut self,
        kind: Kind,
        keys: &[String],
        owner: Option<&Owner>,
    ) -> Result<Option<Held>> {
        let brief = &self.shared.brief;
        // One that waits for a lock that is held for long should not be all that a task does.
        let longest = if self.random.u8(..8) == 0 { 4000 } else { 200 };
        let patience = Duration::from_millis(self.random.u64(5..longest));
        let until = Instant::now() + patience;
        let way = self.random.u8(..8);
        let client = &self.shared.client;
        let acquire = async {
            Ok(Some(match kind {
                Kind::Multi => {
                    let locks = keys[..2].iter().map(|key| client.mutex(key).ttl(brief.ttl));
                    Held::Multi(Multi::new(locks).acquire_within(patience).await?)
                }
                Kind::Election => {
                    let election = client.election(&keys[0]).ttl(brief.ttl);
                    match timeout(patience, election.campaign()).await {
                        Ok(term) => Held::Term(term?),
                        Err(_) => return Ok(None),
                    }
                }
                _ => {
                    let lock = self.lock(kind, &keys[0], owner);
                    match way {
                        0 => return Ok(lock.try_acquire().await?.map(Held::Lock)),
                        1 => match timeout(patience / 10, lock.acquire()).await {
                            Ok(guard) => Held::Lock(guard?),
                            Err(_) => return Ok(None),
                        },
                        _ => Held::Lock(lock.acquire_within(patience).await?),
                    }
                }
            }))
        };
        tokio::select! {
            held = acquire => held,
            () = self.shared.dropped.notified() => Ok(None),
            () = self.shared.cut_short(until) => Ok(None),
        }
    }

    fn lock(&self, kind: Kind, key: &str, owner: Option<&Owner>) -> Lock {
        let client = &self.shared.client;
        // The random source of the task is in use by the caller.
        let lock = match kind {
            Kind::Fair => client.mutex(key).fair(),
            Kind::ReadWrite if fastrand::u8(..3) == 0 => client.write(key),
            Kind::ReadWrite => client.read(key),
            Kind::Permits => client.semaphore(key, Kind::LIMIT).permits(fastrand::u32(1..=2)),
            _ => client.mutex(key),
        };
        let lock = lock.ttl(self.shared.brief.ttl);
        owner.map_or(lock.clone(), |owner| lock.owner(owner))
    }

    /// Reads what the locks protect, stays, and writes. Some check their lock before they write,
    /// some leave that to the resource.
    async fn work(&mut self, numbers: &[usize], held: &Held, name: &str) {
        let is_careful = self.random.bool();
        let mut saw: Vec<(usize, Object, u64, Read)> = Vec::new();
        for (n, guard) in numbers.iter().zip(held.guards()) {
            let shared = guard.mode() == lockkeeper::Mode::Read;
            let object = (guard.key().to_string(), guard.slots().first().copied().unwrap_or(0));
            let fence = guard.fence().get();
            match self.shared.resource.read(&object, fence, name, shared).await {
                Ok(read) => {
                    if read.value.is_none() {
                        self.shared.log.refused(*n);
                    }
                    if !shared {
                        saw.push((*n, object, fence, read));
                    }
                }
                Err(error) => self.shared.log.surprise(&error.to_string()),
            }
        }
        self.stay(numbers, held).await;
        if is_careful && held.check().is_err() {
            return;
        }
        for (n, object, fence, read) in saw {
            match self.shared.resource.write(&object, fence, name, read).await {
                Ok(true) => {}
                Ok(false) => self.shared.log.refused(n),
                Err(error) => self.shared.log.surprise(&error.to_string()),
            }
        }
    }

    /// Keeps what it holds for a while, or until it is lost.
    async fn stay(&mut self, numbers: &[usize], held: &Held) {
        let log = &self.shared.log;
        // Usually short, sometimes long enough for others to be seen inside, and now and then longer
        // than a lease: as often in a slow store as in a fast one.
        let ttl = self.shared.brief.ttl;
        let worked = std::mem::replace(&mut self.stayed, Instant::now()).elapsed();
        let length = match self.random.u16(..512) {
            _ if self.random.f64() < worked.div_duration_f64(BETWEEN_LONG) => {
                ttl.mul_f64(1.5 * self.random.f64())
            }
            ..32 => Duration::from_millis(self.random.u64(5..50)),
            _ => Duration::from_millis(self.random.u64(..3)),
        };
        let end = now() + length;
        loop {
            // Read before the check: a process that is stopped in between claims too little, never
            // too much.
            let at = now();
            if let Err(error) = held.check() {
                numbers.iter().for_each(|n| log.lost(*n, &error.to_string()));
                return;
            }
            numbers.iter().for_each(|n| log.vouched(*n, at));
            let left = end.checked_sub(at).filter(|left| !left.is_zero());
            let Some(left) = left.filter(|_| !*self.shared.ended.borrow()) else { return };
            tokio::select! {
                () = sleep(left.min(VOUCH)) => {}
                reason = held.lost() => {
                    // Of several locks, the others may still be held.
                    let (Loss::Expired, [n]) = (&reason, numbers) else {
                        numbers.iter().for_each(|n| log.lost(*n, &reason.to_string()));
                        return;
                    };
                    log.expired(*n);
                    if self.random.bool() {
                        // Shows when the lock passes on by itself.
                        sleep(ttl).await;
                    }
                    return;
                }
            }
        }
    }

    async fn leave(&mut self, numbers: &[usize], held: Held) -> Result<()> {
        numbers.iter().for_each(|n| self.shared.log.releasing(*n));
        if self.random.u8(..5) > 0 {
            let released = held.release().await?;
            numbers.iter().for_each(|n| self.shared.log.released(*n, released));
        }
        Ok(())
    }
}
