//! Uncontended locks: what their cycle sends, and what happens to the fast path when the server
//! crashes, has no room, or another client arrives.

use std::time::Duration;

use lockkeeper::{Client, Error, Release};
use lockkeeper_testkit::server::Mariadb;
use sqlx::{Connection, MySqlConnection, Row};

use super::{LEASE, database, numbers, server, strategy};

/// Longer than any wait: such a lock is not freed by expiring, and it is never renewed.
const LONG: Duration = Duration::from_secs(900);

/// How long something immediate may take on a busy machine.
const SOON: Duration = Duration::from_secs(30);

async fn status(wire: &mut MySqlConnection, name: &str) -> u64 {
    let row = sqlx::query("SHOW GLOBAL STATUS WHERE Variable_name = ?").bind(name);
    let text: String = row.fetch_one(wire).await.unwrap().get(1);
    text.parse().unwrap()
}

#[tokio::test]
async fn a_cycle_is_one_durable_write_and_one_entry_in_memory() {
    const CYCLES: u64 = 40;
    let server = Mariadb::start();
    for (way, statements) in [
        ("lease", ["Com_update_multi", "Com_replace"]),
        ("named", ["Com_insert_select", "Com_select"]),
    ] {
        let url = server.url();
        let client = Client::connect(strategy(&url, way)).await.unwrap();
        client.mutex("key").acquire().await.unwrap().release().await.unwrap();
        let mut wire = MySqlConnection::connect(&url).await.unwrap();
        let mut sent = Vec::new();
        for name in statements {
            sent.push(status(&mut wire, name).await);
        }
        let called = status(&mut wire, "Com_call_procedure").await;
        let mut written = 0;
        for _ in 0..CYCLES {
            let guard = client.mutex("key").acquire().await.unwrap();
            let so_far = status(&mut wire, "Innodb_log_writes").await;
            assert_eq!(guard.release().await.unwrap(), Release::Released);
            written += status(&mut wire, "Innodb_log_writes").await - so_far;
        }
        // Now and then a procedure is called for the cleanup.
        let called = status(&mut wire, "Com_call_procedure").await - called;
        assert!(called < CYCLES / 4, "{way}: {called} procedures");
        if called == 0 {
            for (name, before) in std::iter::zip(statements, sent) {
                assert_eq!(status(&mut wire, name).await - before, CYCLES, "{way}: {name}");
            }
        }
        // The server writes by itself as well, about once a second.
        assert!(written < CYCLES / 2, "{way}: {CYCLES} releases wrote {written} times to the log");
    }
}

#[tokio::test]
async fn a_binary_log_changes_nothing() {
    let mut settings = vec!["log-bin=binary", "server-id=1", "binlog-format=MIXED"];
    if server().is_mysql() {
        // Such a server refuses a transaction that also writes to tables in memory.
        settings.extend(["gtid-mode=ON", "enforce-gtid-consistency=ON"]);
    }
    let server = Mariadb::with(&settings);
    for way in ["lease", "named", "row"] {
        let url = strategy(&server.url(), way);
        let (one, other) =
            (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
        let mut fence = None;
        for _ in 0..2 {
            for client in [&one, &other, &other] {
                let guard = client.mutex("key").ttl(LONG).acquire_within(SOON).await.unwrap();
                assert!(fence < Some(guard.fence()), "{way}");
                fence = Some(guard.fence());
                assert_eq!(guard.release().await.unwrap(), Release::Released, "{way}");
            }
        }
        let guard = one.mutex("key").ttl(LONG).acquire_within(SOON).await.unwrap();
        assert_eq!(other.break_lock("key").await.unwrap().len(), 1, "{way}");
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost, "{way}");
    }
}

