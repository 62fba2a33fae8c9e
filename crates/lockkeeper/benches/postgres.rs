//! What a lock on PostgreSQL costs, beside the least that its own means would take, in the same run.
//!
//! `cargo bench -p lockkeeper --features postgres --bench postgres`

use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::database::postgres::Postgres;
use sqlx::{Connection, PgConnection};

const ROUNDS: usize = 300;

#[tokio::main]
async fn main() {
    let server = Postgres::with(&["fsync=on"]);
    let url = server.url();
    let mut raw = PgConnection::connect(&url).await.unwrap();
    let lease = Client::connect(&url).await.unwrap();
    let advisory = Client::connect(format!("{url}?strategy=advisory")).await.unwrap();
    sqlx::raw_sql("CREATE TABLE counter (n bigint); INSERT INTO counter VALUES (0)")
        .execute(&mut raw)
        .await
        .unwrap();
    let [mut write, mut leased, mut calls, mut advised] = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let started = Instant::now();
        sqlx::query("UPDATE counter SET n = n + 1").execute(&mut raw).await.unwrap();
        sqlx::query("SELECT 1").execute(&mut raw).await.unwrap();
        write.push(started.elapsed());

        let started = Instant::now();
        lease.mutex("key").acquire().await.unwrap().release().await.unwrap();
        leased.push(started.elapsed());

        let started = Instant::now();
        sqlx::query("SELECT pg_try_advisory_lock(1)").execute(&mut raw).await.unwrap();
        sqlx::query("SELECT pg_advisory_unlock(1)").execute(&mut raw).await.unwrap();
        calls.push(started.elapsed());

        let started = Instant::now();
        advisory.mutex("key").acquire().await.unwrap().release().await.unwrap();
        advised.push(started.elapsed());
    }
    let [write, leased, calls, advised] = [write, leased, calls, advised].map(median);
    println!("one durable write and one round trip  {write:>10.1?}");
    println!("lease: acquire and release            {leased:>10.1?}  {:.2}×", ratio(leased, write));
    println!("two calls of advisory locks           {calls:>10.1?}");
    println!(
        "advisory: acquire and release         {advised:>10.1?}  {:.2}×",
        ratio(advised, calls)
    );
    println!("                    to the durable write          {:.2}×", ratio(advised, write));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ratio(ours: Duration, floor: Duration) -> f64 {
    ours.as_secs_f64() / floor.as_secs_f64()
}
