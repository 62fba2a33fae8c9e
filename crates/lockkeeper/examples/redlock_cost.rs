//! What a majority costs: Redlock on five servers, compared with one server and with `rslock`, in
//! one run.
//!
//! ```sh
//! cargo run --release -p lockkeeper --features redis --example redlock_cost
//! ```
//!
//! It starts its own five servers. The variants are measured in turn, so that a busy machine
//! affects all alike; only the ratios mean anything. At the end, one server is stopped with its
//! connections open.

use std::future::Future;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use rslock::LockManager;

#[allow(unused_imports)]
#[path = "../tests/redlock/servers.rs"]
mod servers;

const ROUNDS: u32 = 20;
const CYCLES: u32 = 100;
const TTL: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    let servers = servers::Servers::start(5);
    let one = Client::connect(servers[0].url()).await.expect("the server is there");
    let five = Client::connect(servers.url()).await.expect("a majority is there");
    let again = five.clone();
    let manager = |count: usize| {
        LockManager::new(servers.iter().take(count).map(|server| server.url()).collect())
    };
    let (their_one, their_five) = (manager(1), manager(5));

    let ways: [(&str, Box<dyn AsyncWay>); 4] = [
        ("lockkeeper, one server", Box::new(Ours(one))),
        ("lockkeeper, five servers", Box::new(Ours(five))),
        ("rslock, one server", Box::new(Theirs(their_one))),
        ("rslock, five servers", Box::new(Theirs(their_five))),
    ];
    let mut times = [Duration::MAX; 4];
    for round in 0..ROUNDS {
        for ((_, way), best) in ways.iter().zip(&mut times) {
            let took = measure(&**way, CYCLES).await;
            // The first round connects.
            if round > 0 {
                *best = took.min(*best);
            }
        }
    }
    println!("acquire and release, one after the other, best of {ROUNDS} times {CYCLES}:");
    for ((name, _), time) in ways.iter().zip(&times) {
        let micros = (*time / CYCLES).as_micros();
        let ratio = time.as_secs_f64() / times[0].as_secs_f64();
        println!("  {name:40} {micros:6} µs  {ratio:.2} of lockkeeper on one server");
    }
    let ratio = times[1].as_secs_f64() / times[3].as_secs_f64();
    println!("  lockkeeper on five is {ratio:.2} of rslock on five");

    servers[4].pause();
    let mut slowest = Duration::ZERO;
    let started = Instant::now();
    for _ in 0..CYCLES {
        slowest = slowest.max(measure(&Ours(again.clone()), 1).await);
    }
    let (mean, healthy) = (started.elapsed() / CYCLES, times[1] / CYCLES);
    println!(
        "with one of five stopped: {mean:?} on average, {slowest:?} at most, {healthy:?} before"
    );
    servers[4].resume();
}

/// One way to acquire and release a lock.
trait AsyncWay {
    fn cycle(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>>;
}

struct Ours(Client);
struct Theirs(LockManager);

impl AsyncWay for Ours {
    fn cycle(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async {
            let guard = self.0.mutex("ours").ttl(TTL).acquire().await.expect("nobody has it");
            guard.release().await.expect("it was ours");
        })
    }
}

impl AsyncWay for Theirs {
    fn cycle(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async {
            let lock = self.0.lock(b"theirs".as_slice(), TTL).await.expect("nobody has it");
            self.0.unlock(&lock).await;
        })
    }
}

async fn measure(way: &dyn AsyncWay, cycles: u32) -> Duration {
    let started = Instant::now();
    for _ in 0..cycles {
        way.cycle().await;
    }
    started.elapsed()
}
