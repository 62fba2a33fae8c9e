//! What a lock costs compared with its floor: one node created and deleted through the same client.
//!
//! `cargo run --release --features zookeeper --example zookeeper_cost -- 127.0.0.1:2181`

use std::time::{Duration, Instant};

use lockkeeper::Client;
use tokio::task::JoinSet;
use zookeeper_client as zk;

/// How long each side is measured in each round. They take turns, so that both see the same machine.
const TURN: Duration = Duration::from_millis(500);

const ROUNDS: usize = 12;

const TASKS: usize = 64;

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
