//! What a lock in a database costs, compared with the minimum that the database itself takes, in
//! the same run.
//!
//! `cargo bench -p lockkeeper --features postgres,mysql --bench databases`

use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::server::{Mariadb, Postgres};
use sqlx::{Connection, MySqlConnection, PgConnection};

const ROUNDS: usize = 200;

/// How often each operation is repeated in its turn. The first one is slower: its connection was
/// idle.
const AT_ONCE: u32 = 5;

/// A waiter is idle until it is notified: what it is compared with had a pause, too.
const PAUSE: Duration = Duration::from_millis(3);

/// Everything in turn, so that a busy machine affects all alike, and each on its own connections.
macro_rules! measure {
    ($connection:ty, $url:ident, $bound:literal, $lock:literal, $unlock:literal, $statements:expr) => {{
        let strategy =
            async |name: &str| Client::connect(format!("{}?strategy={name}", $url)).await.unwrap();
        let lease = strategy("lease").await;
        let (bound, row, other) =
            (strategy($bound).await, strategy("row").await, strategy("lease").await);
        let raw = async || <$connection>::connect(&$url).await.unwrap();
        let (mut tripped, mut wrote, mut stated, mut called) =
            (raw().await, raw().await, raw().await, raw().await);
        sqlx::raw_sql("CREATE TABLE counter (n BIGINT); INSERT INTO counter VALUES (0)")
            .execute(&mut wrote)
            .await
            .unwrap();
        cycle(&lease, "bare").await;
        let [mut trip, mut write, mut leased, mut bare, mut calls, mut held, mut rows] =
            [const { Vec::new() }; 7];
        let [mut handed, mut late] = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            trip.push(
                timed(async || {
                    sqlx::query("SELECT 1").execute(&mut tripped).await.unwrap();
                })
                .await,
            );
            write.push(
                timed(async || {
                    sqlx::query("UPDATE counter SET n = n + 1").execute(&mut wrote).await.unwrap();
                    sqlx::query("SELECT 1").execute(&mut wrote).await.unwrap();
                })
                .await,
            );
            leased.push(timed(async || cycle(&lease, "key").await).await);
            bare.push(
                timed(async || {
                    for statement in $statements {
                        sqlx::query(statement).fetch_all(&mut stated).await.unwrap();
                    }
                })
                .await,
            );
            calls.push(
                timed(async || {
                    sqlx::query($lock).execute(&mut called).await.unwrap();
                    sqlx::query($unlock).execute(&mut called).await.unwrap();
                })
                .await,
            );
            held.push(timed(async || cycle(&bound, "key").await).await);
            rows.push(timed(async || cycle(&row, "key").await).await);
            let guard = lease.mutex("handed").acquire().await.unwrap();
            let waiting = tokio::spawn({
                let other = other.clone();
                async move {
                    let guard = other.mutex("handed").acquire().await.unwrap();
                    (Instant::now(), guard)
                }
            });
            // Until the waiter is in the queue, and is notified of changes.
            while lease.inspect("handed").await.unwrap().unwrap().waiters.unwrap().is_empty() {}
            tokio::time::sleep(PAUSE).await;
            guard.release().await.unwrap();
            let released = Instant::now();
            let (got, guard) = waiting.await.unwrap();
            handed.push(got.saturating_duration_since(released));
            guard.release().await.unwrap();
            tokio::time::sleep(PAUSE).await;
            let started = Instant::now();
            sqlx::query("SELECT 1").execute(&mut tripped).await.unwrap();
            late.push(started.elapsed());
        }
        let all = [trip, write, leased, bare, calls, held, rows, handed, late];
        for (share, what) in [(10, "the fastest tenth"), (2, "the median")] {
            let [trip, write, leased, bare, calls, held, rows, handed, late] =
                all.each_ref().map(|times| within(times, share));
            println!(" {what} of {ROUNDS}");
            say("one round trip", trip, None);
            say("one durable write and one round trip", write, None);
            say("lease: acquire and release", leased, Some((write, "")));
            say("  its statements without the library", bare, Some((write, "")));
            say(concat!("two calls of ", $bound, " locks"), calls, None);
            say(concat!($bound, ": acquire and release"), held, Some((calls, "")));
            say("row: acquire and release", rows, Some((write, " of the durable write")));
            say("one round trip after a pause", late, None);
            let handing = "lease: from the end of a release to the next holder";
            say(handing, handed, Some((late, " of that")));
            // The next grant has to be on disk before it counts.
            let waited = handed.saturating_sub(write.saturating_sub(2 * trip));
            say("  of which more than one durable write", waited, Some((late, " of that")));
        }
    }};
}

#[tokio::main]
async fn main() {
    println!("PostgreSQL");
    let server = Postgres::with(&["fsync=on"]);
    let url = server.url();
    measure!(
        PgConnection,
        url,
        "advisory",
        "SELECT pg_try_advisory_lock(1)",
        "SELECT pg_advisory_unlock(1)",
        [
            "UPDATE lockkeeper_lock l
             SET token = 'token', owner = 'owner', kind = 'mutex', since = clock_timestamp(),
                 until = clock_timestamp() + 30000000 * interval '1 microsecond', who = 'who',
                 note = NULL, fence = greatest(l.fence + 1, lockkeeper_micros())
             WHERE l.ctid = (
               SELECT f.ctid FROM lockkeeper_lock f
               WHERE f.key = 'bare' AND (f.token = '' OR f.until <= clock_timestamp())
               FOR UPDATE SKIP LOCKED)
             RETURNING l.fence",
            "UPDATE lockkeeper_lock SET token = '' WHERE key = 'bare' AND token = 'token'
             RETURNING until > clock_timestamp(), set_config('synchronous_commit', 'off', true)",
        ]
    );
    println!("MariaDB");
    let server = Mariadb::with(&["innodb-flush-log-at-trx-commit=1"]);
    let url = server.url();
    measure!(
        MySqlConnection,
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

async fn timed(mut work: impl AsyncFnMut()) -> Duration {
    let started = Instant::now();
    for _ in 0..AT_ONCE {
        work().await;
    }
    started.elapsed() / AT_ONCE
}

async fn cycle(client: &Client, key: &str) {
    client.mutex(key).acquire().await.unwrap().release().await.unwrap();
}

/// The slowest of this share of all, starting with the fastest.
fn within(times: &[Duration], share: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / share]
}

fn say(what: &str, took: Duration, floor: Option<(Duration, &str)>) {
    let ratio = floor.map_or(String::new(), |(floor, of)| {
        format!("  {:.2}×{of}", took.as_secs_f64() / floor.as_secs_f64())
    });
    println!("  {what:<55}{took:>10.1?}{ratio}");
}