#[tokio::test]
async fn a_release_that_a_crash_forgot_costs_its_lease_and_nothing_else() {
    let server = Mariadb::start();
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    let _held = client.mutex("held").ttl(LONG).acquire().await.unwrap();
    let short = client.mutex("short").ttl(LEASE).acquire().await.unwrap();
    let long = client.mutex("long").ttl(LONG).acquire().await.unwrap();
    let fences = [short.fence(), long.fence()];
    short.release().await.unwrap();
    long.release().await.unwrap();
    let marks = || server.sql(database(&url), "SELECT COUNT(*) FROM lockkeeper_freed");
    assert_eq!(marks(), "3");
    server.kill();
    server.restart();
    assert_eq!(server.sql(database(&url), "SELECT COUNT(*) FROM lockkeeper_freed"), "0");
    let other = Client::connect(&url).await.unwrap();
    for key in ["held", "long"] {
        assert!(other.mutex(key).try_acquire().await.unwrap().is_none(), "{key}");
    }
    let next = other.mutex("short").acquire_within(SOON).await.unwrap();
    assert!(next.fence() > fences[0]);
    // The client that released it knows that it did.
    let again = client.mutex("long").acquire_within(SOON).await.unwrap();
    assert!(again.fence() > fences[1]);
}

#[tokio::test]
async fn a_release_for_which_memory_has_no_room_goes_to_the_disk() {
    let url = server().url();
    let sql = |statement: &str| server().sql(database(&url), statement);
    let (one, other) = (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    let mut wire = MySqlConnection::connect(&url).await.unwrap();
    let small = "SET max_heap_table_size = 16384; ALTER TABLE lockkeeper_freed ENGINE = MEMORY";
    sqlx::raw_sql(small).execute(&mut wire).await.unwrap();
    let fill = format!(
        "INSERT INTO lockkeeper_freed SELECT UNHEX(SHA2(seq, 256)), 'somebody', '2100-01-01' FROM {}",
        numbers(10_000)
    );
    let full = sqlx::raw_sql(sqlx::AssertSqlSafe(fill)).execute(&mut wire).await.unwrap_err();
    assert!(full.to_string().contains("is full"), "{full}");
    for _ in 0..2 {
        for client in [&one, &other] {
            let guard = client.mutex("key").ttl(LONG).acquire_within(SOON).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), Release::Released);
        }
    }
    assert_eq!(sql("SELECT COUNT(*) FROM lockkeeper_freed WHERE token <> 'somebody'"), "0");
    // It keeps checking whether there is room by now.
    sql("DELETE FROM lockkeeper_freed");
    one.mutex("key").ttl(LONG).acquire_within(SOON).await.unwrap().release().await.unwrap();
    assert_eq!(sql("SELECT COUNT(*) FROM lockkeeper_freed"), "1");
}

