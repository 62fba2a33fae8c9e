//! How far etcd's locks are from the minimum that etcd itself can do, in one run.
//!
//! ```sh
//! cargo bench -p lockkeeper --features etcd --bench etcd_floor
//! ```
//!
//! It starts its own server. The floor is a put with a lease and a delete. Other measures are the
//! lock service inside the server, and the floor with a condition on each of its two steps, without
//! which there is no lock. They are measured in turn, so that a busy machine affects all alike;
//! only the ratios mean anything.
//!
//! Then clients with a connection each contend for one key: how long a hand-off takes compared with
//! one put with a lease, and how many there are compared with the lock service. Last, it counts the
//! requests of a hand-off in a short queue and in a long one.

use std::future::Future;
use std::time::{Duration, Instant};

use lockkeeper::clock::Clock;
use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::{Mode, Request};
use lockkeeper::{Client, Key, Token};
use lockkeeper_testkit::hand_offs::{HandOffs, median};
use lockkeeper_testkit::server::etcd::Servers;

// The engine's own transport, without the engine.
#[allow(dead_code)]
#[path = "../src/engines/etcd/client/mod.rs"]
mod etcd;

use etcd::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RequestOp,
    TxnRequest,
};

const ROUNDS: usize = 10;

/// How long clients contend for one key, each time.
const CONTENTION: Duration = Duration::from_secs(2);

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockResponse {}

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome {
    let servers = Servers::start(1);
    let address = servers[0].address().to_string();
    let raw = etcd::Client::new(&format!("http://{address}"), &etcd::Access::default())?;
    let lease = 1;
    raw.clone().lease_grant(lease, 60).await?;
    let client = Client::connect(format!("etcd://{address}?prefix=floor/")).await?;

    let put = move |key: &str| PutRequest { lease, ..PutRequest::new(key.into(), "") };
    let delete = |key: &str| DeleteRangeRequest { key: key.into() };
    let again = raw.clone();
    let floor = move |key: String| {
        let raw = again.clone();
        async move {
            let _: PutResponse = raw.call("/etcdserverpb.KV/Put", put(&key)).await?;
            let _: DeleteRangeResponse =
                raw.call("/etcdserverpb.KV/DeleteRange", delete(&key)).await?;
            Outcome::Ok(())
        }
    };
    let again = raw.clone();
    let service = move |key: String| {
        let raw = again.clone();
        async move {
            let request = LockRequest { name: key.into(), lease };
            let LockResponse { key } = raw.call("/v3lockpb.Lock/Lock", request).await?;
            let _: UnlockResponse =
                raw.call("/v3lockpb.Lock/Unlock", UnlockRequest { key }).await?;
            Outcome::Ok(())
        }
    };
    let again = raw.clone();
    let conditional = move |key: String| {
        let raw = again.clone();
        async move {
            let absent = Compare::created(key.clone().into(), 0);
            let put = raw
                .clone()
                .txn(TxnRequest::when([absent], vec![RequestOp::put(put(&key))]))
                .await?;
            let ours = put.header.map_or(0, |header| header.revision);
            let ours = Compare::created(key.clone().into(), ours);
            raw.txn(TxnRequest::when([ours], vec![RequestOp::delete(key.into())])).await?;
            Outcome::Ok(())
        }
    };
    let again = client.clone();
    let ours = move |key: String| {
        let client = again.clone();
        async move {
            client.mutex(key).acquire().await?.release().await?;
            Outcome::Ok(())
        }
    };

    for (tasks, cycles) in [(1, 100), (64, 10)] {
        let mut times = [Duration::ZERO; 4];
        for _ in 0..ROUNDS {
            times[0] += measure(tasks, cycles, "raw", floor.clone()).await?;
            times[1] += measure(tasks, cycles, "service", service.clone()).await?;
            times[2] += measure(tasks, cycles, "conditional", conditional.clone()).await?;
            times[3] += measure(tasks, cycles, "ours", ours.clone()).await?;
        }
        let all = (ROUNDS * tasks * cycles) as f64;
        let [floor, service, conditional, ours] = times.map(|time| time.as_secs_f64());
        println!("{tasks} at once, each with a key of its own, {all} cycles:");
        println!("  the floor           {:.0} cycles per second", all / floor);
        println!("  the lock service    {:.2} times the floor", service / floor);
        println!("  with conditions     {:.2} times the floor", conditional / floor);
        println!("  lockkeeper          {:.2} times the floor", ours / floor);
    }
    for contenders in [8, 64, 256] {
        let (mut puts, mut ours, mut service) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 {
            for _ in 0..100 {
                let started = Instant::now();
                let _: PutResponse = raw.call("/etcdserverpb.KV/Put", put("put")).await?;
                puts.push(started.elapsed());
            }
            ours.extend(contend(&address, contenders, false).await?);
            service.extend(contend(&address, contenders, true).await?);
        }
        println!(
            "{contenders} clients, one key: {:.0} hand-offs per second, {:.2} times the lock service",
            ours.len() as f64 / (2.0 * CONTENTION.as_secs_f64()),
            ours.len() as f64 / service.len() as f64,
        );
        let [put, hand_off, behind] = [puts, ours, service].map(|all| median(all).as_secs_f64());
        println!(
            "  a hand-off takes {:.1} ms, {:.1} times a put with a lease ({:.2} ms); the lock service {:.1} ms",
            hand_off * 1e3,
            hand_off / put,
            put * 1e3,
            behind * 1e3,
        );
    }
    for waiting in [5, 500] {
        let requests = hand_off(&servers, waiting).await?;
        println!("a hand-off with {waiting} waiting: {requests} requests");
    }
    client.close().await;
    raw.lease_revoke(lease).await?;
    Ok(())
}

