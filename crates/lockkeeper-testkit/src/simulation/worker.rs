//! A worker that acquires locks and uses what they protect.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::engine::Mode;
use lockkeeper::{Backoff, Client, Error, Guard, Lock, Loss, Multi, Owner, Result};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::store::Store;
use crate::history::{Mark, Recorder, Resource};
use crate::poll::poll_times;

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) name: String,
    pub(super) owner: Owner,
    pub(super) clients: Vec<Client>,
    /// The client that it usually uses.
    pub(super) home: usize,
    pub(super) permits: u32,
    pub(super) store: Store,
    pub(super) recorder: Arc<Recorder>,
    pub(super) resource: Arc<Resource>,
    pub(super) random: fastrand::Rng,
}

/// What a worker requests.
struct Wish {
    lock: Lock,
    ttl: Duration,
    /// Its name in the record.
    owner: String,
    reentrant: bool,
}

impl Worker {
    /// Works for a while. Returns what it cannot explain.
    pub(super) async fn work(mut self) -> Vec<String> {
        let mut surprises = Vec::new();
        for n in 0..self.random.usize(2..8) {
            sleep(self.some(400)).await;
            let outcome = match self.random.u32(0..100) {
                0..10 => self.take_two(n).await,
                10..25 => self.take_in_a_crowd(n).await,
                25..40 => self.take_again_and_again().await,
                _ => self.take_one(n).await,
            };
            match outcome {
                Ok(()) | Err(Error::Timeout { .. } | Error::Engine { .. }) => {}
                Err(error) => surprises.push(format!("{}: {error}", self.name)),
            }
        }
        surprises
    }

    async fn take_one(&mut self, n: usize) -> Result<()> {
        let wish = self.wish(n);
        let called = self.recorder.now();
        let Some(guard) = self.acquire(wish.lock.clone()).await? else { return Ok(()) };
        let mark = self.mark(&guard, &wish, called);
        self.hold(guard, mark, &wish).await;
        Ok(())
    }

    async fn take_two(&mut self, n: usize) -> Result<()> {
        let ttl = Duration::from_millis(self.random.u64(500..5_000));
        let client = &self.clients[self.home];
        let multi = Multi::new(["m1", "m0"].map(|key| client.mutex(key).ttl(ttl)));
        let called = self.recorder.now();
        let guards = multi.acquire_within(Duration::from_secs(3)).await?;
        let owner = format!("{}#{n}", self.name);
        let marks: Vec<_> = guards
            .guards()
            .iter()
            .map(|guard| {
                let admitted = self.store.admitted(guard);
                let mark = self.recorder.granted(guard, &owner, ttl, called, admitted);
                listen(guard, &mark);
                mark
            })
            .collect();
        for guard in guards.guards() {
            self.access(guard, &marks[0], &owner, true, 150).await;
        }
        marks.iter().for_each(Mark::releasing);
        guards.release().await?;
        Ok(())
    }

    /// Several tasks of one client hold the same lock, each for a short time: they hand it over.
    async fn take_in_a_crowd(&mut self, n: usize) -> Result<()> {
        let ttl = Duration::from_millis(if self.chance(20) { 30 } else { 2_000 });
        let (mut crowd, size) = (JoinSet::new(), self.random.usize(3..8));
        for member in 0..size {
            let mut member = Worker {
                name: format!("{}.{n}.{member}", self.name),
                owner: self.owner.clone(),
                clients: self.clients.clone(),
                home: self.home,
                permits: self.permits,
                store: self.store.clone(),
                recorder: self.recorder.clone(),
                resource: self.resource.clone(),
                random: self.random.fork(),
            };
            crowd.spawn(async move { member.take_briefly(ttl).await });
        }
        let mut outcome = Ok(());
        while let Some(member) = crowd.join_next().await {
            outcome = outcome.and(member.expect("a member of a crowd does not panic"));
        }
        outcome
    }

