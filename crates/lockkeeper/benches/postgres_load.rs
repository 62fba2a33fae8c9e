//! How many locks per second a PostgreSQL server gives to many tasks and clients, compared with
//! sqlx's advisory lock and with a naive table, in the same run.
//!
//! `cargo bench -p lockkeeper --features postgres --bench postgres_load`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::server::Postgres;
use sqlx::postgres::PgAdvisoryLock;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tokio::time::sleep;

const ROUNDS: usize = 5;

/// How long each works in its turn.
const TURN: Duration = Duration::from_millis(1_500);

const KEYS: usize = 64;
const CLIENTS: usize = 8;

/// How long a client of the naive table waits before it tries again.
const POLL: Duration = Duration::from_millis(5);

/// Cycles per second of all workers together, after the first cycle of each. A macro, because a
/// spawned task has to know that the work of a worker can move to another thread.
macro_rules! rate {
    ($workers:expr, $work:ident) => {{
        let (ended, cycles) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for mut worker in $workers {
            $work(&mut worker).await;
            let (ended, cycles) = (ended.clone(), cycles.clone());
            tasks.spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    $work(&mut worker).await;
                    cycles.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (started, before) = (Instant::now(), cycles.load(Ordering::Relaxed));
        sleep(TURN).await;
        let done = cycles.load(Ordering::Relaxed) - before;
        let rate = done as f64 / started.elapsed().as_secs_f64();
        ended.store(true, Ordering::Relaxed);
        tasks.join_all().await;
        rate
    }};
}

#[tokio::main]
async fn main() {
    let server = Postgres::with(&["fsync=on"]);
    let url = server.url();
    let strategy = |name: &str| format!("{url}?strategy={name}");
    let mut naive = PgConnection::connect(&url).await.unwrap();
    let table = "CREATE TABLE naive (key text PRIMARY KEY, token text, until timestamptz)";
    sqlx::raw_sql(table).execute(&mut naive).await.unwrap();
    for (what, tasks, clients) in [
        ("one task", 1, 1),
        ("64 tasks of one client, each with its own key", KEYS, 1),
        ("8 clients, one key", CLIENTS, CLIENTS),
    ] {
        let key = |n: usize| if clients == 1 { format!("key {n}") } else { "hot".to_owned() };
        let mut rates = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let mut workers = Vec::new();
            for n in 0..tasks {
                workers.push((PgConnection::connect(&url).await.unwrap(), key(n)));
            }
            rates[0].push(rate!(workers, advisory));
            let workers = ours(&strategy("advisory"), tasks, clients, key).await;
            rates[1].push(rate!(workers, cycle));
            let mut workers = Vec::new();
            for n in 0..tasks {
                workers.push((PgConnection::connect(&url).await.unwrap(), key(n)));
            }
            rates[2].push(rate!(workers, row));
            let workers = ours(&strategy("lease"), tasks, clients, key).await;
            rates[3].push(rate!(workers, cycle));
        }
        let [advisory, ours, table, leases] = rates.map(median);
        println!("{what}, cycles per second: the median of {ROUNDS} rounds");
        println!("  sqlx's advisory lock {advisory:>10.0}");
        println!("  strategy=advisory    {ours:>10.0}  {:.2} of that", ours / advisory);
        println!("  a naive table        {table:>10.0}");
        println!("  strategy=lease       {leases:>10.0}  {:.2} of that", leases / table);
    }
}

async fn ours(
    url: &str,
    tasks: usize,
    clients: usize,
    key: impl Fn(usize) -> String,
) -> Vec<(Client, String)> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(Client::connect(url).await.unwrap());
    }
    (0..tasks).map(|n| (connected[n % clients].clone(), key(n))).collect()
}

async fn cycle(worker: &mut (Client, String)) {
    worker.0.mutex(&worker.1).acquire().await.unwrap().release().await.unwrap();
}

async fn advisory(worker: &mut (PgConnection, String)) {
    let lock = PgAdvisoryLock::new(&worker.1);
    lock.acquire(&mut worker.0).await.unwrap().release_now().await.unwrap();
}

async fn row(worker: &mut (PgConnection, String)) {
    let (connection, key) = worker;
    let taking = "INSERT INTO naive VALUES ($1, 'token', now() + interval '30 seconds') ON CONFLICT DO NOTHING";
    while sqlx::query(taking).bind(&*key).execute(&mut *connection).await.unwrap().rows_affected()
        == 0
    {
        sleep(POLL).await;
    }
    let leaving = sqlx::query("DELETE FROM naive WHERE key = $1 AND token = 'token'").bind(&*key);
    leaving.execute(&mut *connection).await.unwrap();
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
