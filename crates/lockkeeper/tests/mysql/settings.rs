//! Unusual settings of the server: none of them changes the behaviour of a lock.

use std::time::Duration;

use lockkeeper::Client;
use lockkeeper::engine::Severity;
use lockkeeper_testkit::server::Mariadb;
use tokio::time::timeout;

use super::{LEASE, server, strategy};

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
            "sql-mode=ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE",
        ],
        // In this mode an empty string is null.
        false => vec![
            "max-statement-time=1",
            "lower-case-table-names=1",
            "sql-mode=ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,ORACLE,EMPTY_STRING_IS_NULL",
        ],
    };
    odd.extend(modes);
    let server = Mariadb::with(&odd);
    let mut trials = tokio::task::JoinSet::new();
    for way in ["lease", "named", "row"] {
        let place = strategy(&server.url(), way);
        trials.spawn(async move { trial(&place).await });
    }
    trials.join_all().await;
}

/// A client holds for longer than any of the timeouts, and another one waits as long.
async fn trial(place: &str) {
    let connect = async || Client::connect(place).await.unwrap_or_else(|e| panic!("{place}: {e}"));
    let (one, other) = (connect().await, connect().await);
    let guard = one.mutex("it's \\ Größe").ttl(LEASE).acquire().await.unwrap();
    assert!(other.mutex("it's \\ Größe").try_acquire().await.unwrap().is_none(), "{place}");
    let another = other.mutex("IT'S \\ GRÖSSE").try_acquire().await.unwrap();
    assert!(another.is_some(), "{place}: another key, whatever the collation");
    let waiting = tokio::spawn(other.mutex("it's \\ Größe").ttl(LEASE).acquire());
    let lost = timeout(LEASE + Duration::from_secs(1), guard.lost()).await;
    assert!(lost.is_err(), "{place}: {lost:?}");
    let shown = one.inspect("it's \\ Größe").await.unwrap().unwrap();
    let age = shown.holders[0].since.unwrap().elapsed().unwrap();
    assert!(age > LEASE && age < LEASE * 20, "{place}: held for {age:?}");
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap_or_else(|error| panic!("{place}: {error}"));
    assert!(next.fence() > fence, "{place}");
    next.release().await.unwrap();
    let findings = one.doctor().await.unwrap();
    assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{place}: {findings:?}");
}
