//! What only Redis is asked: two floors through the same client crate, and what the server counts.
//!
//! *naive* is `SET NX PX` and compare-and-delete, which has neither a fence nor a wake-up; *same* is
//! the library's own two scripts, called without the library. Rounds of everything follow each other,
//! so that a machine that is slow for a while is so for all of them.

use std::time::Duration;

use lockkeeper::endpoint::Endpoint;
use lockkeeper::engines::redis::Redis;
use lockkeeper::{Client, Guard};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use serde::Serialize;
use tokio::task::JoinSet;

use super::{Meter, Spread, hand_off};
use crate::bench::worker::{Crew, Work};
use crate::exit::{self, Failure};
use crate::table::Table;

/// How often each figure is measured in turn.
const ROUNDS: u32 = 10;

/// How many tasks work on keys of their own.
const TASKS: usize = 64;

/// How many wait for one lock.
const WAITERS: [usize; 3] = [4, 64, 512];

/// Over how many clients the tasks are spread that wait for a plain mutex.
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

/// Measures one server; `None` for anything else that speaks Redis, or another layout.
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
        let fair = commands_of_line(&url, &floor, waiters).await?;
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

/// Cycles per second of many tasks, each on a key of its own: naive, same, ours.
///
/// On a runtime with a thread per core, as a service with so many tasks has one.
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

/// Commands per hand-off while tasks of a few clients want one mutex again and again.
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
            // Nobody goes on before the last grant was counted.
            while let Ok(guard) = client.mutex(&key).acquire().await {
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

/// Commands per hand-off in a line of so many clients.
async fn commands_of_line(url: &str, floor: &Floor, waiters: usize) -> Result<f64, Failure> {
    let key = floor.key(&format!("fair {waiters}"));
    let mut clients = Vec::new();
    for _ in 0..=waiters {
        clients.push(Client::connect(url).await?);
    }
    let scripts = floor.commands(is_script).await.map_err(trouble)?;
    let mut holder: Guard = clients[waiters].mutex(&key).fair().acquire().await?;
    let mut line = JoinSet::new();
    for client in &clients[..waiters] {
        line.spawn(client.mutex(&key).fair().acquire());
    }
    // Everyone asks for a place, and looks again once it hears of releases.
    while floor.commands(is_script).await.map_err(trouble)? < scripts + 1 + 2 * waiters as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = floor.commands(counts).await.map_err(trouble)?;
    for _ in 0..waiters {
        holder.release().await?;
        holder = match line.join_next().await {
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

/// A connection of the same client crate, without the library.
#[derive(Clone)]
struct Floor {
    connection: MultiplexedConnection,
    prefix: String,
    naive_release: String,
    take: String,
    give: String,
}

impl Floor {
    async fn connect(endpoint: &Endpoint) -> RedisResult<Self> {
        const NAIVE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
            return redis.call('del', KEYS[1]) end return 0";
        let mut url = endpoint.expose().clone();
        url.set_query(None);
        let patient =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
        let [take, give] = Redis::mutex_scripts();
        let mut load = async |text: &str| {
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await
        };
        let (naive_release, take, give) =
            (load(NAIVE).await?, load(take).await?, load(give).await?);
        let prefix = endpoint.options().take("prefix").ok().flatten().unwrap_or_default();
        Ok(Self { connection, prefix, naive_release, take, give })
    }

    /// A key that nobody else uses.
    fn key(&self, name: &str) -> String {
        format!("lockkeeper-bench-{} {name}", std::process::id())
    }

    /// What a key is called in the store.
    fn stored(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        self.connection.clone().send_packed_command(command).await.map_err(trouble)
    }

    /// How many of these commands the server ran so far.
    async fn commands(&self, of: fn(&str) -> bool) -> RedisResult<u64> {
        let mut connection = self.connection.clone();
        let text: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
        Ok(calls(&text, of))
    }
}

/// The calls in an answer to `INFO commandstats`.
fn calls(stats: &str, of: fn(&str) -> bool) -> u64 {
    let calls = stats.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse::<u64>().ok()?;
        of(command).then_some(calls)
    });
    calls.sum()
}

/// Everything but our own looking.
fn counts(command: &str) -> bool {
    command != "info"
}

fn is_script(command: &str) -> bool {
    matches!(command, "eval" | "evalsha")
}

/// The names that a hand-written client would have made once.
struct Bare {
    lock: String,
    state: String,
    channel: String,
    text: String,
}

/// As a token of the library looks.
const FIELD: &str = "0d1c0000-0000-4000-8000-000000000000:57";

impl Bare {
    fn new(floor: &Floor, name: &str) -> Self {
        let lock = floor.stored(&floor.key(&format!("bare {name}")));
        Self {
            state: format!("lockkeeper:{{{lock}}}"),
            channel: format!("redisson_lock__channel:{{{lock}}}"),
            text: format!("{lock} text"),
            lock,
        }
    }

    async fn naive(&self, floor: &Floor) -> Result<(), Failure> {
        let mut take = redis::cmd("SET");
        take.arg(&self.text).arg(FIELD).arg("NX").arg("PX").arg(30_000);
        floor.ask(&take).await?;
        let mut give = redis::cmd("EVALSHA");
        give.arg(&floor.naive_release).arg(1).arg(&self.text).arg(FIELD);
        floor.ask(&give).await.map(drop)
    }

    async fn same(&self, floor: &Floor) -> Result<(), Failure> {
        let mut take = redis::cmd("EVALSHA");
        take.arg(&floor.take).arg(2).arg(&self.lock).arg(&self.state);
        // A counter that is trusted, a lifetime, a lease, a holder and its record.
        take.arg(1).arg(3_600_000).arg(30_000).arg(FIELD).arg("mutex\t1\tx\tuser@host 1\t");
        floor.ask(&take).await?;
        let mut give = redis::cmd("EVALSHA");
        give.arg(&floor.give).arg(1).arg(&self.lock).arg(FIELD).arg(&self.channel).arg("publish");
        floor.ask(&give).await.map(drop)
    }
}

fn trouble(error: redis::RedisError) -> Failure {
    Failure::new(exit::UNAVAILABLE, format!("redis: cannot measure the floor: {error}"))
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
                "commands per hand-off, {waiters} waiters: {plain:.1} as tasks of {CLIENTS} clients, {fair:.1} as a line of clients\n"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_but_for_our_own_looking() {
        let stats = "# Commandstats\r\ncmdstat_info:calls=7,usec=9\r\n\
            cmdstat_evalsha:calls=3,usec=10,usec_per_call=3.33\r\ncmdstat_hset:calls=2,usec=1\r\n";
        assert_eq!((calls(stats, counts), calls(stats, is_script)), (5, 3));
    }
}
