//! Figures for Redis only: two floors through the same client crate, and the server's command
//! counts.
//!
//! *naive* is `SET NX PX` and compare-and-delete, without a fence and without a wake-up; *same* is
//! the library's own two scripts, called without the library. Rounds of everything alternate, so
//! that a machine that is slow for a while affects all of them.

use std::time::Duration;

use lockkeeper::endpoint::Endpoint;
use lockkeeper::{Client, Guard};
use serde::Serialize;
use tokio::task::JoinSet;

use super::redis_floor::{Bare, Floor, counts, is_script, trouble};
use super::{Meter, Spread, hand_off};
use crate::bench::worker::{Crew, Work};
use crate::exit::Failure;
use crate::table::Table;

/// How often each figure is measured in turn.
const ROUNDS: u32 = 10;

/// How many tasks use their own keys.
const TASKS: usize = 64;

/// How many clients wait for one lock.
const WAITERS: [usize; 3] = [4, 64, 512];

/// How many clients the tasks that wait for a plain mutex are spread over.
const CLIENTS: usize = 4;

/// Microseconds for one task alone, cycles per second for many.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    ping: Spread,
    naive: Spread,
    same: Spread,
    released: Spread,
    dropped: Spread,
    dropped_many_keys: Spread,
    tasks_naive: f64,
    tasks_same: f64,
    tasks: f64,
    hand_off_two_processes: Spread,
    /// Commands that the server ran per hand-off, those inside scripts included.
    commands: Vec<Commands>,
}

#[derive(Debug, Serialize)]
struct Commands {
    waiters: usize,
    /// Tasks of four clients wait for a mutex.
    plain: f64,
    /// As many clients queue for a fair one.
    fair: f64,
}

/// Measures one server; `None` for any other topology or layout.
pub(super) async fn measure(
    endpoint: &Endpoint,
    client: &Client,
    time: Duration,
) -> Result<Option<Figures>, Failure> {
    let usual = endpoint.options().take("layout")?.is_none_or(|layout| layout == "hash");
    if !matches!(endpoint.scheme(), "redis" | "valkey") || !usual {
        return Ok(None);
    }
    let floor = Floor::connect(endpoint).await.map_err(trouble)?;
    let mut figures = alone(client, &floor, time / 2).await?;
    let url = endpoint.spell_out();
    [figures.tasks_naive, figures.tasks_same, figures.tasks] =
        together(url.clone(), endpoint.clone(), time / 4).await?;
    let two = Crew { contenders: 2, time: time / 4 };
    let holds = two.run(&Work::Lock { url: url.clone(), key: floor.key("hand-off") }).await?;
    figures.hand_off_two_processes = hand_off(&holds, two.time);
    room_for_connections()?;
    for waiters in WAITERS {
        let plain = commands_of_tasks(&url, &floor, waiters).await?;
        let fair = commands_of_queue(&url, &floor, waiters).await?;
        figures.commands.push(Commands { waiters, plain, fair });
    }
    Ok(Some(figures))
}

/// One cycle after the other.
async fn alone(client: &Client, floor: &Floor, time: Duration) -> Result<Figures, Failure> {
    let slice = time / (ROUNDS * 6);
    let (mut ping, mut naive, mut same) = (Meter::default(), Meter::default(), Meter::default());
    let (mut released, mut dropped) = (Meter::default(), Meter::default());
    let mut many = Meter::default();
    let bare = Bare::new(floor, "alone");
    let (key, mut n) = (floor.key("alone"), 0);
    let keys: Vec<_> = (0..1000).map(|n| floor.key(&n.to_string())).collect();
    for _ in 0..ROUNDS {
        ping.run(slice, async || floor.ask(&redis::cmd("PING")).await.map(drop)).await?;
        naive.run(slice, async || bare.naive(floor).await).await?;
        same.run(slice, async || bare.same(floor).await).await?;
        let awaited = async || {
            client.mutex(&key).acquire().await?.release().await?;
            Ok(())
        };
        released.run(slice, awaited).await?;
        let forgotten = async || {
            drop(client.mutex(&key).acquire().await?);
            Ok(())
        };
        dropped.run(slice, forgotten).await?;
        let elsewhere = async || {
            n = (n + 1) % keys.len();
            drop(client.mutex(&keys[n]).acquire().await?);
            Ok(())
        };
        many.run(slice, elsewhere).await?;
    }
    Ok(Figures {
        ping: ping.spread(),
        naive: naive.spread(),
        same: same.spread(),
        released: released.spread(),
        dropped: dropped.spread(),
        dropped_many_keys: many.spread(),
        tasks_naive: f64::NAN,
        tasks_same: f64::NAN,
        tasks: f64::NAN,
        hand_off_two_processes: Meter::default().spread(),
        commands: Vec::new(),
    })
}

/// Cycles per second of many tasks, each on its own key: naive, same, ours.
///
/// On a runtime with a thread per core, like that of a service with this many tasks.
async fn together(url: String, endpoint: Endpoint, time: Duration) -> Result<[f64; 3], Failure> {
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.map_err(|error| Failure::own("start", error))?.block_on(async {
            let client = Client::connect(&url).await?;
            let floor = Floor::connect(&endpoint).await.map_err(trouble)?;
            let measured = throughput(&client, &floor, time).await;
            client.close().await;
            measured
        })
    });
    measured.await.map_err(|error| Failure::own("measure", error))?
}