/// Clients with a connection each take turns with one lock. Returns how long each hand-off took,
/// from the call of the release to the grant.
async fn contend(
    address: &str,
    contenders: usize,
    service: bool,
) -> Result<Vec<Duration>, Box<dyn std::error::Error + Send + Sync>> {
    let mut clients = Vec::new();
    for n in 0..contenders {
        let raw = etcd::Client::new(&format!("http://{address}"), &etcd::Access::default())?;
        let lease = 1_000 + n as i64;
        if service {
            raw.clone().lease_grant(lease, 60).await?;
        }
        clients.push((raw, lease, Client::connect(format!("etcd://{address}?prefix=hot/")).await?));
    }
    let hand_offs = HandOffs::during(CONTENTION);
    let mut running = tokio::task::JoinSet::new();
    for (n, (raw, lease, client)) in clients.into_iter().enumerate() {
        let hand_offs = hand_offs.clone();
        running.spawn(async move {
            while !hand_offs.is_over() {
                if service {
                    let request = LockRequest { name: b"service".to_vec(), lease };
                    let LockResponse { key } = raw.call("/v3lockpb.Lock/Lock", request).await?;
                    hand_offs.pass(n);
                    let _: UnlockResponse =
                        raw.call("/v3lockpb.Lock/Unlock", UnlockRequest { key }).await?;
                } else {
                    let guard = client.mutex("ours").acquire().await?;
                    hand_offs.pass(n);
                    guard.release().await?;
                }
            }
            if service {
                raw.lease_revoke(lease).await?;
            }
            client.close().await;
            Outcome::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(hand_offs.took())
}

/// How many requests the server gets between a release and the next grant, with a queue of this
/// length. Each waiter has its own claim; a client would make one waiter of them all.
async fn hand_off(
    servers: &Servers,
    waiting: usize,
) -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
    let endpoint = Endpoint::parse(&servers.url("?prefix=floor/"))?;
    let engine = lockkeeper::engines::open(endpoint).await?;
    let claim = || {
        let key = Key::new(format!("line-{waiting}")).expect("it is a name");
        // Longer than this takes: nothing polls.
        let ttl = Duration::from_secs(600);
        engine.claim(Request::new(key, Token::fresh(), Mode::Mutex, ttl))
    };
    let mut holder = claim();
    holder.attempt(Clock::System.now()).await?.ok_or("it is free")?;
    let mut line = Vec::new();
    for _ in 0..waiting {
        let mut claim = claim();
        if claim.attempt(Clock::System.now()).await?.is_some() {
            return Err("let in beside the holder".into());
        }
        line.push(claim);
    }
    let mut line = line.into_iter();
    let mut next = line.next().ok_or("nobody waits")?;
    // The others listen meanwhile, as they would.
    let others: Vec<_> = line
        .map(|mut claim| {
            tokio::spawn(async move {
                let woken = claim.wait().await;
                (claim, woken)
            })
        })
        .collect();
    let before = servers.requests();
    holder.release().await?;
    next.wait().await?;
    next.attempt(Clock::System.now()).await?.ok_or("it is the next one's turn")?;
    let requests = servers.requests() - before;
    if others.iter().any(|other| other.is_finished()) {
        return Err("somebody else was woken".into());
    }
    for other in others {
        other.abort();
    }
    Ok(requests)
}

/// The time that this many tasks take for this many cycles each.
async fn measure<F>(
    tasks: usize,
    cycles: usize,
    name: &str,
    cycle: impl Fn(String) -> F + Clone + Send + 'static,
) -> Result<Duration, Box<dyn std::error::Error + Send + Sync>>
where
    F: Future<Output = Outcome> + Send,
{
    let started = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for n in 0..tasks {
        let (cycle, key) = (cycle.clone(), format!("{name}-{n}"));
        running.spawn(async move {
            for _ in 0..cycles {
                cycle(key.clone()).await?;
            }
            Outcome::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(started.elapsed())
}
