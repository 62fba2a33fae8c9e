//! What a lock costs compared with its floor: one node created and deleted through the same client;
//! and how long it takes from one session to the next, compared with one node created, and with the
//! lock recipe of the client library.
//!
//! `cargo run --release --features zookeeper --example zookeeper_cost -- 127.0.0.1:2181`

use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::hand_offs::{HandOffs, median};
use tokio::task::JoinSet;
use zookeeper_client as zk;

/// How long each side is measured in each round. They take turns, so that both see the same machine.
const TURN: Duration = Duration::from_millis(500);

const ROUNDS: usize = 12;

const TASKS: usize = 64;

/// How long sessions contend for one key, each time.
const CONTENTION: Duration = Duration::from_secs(2);

const NODE: zk::CreateOptions<'static> =
    zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts = std::env::args().nth(1).ok_or("name the servers: host:port,host:port")?;
    let raw = zk::Client::connect(&hosts).await?;
    let client = Client::connect(format!("zookeeper://{hosts}/lockkeeper-cost")).await?;
    // No containers, which the servers would remove while they are empty.
    let directory = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    for task in 0..TASKS {
        raw.mkdir(&format!("/lockkeeper-cost-floor/{task}"), &directory).await?;
        client.mutex(task.to_string()).acquire().await?.release().await?;
    }
    for tasks in [1, TASKS] {
        let (mut floor, mut locks) = (0, 0);
        for _ in 0..ROUNDS {
            floor += nodes(&raw, tasks).await?;
            locks += cycles(&client, tasks).await?;
        }
        println!(
            "{tasks} tasks: floor {floor}, locks {locks} in {:?} each: time {:.2}x, throughput {:.2}x",
            TURN * ROUNDS as u32,
            floor as f64 / locks as f64,
            locks as f64 / floor as f64
        );
    }
    for contenders in [8, 64] {
        let (mut floor, mut ours, mut recipe) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 {
            for _ in 0..100 {
                let started = Instant::now();
                let path = "/lockkeeper-cost-floor/0/node-";
                let (_, sequence) = raw.create(path, b"", &NODE).await?;
                floor.push(started.elapsed());
                raw.delete(&format!("{path}{sequence}"), None).await?;
            }
            ours.extend(contend(&hosts, contenders, false).await?);
            recipe.extend(contend(&hosts, contenders, true).await?);
        }
        println!(
            "{contenders} sessions, one key: {:.0} hand-offs per second, {:.2}x the client library's recipe",
            ours.len() as f64 / (2.0 * CONTENTION.as_secs_f64()),
            ours.len() as f64 / recipe.len() as f64,
        );
        let [floor, ours, recipe] = [floor, ours, recipe].map(|all| median(all).as_secs_f64());
        println!(
            "  a hand-off takes {:.2} ms, {:.2}x a create ({:.2} ms); the recipe {:.2} ms",
            ours * 1e3,
            ours / floor,
            floor * 1e3,
            recipe * 1e3,
        );
    }
    for task in 0..TASKS {
        raw.delete(&format!("/lockkeeper-cost-floor/{task}"), None).await?;
    }
    raw.delete("/lockkeeper-cost-floor", None).await?;
    client.close().await;
    Ok(())
}

/// How many nodes are created and deleted in one turn.
async fn nodes(raw: &zk::Client, tasks: usize) -> Result<usize, zk::Error> {
    let (mut set, end) = (JoinSet::new(), Instant::now() + TURN);
    for task in 0..tasks {
        let raw = raw.clone();
        set.spawn(async move {
            let path = format!("/lockkeeper-cost-floor/{task}/node-");
            let mut done = 0;
            while Instant::now() < end {
                let (_, sequence) = raw.create(&path, b"", &NODE).await?;
                raw.delete(&format!("{path}{sequence}"), None).await?;
                done += 1;
            }
            Ok(done)
        });
    }
    set.join_all().await.into_iter().sum()
}

/// How many locks are acquired and released in one turn.
async fn cycles(client: &Client, tasks: usize) -> lockkeeper::Result<usize> {
    let (mut set, end) = (JoinSet::new(), Instant::now() + TURN);
    for task in 0..tasks {
        let client = client.clone();
        set.spawn(async move {
            let mut done = 0;
            while Instant::now() < end {
                client.mutex(task.to_string()).acquire().await?.release().await?;
                done += 1;
            }
            Ok(done)
        });
    }
    set.join_all().await.into_iter().sum()
}

/// Clients with a session each take turns with one lock. Returns how long each hand-off took.
async fn contend(
    hosts: &str,
    contenders: usize,
    recipe: bool,
) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let mut clients = Vec::new();
    for _ in 0..contenders {
        let ours = Client::connect(format!("zookeeper://{hosts}/lockkeeper-cost")).await?;
        clients.push((ours, zk::Client::connect(hosts).await?));
    }
    let hand_offs = HandOffs::during(CONTENTION);
    let mut set = JoinSet::new();
    for (n, (client, raw)) in clients.into_iter().enumerate() {
        let hand_offs = hand_offs.clone();
        set.spawn(async move {
            while !hand_offs.is_over() {
                if recipe {
                    let prefix = zk::LockPrefix::new_curator("/lockkeeper-cost-floor/1", "lock-")?;
                    let held = raw.lock(prefix, b"", zk::Acls::anyone_all()).await?;
                    hand_offs.pass(n);
                    drop(held);
                } else {
                    let guard = client.mutex("hot").acquire().await?;
                    hand_offs.pass(n);
                    guard.release().await?;
                }
            }
            client.close().await;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
    }
    while let Some(done) = set.join_next().await {
        done?.map_err(|error| error.to_string())?;
    }
    Ok(hand_offs.took())
}