#[tokio::test]
async fn the_release_of_a_broken_lock_reports_that_it_was_gone() {
    let url = server().url();
    let (one, other) = (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    for _ in 0..3 {
        let guard = one.mutex("key").ttl(LONG).acquire_within(SOON).await.unwrap();
        assert_eq!(other.break_lock("key").await.unwrap().len(), 1);
        assert!(other.inspect("key").await.unwrap().is_none());
        let next = other.mutex("key").ttl(LONG).acquire_within(SOON).await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
        assert!(one.mutex("key").try_acquire().await.unwrap().is_none());
        assert_eq!(next.release().await.unwrap(), Release::Released);
    }
}

/// The waiter has locked the lock's row before the renewal arrives, behind the guarded transaction. Renewals
/// go on beside the statements of the test.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_renewed_while_others_wait_for_a_guarded_transaction() {
    let url = server().url();
    let (one, other) = (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    let guard = one.mutex("key").ttl(LEASE * 2).acquire().await.unwrap();
    let mut transaction = MySqlConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("START TRANSACTION").execute(&mut transaction).await.unwrap();
    let guarding = sqlx::query("CALL lockkeeper_guard('key', ?)").bind(guard.fence().get());
    guarding.execute(&mut transaction).await.unwrap();
    let waiting = tokio::spawn(other.mutex("key").ttl(LEASE).acquire());
    let renewals = "SELECT COUNT(*) FROM lockkeeper_claim WHERE name = 'key'
                      AND until > UTC_TIMESTAMP(6) AND since < UTC_TIMESTAMP(6) - INTERVAL 7 SECOND";
    while server().sql(database(&url), renewals) == "0" {
        guard.check().unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!waiting.is_finished());
    sqlx::raw_sql("COMMIT").execute(&mut transaction).await.unwrap();
    let fence = guard.fence();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let next = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.fence() > fence);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lock_is_free_for_everyone_when_it_is_released() {
    let url = server().url();
    let (one, other) = (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    let guard = one.mutex("key").ttl(LEASE * 2).acquire().await.unwrap();
    let copies = || server().sql(database(&url), "SELECT COUNT(*) FROM lockkeeper_claim");
    while copies() == "0" {
        guard.check().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(other.inspect("key").await.unwrap().unwrap().holders.len(), 1);
    assert!(other.mutex("key").try_acquire().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(copies(), "0");
    for client in [&one, &other, &one] {
        let next = client.mutex("key").ttl(LONG).try_acquire().await.unwrap().unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn two_clients_by_turns_find_what_the_other_gave_back() {
    const KEY: &str = "Schlüssel 🔒";
    let url = server().url();
    let (one, other) = (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    let mut fence = None;
    for n in 0..12 {
        // Sometimes a client comes twice, and then uses the fast path.
        let (client, stranger) = if n % 3 == 0 { (&one, &other) } else { (&other, &one) };
        let guard = client.mutex(KEY).ttl(LONG).try_acquire().await.unwrap().unwrap();
        assert!(fence < Some(guard.fence()));
        fence = Some(guard.fence());
        assert!(stranger.mutex(KEY).try_acquire().await.unwrap().is_none());
        let clash = stranger.semaphore(KEY, 2).try_acquire().await.unwrap_err();
        assert!(matches!(clash, Error::Conflict { .. }), "{clash}");
        let seen = stranger.inspect(KEY).await.unwrap().unwrap();
        assert_eq!(seen.holders[0].fence, fence);
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert!(stranger.inspect(KEY).await.unwrap().is_none());
    }
}

/// A waiter moves the holder from the lock's row to the queue in the very moment in which it
/// renews.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_finds_its_holder_wherever_it_is_moved() {
    let url = server().url();
    Client::connect(&url).await.unwrap();
    let connect = async || {
        let mut wire = MySqlConnection::connect(&url).await.unwrap();
        let settings = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
                        SET SESSION time_zone = '+00:00'";
        sqlx::raw_sql(settings).execute(&mut wire).await.unwrap();
        wire
    };
    let (mut holder, mut waiter) = (connect().await, connect().await);
    for round in 0..300 {
        let key = format!("key {round}");
        let attempt = "CALL lockkeeper_attempt(
                         ?, ?, ?, 'mutex', 1, 0, 60000000, 5000000, TRUE, 'who', NULL)";
        let token = format!("holder {round}");
        let other = format!("waiter {round}");
        let asking = |who| sqlx::query(attempt).bind(key.as_bytes()).bind(who).bind(who);
        let held = asking(token.as_bytes()).fetch_all(&mut holder).await.unwrap();
        assert!(held[0].get::<Option<i64>, _>("fence").is_some());
        let hexadecimal: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
        let leases = format!(r#"[{{"t":"{token}","u":60000000,"k":"{hexadecimal}"}}]"#);
        // A deadlock is retried, as the library does.
        let (renewed, waited) = loop {
            let renewing = sqlx::query_scalar::<_, String>("CALL lockkeeper_renew(?)");
            let both = tokio::join!(
                renewing.bind(&leases).fetch_all(&mut holder),
                asking(other.as_bytes()).fetch_all(&mut waiter)
            );
            match both {
                (Ok(renewed), Ok(waited)) => break (renewed, waited),
                (Err(error), _) | (_, Err(error)) => {
                    let code = error.as_database_error().and_then(|error| error.code());
                    assert_eq!(code.as_deref(), Some("40001"), "round {round}: {error}");
                }
            }
        };
        let granted = waited[0].get::<Option<i64>, _>("fence");
        assert!(renewed == [token] && granted.is_none(), "round {round}: {renewed:?}, {granted:?}");
    }
}
