//! Settings of the server or the user that are not the usual ones: none of them changes what a lock is.

use std::time::Duration;

use lockkeeper::Client;
use lockkeeper::engine::Severity;
use lockkeeper_testkit::server::{Pgbouncer, Postgres};
use tokio::time::timeout;

use super::{LEASE, database, strategy};

const SECOND: Duration = Duration::from_secs(1);

/// What an administrator may set for everyone who uses a database.
const ODD: [&str; 16] = [
    "default_transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_read_only = on",
    "default_transaction_deferrable = on",
    "statement_timeout = '1s'",
    "lock_timeout = '500ms'",
    "idle_session_timeout = '1s'",
    "idle_in_transaction_session_timeout = '1s'",
    "synchronous_commit = off",
    "standard_conforming_strings = off",
    "search_path = own, public",
    "timezone = 'Europe/Berlin'",
    "datestyle = 'German'",
    "row_security = off",
    "plpgsql.variable_conflict = use_column",
    "transaction_timeout = '1s'",
];

#[tokio::test]
async fn odd_settings_of_a_database_are_harmless() {
    let server = Postgres::start();
    let modes = "pool_mode = transaction\nserver_idle_timeout = 1";
    let pooler = Pgbouncer::start(&server, modes);
    let mut trials = tokio::task::JoinSet::new();
    let has = |name: &str| {
        let asking = format!("SELECT current_setting('{name}', true) IS NOT NULL");
        name.contains('.') || server.sql("postgres", &asking) == "t"
    };
    // Servers before PostgreSQL 17 do not have the last.
    let odd = ODD.iter().filter(|setting| has(setting.split(' ').next().expect("it has a name")));
    for setting in odd {
        for way in ["lease", "advisory", "row", "pooled"] {
            // Strategies do not know each other, so each has a database.
            let url = server.url();
            let name = database(&url);
            server.sql(name, &format!("CREATE SCHEMA own; ALTER DATABASE {name} SET {setting}"));
            let place = match way {
                "pooled" => pooler.through(&server, &url),
                way => strategy(&url, way),
            };
            trials.spawn(async move { trial(&place, setting, LEASE + SECOND).await });
        }
    }
    trials.join_all().await;
}

/// Summer time begins while a lock is held, and ends again.
#[tokio::test]
async fn clocks_that_are_put_forward_and_back_are_harmless() {
    let server = Postgres::start();
    let pooler = Pgbouncer::start(&server, "pool_mode = transaction");
    // A POSIX time zone: the day and the time of the change, each in the time that ends then.
    let rule = server.sql(
        "postgres",
        "SELECT to_char(forward, 'DDD')::integer - 1 || to_char(forward, '/HH24:MI:SS,')
             || to_char(back, 'DDD')::integer - 1 || to_char(back, '/HH24:MI:SS')
         FROM (SELECT t + interval '5 s' AS forward, t + interval '1 hour 10 s' AS back
               FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS t) AS now) AS changes",
    );
    let setting = format!("timezone = 'LKS0LKD-1,{rule}'");
    let mut trials = tokio::task::JoinSet::new();
    for way in ["lease", "advisory", "row", "pooled"] {
        let url = server.url();
        let name = database(&url);
        server.sql(name, &format!("ALTER DATABASE {name} SET {setting}"));
        let offset = "SELECT max(extract(timezone FROM clock_timestamp() + n * interval '1 s'))
                      FROM generate_series(-600, 20) AS n";
        assert_eq!(server.sql(name, offset).split('.').next(), Some("3600"), "{setting}");
        let place = match way {
            "pooled" => pooler.through(&server, &url),
            way => strategy(&url, way),
        };
        let setting = setting.clone();
        trials.spawn(async move { trial(&place, &setting, 11 * SECOND).await });
    }
    trials.join_all().await;
}

/// A client holds the lock for a while, longer than any of the timeouts, and another one waits as
/// long.
async fn trial(place: &str, setting: &str, hold: Duration) {
    let what = format!("{setting} at {place}");
    let connect = async || Client::connect(place).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let (one, other) = (connect().await, connect().await);
    let guard = one.mutex("it's \\ here").ttl(LEASE).acquire().await.unwrap();
    assert!(other.mutex("it's \\ here").try_acquire().await.unwrap().is_none(), "{what}");
    let waiting = tokio::spawn(other.mutex("it's \\ here").ttl(LEASE).acquire());
    let lost = timeout(hold, guard.lost()).await;
    assert!(lost.is_err(), "{what}: {lost:?}");
    let shown = one.inspect("it's \\ here").await.unwrap();
    let shown = shown.unwrap_or_else(|| panic!("{what}: it is not seen"));
    let since = shown.holders[0].since.unwrap_or_else(|| panic!("{what}: {shown:?}"));
    let age = since.elapsed().unwrap();
    assert!(age > LEASE && age < LEASE * 20, "{what}: held for {age:?}");
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(next.fence() > fence, "{what}");
    next.release().await.unwrap();
    let findings = one.doctor().await.unwrap();
    assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{what}: {findings:?}");
}