    /// Takes the same lock several times, and keeps it in between.
    async fn take_again_and_again(&mut self) -> Result<()> {
        let ttl = Duration::from_millis(if self.chance(20) { 300 } else { 5_000 });
        // Far longer than anybody can wait, or short.
        let keep = if self.chance(50) { Duration::from_secs(3_600) } else { self.some(1_000) };
        let lock = self.clients[self.home].mutex("m0").ttl(ttl);
        let lock = lock.keep(keep.max(Duration::from_millis(1)));
        for n in 0..self.random.usize(2..8) {
            let owner = format!("{}.{n}", self.name);
            let wish = Wish { lock: lock.clone(), ttl, owner, reentrant: false };
            let called = self.recorder.now();
            let Some(guard) = self.acquire(wish.lock.clone()).await? else { continue };
            let mark = self.mark(&guard, &wish, called);
            listen(&guard, &mark);
            self.access(&guard, &mark, &wish.owner, true, 20).await;
            mark.releasing();
            match self.random.bool() {
                true => drop(guard),
                false => _ = guard.release().await,
            }
            mark.released();
            sleep(self.some(200)).await;
        }
        Ok(())
    }

    async fn take_briefly(&mut self, ttl: Duration) -> Result<()> {
        let lock = self.clients[self.home].mutex("m0").ttl(ttl);
        let wish = Wish { lock, ttl, owner: self.name.clone(), reentrant: false };
        for _ in 0..2 {
            let called = self.recorder.now();
            let Some(guard) = self.acquire(wish.lock.clone()).await? else { continue };
            let mark = self.mark(&guard, &wish, called);
            listen(&guard, &mark);
            self.access(&guard, &mark, &wish.owner, true, 3).await;
            mark.releasing();
            match self.random.bool() {
                true => drop(guard),
                false => _ = guard.release().await,
            }
            mark.released();
        }
        Ok(())
    }

    fn wish(&mut self, n: usize) -> Wish {
        let client = &self.clients[self.home];
        let mut lock = match self.random.u32(0..10) {
            0..=2 => client.mutex("m0"),
            3 | 4 => client.mutex("m1"),
            5 => client.write("rw"),
            6 | 7 => client.read("rw"),
            _ => client.semaphore("sem", self.permits).permits(self.random.u32(1..=self.permits)),
        };
        let ttl = Duration::from_millis(match self.random.u32(0..4) {
            0 => self.random.u64(50..300),
            1 | 2 => self.random.u64(300..3_000),
            _ => self.random.u64(3_000..30_000),
        });
        lock = if self.chance(30) { lock.lease(ttl) } else { lock.ttl(ttl) };
        if self.chance(30) {
            lock = lock.margin(Duration::ZERO);
        }
        // A spinning waiter is in no queue, so it cannot be fair too.
        match (self.chance(10), self.chance(10)) {
            (true, _) => lock = lock.spin(Backoff::default()),
            (_, true) => lock = lock.fair(),
            _ => {}
        }
        let reentrant = self.chance(30);
        if reentrant {
            return Wish {
                lock: lock.owner(&self.owner),
                ttl,
                owner: self.name.clone(),
                reentrant,
            };
        }
        Wish { lock, ttl, owner: format!("{}#{n}", self.name), reentrant }
    }

    async fn acquire(&mut self, lock: Lock) -> Result<Option<Guard>> {
        let limit = self.some(2_000);
        let polls = self.random.usize(1..12);
        match self.random.u32(0..10) {
            0 | 1 => lock.try_acquire().await,
            2..=4 => lock.acquire_within(limit).await.map(Some),
            5 | 6 => poll_times(lock.acquire(), polls).await.transpose(),
            7 => poll_times(lock.try_acquire(), polls).await.unwrap_or(Ok(None)),
            _ => lock.acquire().await.map(Some),
        }
    }

    fn mark(&self, guard: &Guard, wish: &Wish, called: Duration) -> Mark {
        let admitted = self.store.admitted(guard);
        self.recorder.granted(guard, &wish.owner, wish.ttl, called, admitted)
    }

