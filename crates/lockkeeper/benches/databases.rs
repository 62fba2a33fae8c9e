//! What a lock in a database costs, beside the least that its own means would take, in the same run.
//!
//! `cargo bench -p lockkeeper --features postgres,mysql --bench databases`

use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::database::{Mariadb, Postgres};
use sqlx::{Connection, MySqlConnection, PgConnection};

const ROUNDS: usize = 400;

/// Everything by turns, so that a busy machine hurts all alike.
macro_rules! measure {
    ($raw:ident, $url:ident, $bound:literal, $lock:literal, $unlock:literal, $statements:expr) => {{
        let strategy =
            async |name: &str| Client::connect(format!("{}?strategy={name}", $url)).await.unwrap();
        let lease = strategy("lease").await;
        let (bound, row, other) =
            (strategy($bound).await, strategy("row").await, strategy("lease").await);
        sqlx::raw_sql("CREATE TABLE counter (n BIGINT); INSERT INTO counter VALUES (0)")
            .execute(&mut $raw)
            .await
            .unwrap();
        let [mut trip, mut write, mut leased, mut bare, mut calls, mut held, mut rows, mut handed] =
            [const { Vec::new() }; 8];
        for _ in 0..ROUNDS {
            trip.push(
                timed(async { sqlx::query("SELECT 1").execute(&mut $raw).await.unwrap() }).await,
            );
            write.push(
                timed(async {
                    sqlx::query("UPDATE counter SET n = n + 1").execute(&mut $raw).await.unwrap();
                    sqlx::query("SELECT 1").execute(&mut $raw).await.unwrap();
                })
                .await,
            );
            leased.push(timed(cycle(&lease)).await);
            bare.push(
                timed(async {
                    for statement in $statements {
                        sqlx::query(statement).fetch_all(&mut $raw).await.unwrap();
                    }
                })
                .await,
            );
            calls.push(
                timed(async {
                    sqlx::query($lock).execute(&mut $raw).await.unwrap();
                    sqlx::query($unlock).execute(&mut $raw).await.unwrap();
                })
                .await,
            );
            held.push(timed(cycle(&bound)).await);
            rows.push(timed(cycle(&row)).await);
            let guard = lease.mutex("handed").acquire().await.unwrap();
            let waiting = tokio::spawn({
                let other = other.clone();
                async move {
                    let guard = other.mutex("handed").acquire().await.unwrap();
                    (Instant::now(), guard)
                }
            });
            // Until the waiter has its place, and is told of what comes.
            while lease.inspect("handed").await.unwrap().unwrap().waiters.unwrap().is_empty() {}
            tokio::time::sleep(Duration::from_millis(3)).await;
            guard.release().await.unwrap();
            let released = Instant::now();
            let (got, guard) = waiting.await.unwrap();
            handed.push(got.saturating_duration_since(released));
            guard.release().await.unwrap();
        }
        let [trip, write, leased, bare, calls, held, rows, handed] =
            [trip, write, leased, bare, calls, held, rows, handed].map(fast);
        say("one round trip", trip, None);
        say("one durable write and one round trip", write, None);
        say("lease: acquire and release", leased, Some((write, "")));
        say("  its statements without the library", bare, Some((write, "")));
        say(concat!("two calls of ", $bound, " locks"), calls, None);
        say(concat!($bound, ": acquire and release"), held, Some((calls, "")));
        say("row: acquire and release", rows, Some((write, " of the durable write")));
        say("lease: from the end of a release to the next holder", handed, None);
        // The next grant has to be on disk before it counts.
        let waited = handed.saturating_sub(write - trip);
        say("  of which more than one durable write", waited, Some((trip, " of a round trip")));
    }};
}

#[tokio::main]
async fn main() {
    println!("PostgreSQL");
    let server = Postgres::with(&["fsync=on"]);
    let url = server.url();
    let mut raw = PgConnection::connect(&url).await.unwrap();
    measure!(
        raw,
        url,
        "advisory",
        "SELECT pg_try_advisory_lock(1)",
        "SELECT pg_advisory_unlock(1)",
        [
            "SELECT clash, granted, fence, slots, pause FROM lockkeeper_attempt(
               'bare', 'token', 'token', 'mutex', 1, 0, 30000000, 5000000, 'channel', 'who', NULL)",
            "SELECT lockkeeper_release('bare', 'token')",
        ]
    );
    println!("MariaDB");
    let server = Mariadb::with(&["innodb-flush-log-at-trx-commit=1"]);
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    client.mutex("bare").acquire().await.unwrap().release().await.unwrap();
    let mut raw = MySqlConnection::connect(&url).await.unwrap();
    measure!(
        raw,
        url,
        "named",
        "SELECT GET_LOCK('one', 0)",
        "SELECT RELEASE_LOCK('one')",
        [
            "UPDATE lockkeeper_lock SET token = 'token', owner = 'token', kind = 'mutex', who = 'who',
               note = NULL, used = SYSDATE(6), until = SYSDATE(6) + INTERVAL 30000000 MICROSECOND,
               fence = LAST_INSERT_ID(
                 GREATEST(fence + 1, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)))
             WHERE name = 'bare' AND token IS NOT NULL",
            "REPLACE INTO lockkeeper_freed VALUES (REPEAT('b', 32), 'token',
               SYSDATE(6) + INTERVAL 30000000 MICROSECOND)",
        ]
    );
}

async fn timed<T>(work: impl Future<Output = T>) -> Duration {
    let started = Instant::now();
    work.await;
    started.elapsed()
}

async fn cycle(client: &Client) {
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
}

/// The tenth part that was fastest: what else the machine does is not what is measured.
fn fast(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 10]
}

fn say(what: &str, took: Duration, floor: Option<(Duration, &str)>) {
    let ratio = floor.map_or(String::new(), |(floor, of)| {
        format!("  {:.2}×{of}", took.as_secs_f64() / floor.as_secs_f64())
    });
    println!("  {what:<55}{took:>10.1?}{ratio}");
}
