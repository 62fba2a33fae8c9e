//! Holds 100,000 leases in one process, and measures what keeping them alive costs.
//!
//! `cargo run --release -p lockkeeper --example many_leases [LOCKS [SECONDS]]`
//!
//! The store is in this process too, so its share is measured separately: first with an engine that
//! confirms renewals without checking (the client alone), then with `memory:` (client and store).

use std::time::{Duration, Instant};

use lockkeeper::clock::{Clock, Moment};
use lockkeeper::engine::{
    Break, Breaker, Claim, Engine, Entry, Guarantees, Lease, Query, Renewal, Request, Snapshot,
};
use lockkeeper::engines::memory::Memory;
use lockkeeper::{Client, Guard, Key, Mode, Result, Token};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let locks = arguments.next().unwrap_or(100_000);
    let seconds = arguments.next().unwrap_or(30);
    println!("{locks} locks with a lease of 30 s, each renewed every 10 s");

    // Nothing of the first two is freed before the end: reused memory would not show.
    let store = Memory::new();
    let before = resident();
    for n in 0..locks {
        fill(&store, n).await?;
    }
    let store_alone = (resident() - before) / locks;

    let client = Client::new(Blind { store: Memory::new(), blind: true });
    let before = resident();
    let guards = hold(&client, locks).await?;
    let both = (resident() - before) / locks;
    println!("memory per lock: store {store_alone} bytes, client {} bytes", both - store_alone);
    println!("client alone: renewals use {:.2} % of one core", renewing(&guards, seconds).await);

    let other = Client::new(Memory::new());
    let started = Instant::now();
    let more = hold(&other, locks).await?;
    let each = started.elapsed() / u32::try_from(locks).expect("not that many");
    drop(guards);
    client.close().await;
    println!("client and store: acquired in {each:?} each");
    println!("client and store: renewals use {:.2} % of one core", renewing(&more, seconds).await);
    let started = Instant::now();
    drop(more);
    other.close().await;
    println!("client and store: all released in {:?}", started.elapsed());
    drop(store);
    Ok(())
}

/// The share of one core that is used while locks are held and nothing else happens, in percent.
async fn renewing(guards: &[Guard], seconds: u64) -> f64 {
    let before = cpu();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let busy = cpu() - before;
    assert!(guards.iter().all(|guard| guard.check().is_ok()), "a lock was lost");
    busy.as_secs_f64() / seconds as f64 * 100.0
}

async fn hold(client: &Client, locks: u64) -> Result<Vec<Guard>> {
    let mut guards = Vec::with_capacity(usize::try_from(locks).expect("they fit into memory"));
    for n in 0..locks {
        guards.push(client.mutex(format!("lease/{n}")).acquire().await?);
    }
    Ok(guards)
}

/// Acquires a lock in the store, without a client.
async fn fill(store: &Memory, n: u64) -> Result<()> {
    let (key, ttl) = (Key::new(format!("lease/{n}"))?, Duration::from_secs(30));
    let request = Request::new(key, Token::fresh(), Mode::Mutex, ttl);
    store.claim(request).attempt(Clock::System.now()).await?;
    Ok(())
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: u64 = pages.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096
}

/// The processor time that this process has used.
fn cpu() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    Duration::from(time.expect("every process has this clock"))
}

/// A store that may confirm renewals without checking.
#[derive(Debug)]
struct Blind {
    store: Memory,
    blind: bool,
}

#[async_trait::async_trait]
impl Engine for Blind {
    fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.store.claim(request)
    }

    async fn renew(&self, leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>> {
        if self.blind {
            return Ok(vec![Renewal::Renewed; leases.len()]);
        }
        self.store.renew(leases, asked).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        self.store.inspect(query).await
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        self.store.break_lock(key, by).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        self.store.broken().await
    }
}