async fn throughput(client: &Client, floor: &Floor, time: Duration) -> Result<[f64; 3], Failure> {
    let slice = time / (ROUNDS * 3);
    let mut cycles = [0; 3];
    let mut spent = [Duration::ZERO; 3];
    for _ in 0..ROUNDS {
        for which in 0..3 {
            let started = std::time::Instant::now();
            let mut tasks = JoinSet::new();
            for n in 0..TASKS {
                let (client, floor) = (client.clone(), floor.clone());
                tasks.spawn(async move {
                    let (bare, key) =
                        (Bare::new(&floor, &n.to_string()), floor.key(&n.to_string()));
                    let mut done = 0;
                    while started.elapsed() < slice {
                        match which {
                            0 => bare.naive(&floor).await?,
                            1 => bare.same(&floor).await?,
                            _ => drop(client.mutex(&key).acquire().await?.release().await?),
                        }
                        done += 1;
                    }
                    Ok::<usize, Failure>(done)
                });
            }
            for done in tasks.join_all().await {
                cycles[which] += done?;
            }
            spent[which] += started.elapsed();
        }
    }
    Ok([0, 1, 2].map(|n| cycles[n] as f64 / spent[n].as_secs_f64()))
}

/// Commands per hand-off through the store while tasks of a few clients repeatedly acquire one mutex.
async fn commands_of_tasks(url: &str, floor: &Floor, waiters: usize) -> Result<f64, Failure> {
    const GRANTS: usize = 400;
    let key = floor.key(&format!("plain {waiters}"));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::connect(url).await?);
    }
    let (granted, mut grants) = tokio::sync::mpsc::channel(1);
    let mut tasks = JoinSet::new();
    for n in 0..waiters {
        let (client, key, granted) = (clients[n % CLIENTS].clone(), key.clone(), granted.clone());
        tasks.spawn(async move {
            // No task continues before the last grant was counted.
            while let Ok(guard) = client.mutex(&key).hand_over(false).acquire().await {
                if granted.send(()).await.is_err() {
                    return;
                }
                let _ = guard.release().await;
            }
        });
    }
    drop(granted);
    for _ in 0..2 * waiters {
        grants.recv().await;
    }
    let before = floor.commands(counts).await.map_err(trouble)?;
    for _ in 0..GRANTS {
        grants.recv().await;
    }
    let after = floor.commands(counts).await.map_err(trouble)?;
    tasks.shutdown().await;
    for client in clients {
        client.close().await;
    }
    Ok((after - before) as f64 / GRANTS as f64)
}

/// Commands per hand-off in a queue of this many clients.
async fn commands_of_queue(url: &str, floor: &Floor, waiters: usize) -> Result<f64, Failure> {
    let key = floor.key(&format!("fair {waiters}"));
    let mut clients = Vec::new();
    for _ in 0..=waiters {
        clients.push(Client::connect(url).await?);
    }
    let scripts = floor.commands(is_script).await.map_err(trouble)?;
    let mut holder: Guard = clients[waiters].mutex(&key).fair().acquire().await?;
    let mut waiting = JoinSet::new();
    for client in &clients[..waiters] {
        waiting.spawn(client.mutex(&key).fair().acquire());
    }
    // Each client enters the queue, and checks again once it is subscribed to releases.
    while floor.commands(is_script).await.map_err(trouble)? < scripts + 1 + 2 * waiters as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = floor.commands(counts).await.map_err(trouble)?;
    for _ in 0..waiters {
        holder.release().await?;
        holder = match waiting.join_next().await {
            Some(Ok(guard)) => guard?,
            _ => return Err(Failure::own("measure", "a waiter went missing")),
        };
    }
    let after = floor.commands(counts).await.map_err(trouble)?;
    holder.release().await?;
    for client in clients {
        client.close().await;
    }
    Ok((after - before) as f64 / waiters as f64)
}

/// Hundreds of clients are more connections than many shells allow.
fn room_for_connections() -> Result<(), Failure> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    raised.map_err(|error| Failure::own("allow more connections", error))
}

impl Figures {
    pub(super) fn to_text(&self) -> String {
        let mut table = Table::new(["", "P50", "P99", "AGAINST SAME", "AGAINST NAIVE", "PINGS"]);
        let mut row = |name: &str, spread: &Spread| {
            let ratio = |floor: &Spread| format!("{:.2}×", spread.p50 / floor.p50);
            table.row([
                name.to_owned(),
                format!("{:.1} µs", spread.p50),
                format!("{:.1} µs", spread.p99),
                ratio(&self.same),
                ratio(&self.naive),
                format!("{:.1}", spread.p50 / self.ping.p50),
            ]);
        };
        row("PING", &self.ping);
        row("naive: SET NX PX, compare and delete", &self.naive);
        row("same: our two scripts, bare", &self.same);
        row("cycle, release awaited", &self.released);
        row("cycle, guard dropped", &self.dropped);
        row("cycle, guard dropped, 1000 keys", &self.dropped_many_keys);
        row("hand-off between two processes", &self.hand_off_two_processes);
        let mut text = format!("\n{table}");
        text += &format!(
            "{TASKS} tasks, each with its key: {:.0} cycles per second, {:.2}× same ({:.0}), {:.2}× naive ({:.0})\n",
            self.tasks,
            self.tasks / self.tasks_same,
            self.tasks_same,
            self.tasks / self.tasks_naive,
            self.tasks_naive
        );
        for Commands { waiters, plain, fair } in &self.commands {
            text += &format!(
                "commands per hand-off, {waiters} waiters: {plain:.1} as tasks of {CLIENTS} clients, {fair:.1} as a queue of clients\n"
            );
        }
        text
    }
}
