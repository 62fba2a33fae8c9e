//! PostgreSQL: every case of the test kit for every strategy, and what only such a server can suffer.

use std::fmt::Write;
use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper::backend::{Mode, Severity};
use lockkeeper::queue::{self, Place, Turn};
use lockkeeper::{Client, Error, Loss, Release};

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::database::postgres::Postgres;

/// One server for all tests here; each has a database of its own.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// Long enough that a busy machine does not end a lease by accident.
const LEASE: Duration = Duration::from_secs(3);

conformance!(lease, Store::at(server().url()).ttl(LEASE));

conformance!(advisory, Store::at(format!("{}?strategy=advisory", server().url())).ttl(LEASE));

fn strategy(url: &str, strategy: &str) -> String {
    format!("{url}?strategy={strategy}")
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("it names one")
}

/// Ends every connection of lockkeeper to a database.
fn end_connections(server: &Postgres, url: &str) {
    let ended = server.psql(
        database(url),
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    assert_ne!(ended, "0", "there was nothing to end");
}

#[tokio::test]
async fn a_lease_outlives_the_connections_of_its_client() {
    let url = server().url();
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
    let waiting = tokio::spawn(client.mutex("key").acquire());
    end_connections(server(), &url);
    tokio::time::sleep(LEASE * 2).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_bound_lock_is_lost_with_its_connection_and_its_holder_is_told() {
    let url = server().url();
    let advisory = strategy(&url, "advisory");
    let client = Client::connect(&advisory).await.unwrap();
    let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
    end_connections(server(), &url);
    let next = Client::connect(&advisory).await.unwrap().mutex("key").acquire().await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(tokio::time::timeout(LEASE, guard.lost()).await.unwrap(), Loss::Gone);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    next.check().unwrap();
}

#[tokio::test]
async fn a_server_that_crashed_remembers_leases_and_fences() {
    let mut server = Postgres::start();
    let url = server.url();
    let long = Duration::from_secs(60);
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("held").ttl(long).acquire().await.unwrap();
    let guard_fence = guard.fence();
    let free = client.mutex("free").acquire().await.unwrap();
    let before = free.fence();
    free.release().await.unwrap();
    let bound = Client::connect(strategy(&url, "advisory")).await.unwrap();
    let lost = bound.mutex("bound").ttl(LEASE).acquire().await.unwrap();
    server.crash();
    assert!(tokio::time::timeout(LEASE, lost.lost()).await.is_ok(), "not told within its lease");
    server.resume_service();
    guard.check().unwrap();
    let other = Client::connect(&url).await.unwrap();
    assert!(other.mutex("held").try_acquire().await.unwrap().is_none());
    assert!(other.mutex("free").acquire().await.unwrap().fence() > before);
    let again = bound.mutex("bound").acquire().await.unwrap();
    assert!(again.fence() > lost.fence());
    assert_eq!(guard.release().await.unwrap(), Release::Unconfirmed, "its connection was gone");
    let freed = other.mutex("held").acquire_within(Duration::from_secs(20)).await.unwrap();
    assert!(freed.fence() > guard_fence);
}

#[tokio::test]
async fn a_frozen_server_cannot_hide_a_loss() {
    let server = Postgres::start();
    let url = server.url();
    for place in [url.clone(), strategy(&url, "advisory")] {
        let client = Client::connect(&place).await.unwrap();
        let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
        server.freeze();
        let told = tokio::time::timeout(LEASE, guard.lost()).await;
        server.thaw();
        assert!(told.is_ok(), "{place}: not told within its lease");
        assert!(matches!(guard.check(), Err(Error::Lost { .. })));
        let next = client.mutex("key").acquire_within(Duration::from_secs(20)).await.unwrap();
        assert!(next.fence() > guard.fence());
    }
}

#[tokio::test]
async fn a_stale_holder_cannot_write_in_a_guarded_transaction() {
    let url = server().url();
    let sql = |statement: &str| server().psql(database(&url), statement);
    let client = Client::connect(&url).await.unwrap();
    sql(
        "CREATE TABLE orders (id int PRIMARY KEY, state text); INSERT INTO orders VALUES (42, 'new')",
    );
    let stale = client.mutex("orders/42").ttl(LEASE).acquire().await.unwrap();
    let write = |state: &str, fence: lockkeeper::Fence| {
        format!(
            "DO $$ BEGIN
               UPDATE orders SET state = '{state}' WHERE id = 42 AND lockkeeper_guard('orders/42', {fence});
             EXCEPTION WHEN SQLSTATE 'LK001' THEN INSERT INTO orders VALUES (0, 'refused {state}');
             END $$"
        )
    };
    sql(&write("paid", stale.fence()));
    client.break_lock("orders/42").await.unwrap();
    let next = client.mutex("orders/42").acquire().await.unwrap();
    sql(&write("sent", next.fence()));
    sql(&write("lost", stale.fence()));
    assert_eq!(sql("SELECT state FROM orders ORDER BY id"), "refused lost\nsent");
}

#[tokio::test]
async fn a_user_with_few_rights_can_do_everything() {
    let url = server().url();
    let name = format!("poor_{}", database(&url));
    Client::connect(&url).await.unwrap();
    server().psql(
        database(&url),
        &format!(
            "CREATE ROLE {name} LOGIN;
             GRANT SELECT, INSERT, UPDATE, DELETE ON lockkeeper_lock, lockkeeper_claim, lockkeeper_bound TO {name}"
        ),
    );
    let poor = url.replace("postgres@", &format!("{name}@"));
    for place in [format!("{poor}?create=no"), strategy(&poor, "advisory")] {
        let client = Client::connect(&place).await.unwrap();
        let guard = client.write("key").ttl(LEASE).acquire().await.unwrap();
        assert_eq!(client.break_lock("key").await.unwrap().len(), 1);
        assert_eq!(guard.lost().await, Loss::Gone);
        let findings = client.doctor().await.unwrap();
        assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{findings:?}");
    }
}

#[tokio::test]
async fn missing_tables_that_may_not_be_made_are_named() {
    let url = server().url();
    let error = Client::connect(format!("{url}?create=no")).await.unwrap_err().to_string();
    assert!(error.contains("docs/engines/postgres.md"), "{error}");
    let error = Client::connect(format!("{url}?strategy=hope")).await.unwrap_err().to_string();
    assert!(error.contains("lease, advisory"), "{error}");
}

#[tokio::test]
async fn a_server_that_refuses_us_is_an_error_without_our_password() {
    let url = format!("postgres://nobody:canary@127.0.0.1:{}/nowhere", server().port());
    let error = Client::connect(&url).await.unwrap_err();
    assert!(!error.is_retryable() && !format!("{error} {error:?}").contains("canary"), "{error:?}");
}

#[tokio::test]
async fn what_nobody_needs_is_swept_away() {
    let url = server().url();
    let client = Client::connect(&url).await.unwrap();
    let _held = client.mutex("held").acquire().await.unwrap();
    let sql = |statement: &str| server().psql(database(&url), statement);
    sql("INSERT INTO lockkeeper_lock VALUES ('idle', 1, now() - interval '31 days'), ('used', 1, now());
         UPDATE lockkeeper_lock SET used = now() - interval '31 days' WHERE key = 'held';
         INSERT INTO lockkeeper_claim (key, token, owner, kind, take, permits, since, until, wake, who)
           VALUES ('gone', 't', 't', 'mutex', 1, 0, now(), now() - interval '1 hour', '', '');
         SELECT lockkeeper_sweep()");
    assert_eq!(sql("SELECT string_agg(key, ' ' ORDER BY key) FROM lockkeeper_lock"), "held used");
    assert_eq!(sql("SELECT string_agg(key, ' ') FROM lockkeeper_claim"), "held");
}

/// Random lines, each under a key of its own, of which the database and the library must say the same.
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
        let line: Vec<_> = (0..random.usize(1..8))
            .map(|_| Place {
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
        for (i, place) in line.iter().enumerate() {
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
                expected.push((queue::turn(&line, i) == Turn::In).to_string());
            }
        }
    }
    insert.pop();
    server().psql(database(&url), &insert);
    let told = server().psql(
        database(&url),
        "SELECT CASE WHEN lockkeeper_turn(key, token, place, owner, kind, take, permits)
           THEN 'true' ELSE 'false' END
         FROM lockkeeper_claim WHERE fence IS NULL ORDER BY key, place",
    );
    let told: Vec<_> = told.lines().collect();
    assert!(expected.iter().any(|turn| turn == "true") && expected.len() > 100);
    assert_eq!(told, expected, "seed {seed}");
}
