//! Unusual settings of the server: none of them changes the behaviour of a lock.

use std::time::Duration;

use lockkeeper::Client;
use lockkeeper::engine::Severity;
use lockkeeper_testkit::server::Mariadb;
use tokio::time::timeout;

use super::{LEASE, server, strategy};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn odd_settings_of_a_server_are_harmless() {
    let mut odd = vec![
        "autocommit=0",
        "transaction-isolation=SERIALIZABLE",
        "default-time-zone=+13:00",
        "innodb-lock-wait-timeout=1",
        "lock-wait-timeout=1",
        "net-read-timeout=1",
        "character-set-server=latin1",
        "innodb-flush-log-at-trx-commit=2",
    ];
    let modes = match server().is_mysql() {
        true => vec![
            "max-execution-time=1000",
            "sql-require-primary-key=ON",
            "disabled-storage-engines=MEMORY",
            "sql-mode=ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE",
        ],
        // In this mode an empty string is null.
        false => vec![
            "max-statement-time=1",
            "lower-case-table-names=1",
            "enforce-storage-engine=InnoDB",
            "sql-mode=ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,ORACLE,EMPTY_STRING_IS_NULL",
        ],
    };
    odd.extend(modes);
    let server = Mariadb::with(&odd);
    let mut trials = tokio::task::JoinSet::new();
    for way in ["lease", "named", "row"] {
        let place = strategy(&server.url(), way);
        trials.spawn(async move { trial(&place, LEASE, LEASE + SECOND).await });
    }
    trials.join_all().await;
}

/// Defaults of sessions that change what a statement does, or that a statement does anything.
#[tokio::test]
async fn odd_defaults_of_sessions_are_harmless() {
    let mut odd = vec![
        "TRANSACTION READ ONLY",
        "sql_select_limit = 1",
        "sql_safe_updates = ON",
        "max_join_size = 1",
        "sql_auto_is_null = ON",
        "unique_checks = OFF",
        "foreign_key_checks = OFF",
    ];
    if !server().is_mysql() {
        odd.extend([
            "idle_transaction_timeout = 1",
            "idle_write_transaction_timeout = 1",
            "idle_readonly_transaction_timeout = 1",
        ]);
    }
    // After a commit, the server begins another transaction, or closes the connection.
    let mut trials = tokio::task::JoinSet::new();
    let servers = ["CHAIN", "RELEASE"].map(|completion| {
        let server = Mariadb::start();
        let urls = [server.url(), server.url(), server.url()];
        let defaults = odd.iter().map(|setting| format!("SET GLOBAL {setting};"));
        let last = format!("SET GLOBAL completion_type = '{completion}'");
        server.sql("mysql", &(defaults.collect::<String>() + &last));
        for (url, way) in urls.iter().zip(["lease", "named", "row"]) {
            let place = strategy(url, way);
            // A session is silent for a third of the ttl: longer than the server allows.
            trials.spawn(async move { trial(&place, 2 * LEASE, 3 * LEASE).await });
        }
        server
    });
    trials.join_all().await;
    drop(servers);
}

/// Summer time begins while a lock is held, and ends again.
#[tokio::test]
async fn clocks_that_are_put_forward_and_back_are_harmless() {
    let server = Mariadb::start();
    let places = ["lease", "named", "row"].map(|way| strategy(&server.url(), way));
    let offset = server.sql(
        "mysql",
        "INSERT INTO time_zone VALUES (1, 'N');
         INSERT INTO time_zone_name VALUES ('Here', 1);
         INSERT INTO time_zone_transition_type VALUES (1, 0, 0, 0, 'winter'), (1, 1, 3600, 1, 'summer');
         SET @now = UNIX_TIMESTAMP();
         INSERT INTO time_zone_transition VALUES (1, 0, 0), (1, @now + 5, 1), (1, @now + 10, 0);
         SET GLOBAL time_zone = 'Here';
         SET time_zone = '+00:00', @summer = FROM_UNIXTIME(@now + 7);
         SELECT TIMEDIFF(CONVERT_TZ(@summer, '+00:00', 'Here'), @summer)",
    );
    assert!(offset.starts_with("01:00:00"), "{offset}");
    let mut trials = tokio::task::JoinSet::new();
    for place in places {
        trials.spawn(async move { trial(&place, LEASE, 11 * SECOND).await });
    }
    trials.join_all().await;
}

/// A client holds for a while, longer than any of the timeouts, and another one waits as long.
async fn trial(place: &str, ttl: Duration, hold: Duration) {
    let connect = async || Client::connect(place).await.unwrap_or_else(|e| panic!("{place}: {e}"));
    let (one, other) = (connect().await, connect().await);
    let guard = one.mutex("it's \\ Größe").ttl(ttl).acquire().await.unwrap();
    assert!(other.mutex("it's \\ Größe").try_acquire().await.unwrap().is_none(), "{place}");
    let another = other.mutex("IT'S \\ GRÖSSE").try_acquire().await.unwrap();
    assert!(another.is_some(), "{place}: another key, whatever the collation");
    let waiting = tokio::spawn(other.mutex("it's \\ Größe").ttl(ttl).acquire());
    let lost = timeout(hold, guard.lost()).await;
    assert!(lost.is_err(), "{place}: {lost:?}");
    let shown = one.inspect("it's \\ Größe").await.unwrap().unwrap();
    let age = shown.holders[0].since.unwrap().elapsed().unwrap();
    assert!(age > LEASE && age < LEASE * 20, "{place}: held for {age:?}");
    let fence = guard.fence();
    let listed = one.list("").await.unwrap();
    let listed: Vec<_> = listed.iter().map(|lock| lock.key.as_str()).collect();
    assert_eq!(listed, ["IT'S \\ GRÖSSE", "it's \\ Größe"], "{place}");
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap_or_else(|error| panic!("{place}: {error}"));
    assert!(next.fence() > fence, "{place}");
    next.release().await.unwrap();
    let findings = one.doctor().await.unwrap();
    assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{place}: {findings:?}");
}
