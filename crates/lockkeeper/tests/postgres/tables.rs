//! The consistency of the tables at any time, and the transactions that they guard.

use std::fmt::Write;
use std::time::Duration;

use lockkeeper::admission::{self, Queued, Turn};
use lockkeeper::engine::Mode;
use lockkeeper::{Client, Release};
use sqlx::Connection;
use tokio::task::JoinSet;

use super::{LEASE, database, server, strategy};

#[path = "../../examples/guarded_transaction.rs"]
#[expect(dead_code, reason = "its main function is not called here")]
mod guarded_transaction;

/// Without a notification, it would look again after half a minute.
#[tokio::test]
async fn a_holder_that_listens_is_notified_of_a_request_to_give_way() {
    let url = server().url();
    let (client, other) =
        (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    let guard = client.mutex("key").acquire().await.unwrap();
    let told = tokio::spawn(guard.yield_requested());
    let looked = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND pid <> pg_backend_pid()
                    AND query LIKE '%FROM lockkeeper_asked WHERE%' AND state = 'idle'";
    while server().sql(database(&url), looked).trim() == "0" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(other.request_yield("key").await.unwrap().len(), 1);
    tokio::time::timeout(Duration::from_secs(10), told).await.expect("at once").unwrap();
}

#[tokio::test]
async fn a_stale_holder_cannot_write_in_a_guarded_transaction() {
    for way in ["lease", "advisory", "row"] {
        let url = server().url();
        let sql = |statement: &str| server().sql(database(&url), statement);
        let client = Client::connect(strategy(&url, way)).await.unwrap();
        sql("CREATE TABLE orders (id int PRIMARY KEY, state text);
             INSERT INTO orders VALUES (42, 'new')");
        let stale = client.mutex("orders/42").ttl(LEASE).acquire().await.unwrap();
        let write = |state: &str, fence: lockkeeper::Fence| {
            format!(
                "DO $$ BEGIN
                   UPDATE orders SET state = '{state}'
                     WHERE id = 42 AND lockkeeper_guard('orders/42', {fence});
                 EXCEPTION WHEN SQLSTATE 'LK001' THEN INSERT INTO orders VALUES (0, 'refused {state}');
                 END $$"
            )
        };
        sql(&write("paid", stale.fence()));
        client.break_lock("orders/42").await.unwrap();
        let next = client.mutex("orders/42").acquire().await.unwrap();
        sql(&write("sent", next.fence()));
        sql(&write("lost", stale.fence()));
        assert_eq!(sql("SELECT state FROM orders ORDER BY id"), "refused lost\nsent", "{way}");
    }
}

/// A clock that goes back and a crash, which together leave nothing but the committed bound.
#[tokio::test]
async fn fences_of_bound_locks_rise_without_the_help_of_a_clock() {
    for way in ["advisory", "row"] {
        let url = server().url();
        let sql = |statement: &str| server().sql(database(&url), statement);
        let client = Client::connect(strategy(&url, way)).await.unwrap();
        let fence = async || {
            let guard = client.mutex("key").acquire().await.unwrap();
            let fence = guard.fence();
            guard.release().await.unwrap();
            fence
        };
        fence().await;
        // As if all fences came from a clock that was an hour ahead.
        sql("UPDATE lockkeeper_bound SET fence = fence + 3600000000;
             UPDATE lockkeeper_last l SET fence = b.fence - 5, range_end = b.fence
             FROM lockkeeper_bound b WHERE b.key = l.key");
        let mut last = fence().await;
        for _ in 0..12 {
            let next = fence().await;
            assert!(next > last, "{way}: {next} after {last}");
            last = next;
        }
        let bound: u64 = sql("SELECT fence FROM lockkeeper_bound").parse().unwrap();
        assert!(last.get() <= bound, "{way}: a crash could give {last} again");
        sql("TRUNCATE lockkeeper_last");
        assert!(fence().await.get() > bound, "{way}: what was given before the crash is not known");
    }
}

#[tokio::test]
async fn the_example_of_a_guarded_transaction_does_what_it_says() {
    assert_eq!(guarded_transaction::run(&server().url()).await.unwrap(), "sent");
}

/// Renewals and the release continue; only a grant has to wait.
#[tokio::test]
async fn a_guarded_transaction_keeps_others_out_and_its_own_holder_alive() {
    let url = server().url();
    let (one, another) =
        (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    let mut database = sqlx::PgConnection::connect(&url).await.unwrap();
    let guard = one.mutex("key").ttl(LEASE).acquire().await.unwrap();
    let fence = guard.fence();
    let mut transaction = database.begin().await.unwrap();
    sqlx::query("SELECT lockkeeper_guard('key', $1)")
        .bind(fence.get().cast_signed())
        .execute(&mut *transaction)
        .await
        .unwrap();
    tokio::time::sleep(LEASE * 2).await;
    guard.check().unwrap();
    assert!(another.mutex("key").try_acquire().await.unwrap().is_none(), "it is held");
    guard.release().await.unwrap();
    assert!(another.mutex("key").try_acquire().await.unwrap().is_none(), "it is guarded");
    transaction.commit().await.unwrap();
    assert!(another.mutex("key").acquire().await.unwrap().fence() > fence);
}

/// The statement has the lock but not the row, and leaves the rest to the function, which acquires
/// the lock again.
#[tokio::test]
async fn an_advisory_lock_that_was_taken_twice_is_released_completely() {
    let url = server().url();
    let client = Client::connect(strategy(&url, "advisory")).await.unwrap();
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let mut database = sqlx::PgConnection::connect(&url).await.unwrap();
    let mut in_the_way = database.begin().await.unwrap();
    let writing = sqlx::query("UPDATE lockkeeper_last SET note = 'other'");
    writing.execute(&mut *in_the_way).await.unwrap();
    let taking = tokio::spawn({
        let client = client.clone();
        async move { client.mutex("key").acquire().await.unwrap() }
    });
    let left = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                WHERE a.datname = current_database() AND l.locktype = 'advisory'";
    let left = || server().sql(super::database(&url), left);
    while left() == "0" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!taking.is_finished(), "it has no fence yet");
    in_the_way.commit().await.unwrap();
    taking.await.unwrap().release().await.unwrap();
    assert_eq!(left(), "0");
}

/// The server refuses the commit of a transaction that would send a notification. Here a deferred
/// trigger does, at the same moment and with the same code: before PostgreSQL 17 the queue always
/// has eight gigabytes, and filling them takes longer than all other tests.
#[tokio::test]
async fn a_full_notification_queue_does_not_block_acquires() {
    let url = server().url();
    let sql = |statement: &str| server().sql(database(&url), statement);
    sql("CREATE TABLE full_queue (n int);
         CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$;
         CREATE CONSTRAINT TRIGGER is_full AFTER INSERT ON full_queue DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION is_full();
         CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS
           'INSERT INTO full_queue VALUES (1)'");
    // The name of the server's own function is looked up after ours.
    sql(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", database(&url)));
    let connect = async || Client::connect(&url).await.unwrap();
    let clients = [connect().await, connect().await, connect().await];
    let first = clients[0].mutex("key").ttl(LEASE).acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for client in &clients[1..] {
        waiting.spawn(client.mutex("key").ttl(LEASE).acquire());
    }
    while sql("SELECT count(*) FROM lockkeeper_claim") != "3" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut last = first.fence();
    assert_eq!(first.release().await.unwrap(), Release::Released);
    while let Some(next) = waiting.join_next().await {
        let next = next.unwrap().unwrap();
        assert!(next.fence() > last);
        last = next.fence();
        match waiting.is_empty() {
            false => assert_eq!(next.release().await.unwrap(), Release::Released),
            true => assert_eq!(clients[0].break_lock("key").await.unwrap().len(), 1),
        }
    }
    // A waiter is not notified of an expired lease and polls, and must not fail either.
    let dead = clients[0].mutex("other").lease(Duration::from_secs(1)).acquire().await.unwrap();
    for client in &clients[1..] {
        waiting.spawn(client.mutex("other").acquire());
    }
    while let Some(next) = waiting.join_next().await {
        next.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(dead.release().await.unwrap(), Release::AlreadyLost);
    assert_eq!(sql("SELECT count(*) FROM full_queue"), "0", "nothing was told");
}

/// A lease that expired by the clock of a new client, in the middle of a renewal that found it
/// alive.
#[tokio::test]
async fn a_renewal_that_is_under_way_is_waited_for() {
    let url = server().url();
    Client::connect(&url).await.unwrap();
    let connect = async || sqlx::PgConnection::connect(&url).await.unwrap();
    let (mut holder, mut waiter, mut other) = (connect().await, connect().await, connect().await);
    let attempt = "SELECT granted FROM lockkeeper_attempt(
                     'key', $1, $1, 'mutex', 1, 0, $2, $3, 'channel', 'who', NULL)";
    let attempt = move |token: &'static str, ttl: i64, stay: i64| {
        sqlx::query_scalar::<_, bool>(attempt).bind(token).bind(ttl).bind(stay)
    };
    assert!(attempt("holder", 1_000_000, 5_000_000).fetch_one(&mut holder).await.unwrap());
    // A client that comes and goes leaves the holder in the queue.
    assert!(!attempt("passer-by", 1_000_000, 5_000_000).fetch_one(&mut other).await.unwrap());
    let leaving = sqlx::query("SELECT lockkeeper_release('key', 'passer-by')");
    leaving.execute(&mut other).await.unwrap();
    let mut renewal = holder.begin().await.unwrap();
    let renewing = sqlx::query_scalar::<_, String>(
        "SELECT lockkeeper_renew('{key}', '{holder}', '{60000000}')",
    );
    assert_eq!(renewing.fetch_all(&mut *renewal).await.unwrap(), ["holder"]);
    let over = "SELECT count(*) FROM lockkeeper_claim WHERE until <= clock_timestamp()";
    let over = sqlx::query_scalar::<_, i64>(over);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(over.fetch_one(&mut other).await.unwrap(), 1, "to others it is over");
    let asking = tokio::spawn(async move {
        attempt("waiter", 60_000_000, 5_000_000).fetch_one(&mut waiter).await.unwrap()
    });
    while server().busy_sessions(database(&url)) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    renewal.commit().await.unwrap();
    assert!(!asking.await.unwrap(), "let in beside a holder whose renewal was confirmed");
}

/// Even if its connection was the last to be granted the lock.
#[tokio::test]
async fn a_waiter_is_shown_since_it_waits_and_a_holder_since_it_holds() {
    for way in ["lease", "advisory", "row"] {
        let url = server().url();
        let place = strategy(&url, way);
        let (one, other) =
            (Client::connect(&place).await.unwrap(), Client::connect(&place).await.unwrap());
        let (first, second) = match way {
            "row" => (one.mutex("key"), other.mutex("key")),
            _ => (one.read("key"), other.write("key")),
        };
        second.clone().ttl(LEASE).acquire().await.unwrap().release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let before = std::time::SystemTime::now();
        let _guard = first.ttl(LEASE).acquire().await.unwrap();
        let _waiting = tokio::spawn(second.note("why").ttl(LEASE).acquire());
        let waiter = loop {
            let seen = one.inspect("key").await.unwrap().unwrap();
            if let Some(waiter) = seen.waiters.unwrap().pop() {
                break (seen.holders[0].since, waiter.since);
            }
        };
        let slack = Duration::from_millis(20);
        for since in [waiter.0, waiter.1] {
            // Nothing records since when a reader has an advisory lock.
            let Some(since) = since else { continue };
            assert!(since + slack > before, "{way}: {:?} too old", before.duration_since(since));
        }
        assert!(waiter.1.is_some(), "{way}: a waiter's age is known");
    }
}

/// Counted by the server itself, which reports it when a connection ends.
#[tokio::test]
async fn an_uncontended_lock_is_one_row() {
    let url = server().url();
    let sql = |statement: &str| server().sql(database(&url), statement);
    let client = Client::connect(&url).await.unwrap();
    for _ in 0..20 {
        client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    }
    client.close().await;
    let count = "SELECT string_agg(relname || ' ' || n_tup_ins || ' ' || n_tup_upd || ' ' || n_tup_del, ', '
                   ORDER BY relname) FROM pg_stat_user_tables
                 WHERE relname IN ('lockkeeper_lock', 'lockkeeper_claim')";
    let started = std::time::Instant::now();
    while sql(count) != "lockkeeper_claim 0 0 0, lockkeeper_lock 1 40 0" {
        assert!(started.elapsed() < Duration::from_secs(30), "{}", sql(count));
    }
}

#[tokio::test]
async fn unused_rows_are_removed() {
    let url = server().url();
    let client = Client::connect(&url).await.unwrap();
    let _held = client.mutex("held").acquire().await.unwrap();
    let sql = |statement: &str| server().sql(database(&url), statement);
    sql("INSERT INTO lockkeeper_lock (key, fence, token, since, until) VALUES
           ('idle', 1, '', now() - interval '31 days', NULL), ('used', 1, '', now(), NULL),
           ('forgotten', 1, NULL, now() - interval '31 days', NULL),
           ('expired', 1, 't', now() - interval '31 days', now() - interval '30 days'),
           ('line', 1, NULL, now() - interval '31 days', NULL);
         UPDATE lockkeeper_lock SET since = now() - interval '31 days' WHERE key = 'held';
         INSERT INTO lockkeeper_claim (key, token, owner, kind, take, permits, since, until, wake, who)
           VALUES ('gone', 't', 't', 'mutex', 1, 0, now(), now() - interval '1 hour', '', ''),
                  ('line', 't', 't', 'mutex', 1, 0, now(), now() + interval '1 hour', '', '');
         INSERT INTO lockkeeper_bound VALUES ('idle', 1, 1, now() - interval '31 days'), ('used', 2, 1, now());
         INSERT INTO lockkeeper_row VALUES ('idle'), ('used');
         SELECT lockkeeper_sweep()");
    assert_eq!(
        sql("SELECT string_agg(key, ' ' ORDER BY key) FROM lockkeeper_lock"),
        "held line used"
    );
    assert_eq!(sql("SELECT string_agg(key, ' ') FROM lockkeeper_claim"), "line");
    assert_eq!(sql("SELECT string_agg(key, ' ') FROM lockkeeper_row"), "used");
    assert_eq!(sql("SELECT string_agg(key, ' ') FROM lockkeeper_bound"), "used");
    // A few at a time, however many keys there are: each has its turn, except for those in use.
    sql("INSERT INTO lockkeeper_lock (key, fence, token, since)
           SELECT 'many ' || n, 1, '', now() - interval '31 days' FROM generate_series(1, 2500) n;
         INSERT INTO lockkeeper_bound SELECT 'many ' || n, n + 10, 1, now() - interval '31 days'
           FROM generate_series(1, 1500) n");
    let rest =
        "SELECT count(*) || ' ' || (SELECT count(*) FROM lockkeeper_bound) FROM lockkeeper_lock";
    let rests: Vec<_> = (0..3)
        .map(|_| {
            sql("SELECT lockkeeper_sweep()");
            sql(rest)
        })
        .collect();
    assert_eq!(rests, ["1503 501", "503 1", "3 1"]);
    // A table of ten thousand pages, of which a thousand are a tenth.
    let part = sql("UPDATE pg_class SET relpages = 10000 WHERE relname = 'lockkeeper_lock';
                    SELECT lockkeeper_part('lockkeeper_lock')");
    assert_eq!(part.lines().last(), Some("10"));
}

/// Clients rely on the row of a lock for the state of its queue, without reading the queue: so it
/// must never be wrong.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lock_says_about_its_queue_is_always_true() {
    let url = server().url();
    let sql = |statement: &str| server().sql(database(&url), statement);
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let client = Client::connect(&url).await.unwrap();
        tasks.spawn(async move {
            for _ in 0..25 {
                let key = if fastrand::bool() { "one" } else { "other" };
                let lock = if fastrand::bool() { client.read(key) } else { client.write(key) };
                match fastrand::u8(..8) {
                    0 => drop(client.break_lock(key).await.unwrap()),
                    1..4 => drop(lock.try_acquire().await.unwrap()),
                    _ => drop(lock.acquire().await.unwrap()),
                }
            }
            for key in ["one", "other"] {
                client.write(key).acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    let wrong = "SELECT count(*) FROM lockkeeper_lock JOIN lockkeeper_claim USING (key)
                 WHERE lockkeeper_lock.token IS NOT NULL";
    while !tasks.is_empty() {
        assert_eq!(sql(wrong), "0");
        while let Some(task) = tasks.try_join_next() {
            task.unwrap();
        }
    }
    assert_eq!(sql("SELECT count(*) FROM lockkeeper_lock WHERE token = ''"), "2");
}

/// A waiter moves the holder from the lock's row to the queue in the very moment in which it
/// renews.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_finds_its_holder_wherever_it_is_moved() {
    let url = server().url();
    Client::connect(&url).await.unwrap();
    let connect = async || sqlx::PgConnection::connect(&url).await.unwrap();
    let (mut holder, mut waiter) = (connect().await, connect().await);
    for round in 0..300 {
        let key = format!("key {round}");
        let attempt = "SELECT granted FROM lockkeeper_attempt(
                         $1, $2, $2, 'mutex', 1, 0, 60000000, 5000000, 'channel', 'who', NULL)";
        let held = sqlx::query_scalar::<_, bool>(attempt).bind(&key).bind("holder");
        assert!(held.fetch_one(&mut holder).await.unwrap());
        let waiting = sqlx::query_scalar::<_, bool>(attempt).bind(&key).bind("waiter");
        let renewing =
            sqlx::query_scalar("SELECT lockkeeper_renew(ARRAY[$1], '{holder}', '{60000000}')");
        let (renewed, granted): (Vec<String>, _) = tokio::try_join!(
            renewing.bind(&key).fetch_all(&mut holder),
            waiting.fetch_one(&mut waiter)
        )
        .unwrap();
        assert!(renewed == ["holder"] && !granted, "round {round}: {renewed:?}, {granted}");
    }
}

/// Random queues, each under its own key, on which the database and the library must agree.
#[tokio::test]
async fn the_rule_in_the_database_is_the_rule_of_the_library() {
    let url = server().url();
    Client::connect(&url).await.unwrap();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut insert = String::from(
        "INSERT INTO lockkeeper_claim
           (key, token, owner, kind, take, permits, fence, since, until, wake, who)
         VALUES ",
    );
    let mut expected = Vec::new();
    for n in 0..300 {
        let semaphore = random.bool();
        let queue: Vec<_> = (0..random.usize(1..8))
            .map(|_| Queued {
                owner: random.u32(0..4),
                mode: match (semaphore, random.u8(0..3)) {
                    (true, take) => Mode::Permits { take: u32::from(take) + 1, limit: 4 },
                    (false, 0) => Mode::Mutex,
                    (false, 1) => Mode::Write,
                    (false, _) => Mode::Read,
                },
                granted: random.u8(0..3) == 0,
            })
            .collect();
        for (i, place) in queue.iter().enumerate() {
            let (take, limit) = match place.mode {
                Mode::Permits { take, limit } => (take, limit),
                _ => (1, 0),
            };
            let fence = if place.granted { "1" } else { "NULL" };
            let (kind, owner) = (place.mode.kind(), place.owner);
            write!(
                insert,
                "('{n:03}', '{i}', '{owner}', '{kind}', {take}, {limit}, {fence}, now(), now(), '', ''),"
            )
            .unwrap();
            if !place.granted {
                expected.push((admission::turn(&queue, i) == Turn::In).to_string());
            }
        }
    }
    insert.pop();
    server().sql(database(&url), &insert);
    let told = server().sql(
        database(&url),
        "SELECT CASE WHEN lockkeeper_turn(key, token, place, owner, kind, take, permits)
           THEN 'true' ELSE 'false' END
         FROM lockkeeper_claim WHERE fence IS NULL ORDER BY key, place",
    );
    let told: Vec<_> = told.lines().collect();
    assert!(expected.iter().any(|turn| turn == "true") && expected.len() > 100);
    assert_eq!(told, expected, "seed {seed}");
}