    async fn hold(&mut self, guard: Guard, mark: Mark, wish: &Wish) {
        let careful = self.chance(50);
        if self.chance(50) {
            listen(&guard, &mark);
            self.use_it(&guard, &mark, wish, careful).await;
        } else {
            tokio::select! {
                biased;
                () = probe(&guard, &mark) => {}
                () = self.use_it(&guard, &mark, wish, careful) => {}
            }
        }
        if self.chance(30) {
            // Stays until it is signalled, or for a random time.
            let _ = tokio::time::timeout(self.some(4_000), guard.lost()).await;
        }
        mark.releasing();
        match self.random.u32(0..4) {
            0 => drop(guard),
            1 => _ = poll_times(guard.release(), self.random.usize(1..4)).await,
            _ => _ = guard.release().await,
        }
        mark.released();
    }

    async fn use_it(&mut self, guard: &Guard, mark: &Mark, wish: &Wish, careful: bool) {
        for _ in 0..self.random.usize(1..4) {
            if !self.access(guard, mark, &wish.owner, careful, 150).await {
                return;
            }
            if wish.reentrant && self.chance(30) {
                self.enter_again(wish, guard.mode()).await;
            }
        }
    }

    /// Reads, pauses, and writes. False if the lock or the resource refused.
    async fn access(
        &mut self,
        guard: &Guard,
        mark: &Mark,
        owner: &str,
        careful: bool,
        pause: u64,
    ) -> bool {
        let fence = guard.fence().get();
        let shared = guard.mode() == Mode::Read;
        let object = (guard.key().to_string(), guard.slots().first().copied().unwrap_or(0));
        if careful && guard.check().is_err() {
            return false;
        }
        let Some(saw) = self.resource.read(&object, fence, owner, shared) else { return false };
        mark.used();
        // Sometimes far longer than any lease: as if the process had been stopped meanwhile.
        let longest = if self.chance(20) { 40 * pause } else { pause };
        sleep(self.some(longest)).await;
        if shared || (careful && guard.check().is_err()) {
            return shared;
        }
        mark.used();
        self.resource.write(&object, fence, owner, saw)
    }

    /// Re-enters a lock that its owner holds, through another client too.
    async fn enter_again(&mut self, outer: &Wish, mode: Mode) {
        if matches!(mode, Mode::Permits { .. }) {
            return;
        }
        let home =
            if self.chance(70) { self.home } else { self.random.usize(..self.clients.len()) };
        let client = &self.clients[home];
        let key = match mode {
            Mode::Mutex => {
                if self.random.bool() {
                    "m0"
                } else {
                    "m1"
                }
            }
            _ => "rw",
        };
        let lock = match mode {
            Mode::Mutex => client.mutex(key),
            Mode::Write if self.random.bool() => client.write(key),
            _ => client.read(key),
        };
        let wish = Wish {
            lock: lock.ttl(outer.ttl).owner(&self.owner),
            ttl: outer.ttl,
            owner: self.name.clone(),
            reentrant: true,
        };
        let called = self.recorder.now();
        let limit = self.some(200);
        let Ok(guard) = wish.lock.clone().acquire_within(limit).await else { return };
        let mark = self.mark(&guard, &wish, called);
        listen(&guard, &mark);
        sleep(self.some(50)).await;
        mark.releasing();
        drop(guard);
    }

    fn some(&mut self, longest: u64) -> Duration {
        Duration::from_micros(self.random.u64(0..longest * 1_000))
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(0..100) < percent
    }
}

/// Records the loss of a lock when it is signalled.
fn listen(guard: &Guard, mark: &Mark) {
    let (lost, mark) = (guard.lost(), mark.clone());
    tokio::spawn(async move {
        if lost.await != Loss::Released {
            mark.lost();
        }
    });
}

/// Checks a lock repeatedly, without listening to any signal.
async fn probe(guard: &Guard, mark: &Mark) {
    while guard.check().is_ok() {
        mark.vouched();
        sleep(Duration::from_millis(5)).await;
    }
    mark.lost();
    std::future::pending().await
}
