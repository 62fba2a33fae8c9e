//! Behind PgBouncer: a pooler in session, transaction or statement mode.

use lockkeeper::engine::{Severity, Wakeup};
use lockkeeper::{Client, Mode};
use lockkeeper_testkit::server::{Dialect, Pgbouncer, Postgres, PostgresDialect};
use sqlx::Connection;
use tokio::time::timeout;

use super::{LEASE, database, strategy};

#[tokio::test]
async fn a_pooler_that_lends_by_session_is_as_good_as_the_server() {
    let server = Postgres::start();
    let url = server.url();
    let pooler = Pgbouncer::start(&server, "pool_mode = session");
    let through = pooler.through(&server, &url);
    for way in ["lease", "advisory", "row"] {
        let client = Client::connect(strategy(&through, way)).await.unwrap();
        let guard = client.mutex("key").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = Client::connect(strategy(&through, way)).await.unwrap().mutex("key");
            lock.acquire()
        });
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn leases_need_no_session_and_other_locks_are_refused_without_one() {
    for mode in ["transaction", "statement"] {
        let server = Postgres::start();
        let url = server.url();
        let pooler = Pgbouncer::start(&server, &format!("pool_mode = {mode}"));
        let through = pooler.through(&server, &url);
        let (one, other) = (connect(&through).await, connect(&through).await);
        assert_eq!(one.guarantees().wakeup, Wakeup::BackOff, "nobody can be notified");
        let guard = one.mutex("it's \\ $1").ttl(LEASE).note("it's \\ $1").acquire().await.unwrap();
        let waiting = tokio::spawn(other.mutex("it's \\ $1").ttl(LEASE).acquire());
        let snapshot = loop {
            let snapshot = one.inspect("it's \\ $1").await.unwrap().unwrap();
            if snapshot.waiters.as_ref().is_some_and(|waiters| !waiters.is_empty()) {
                break snapshot;
            }
        };
        assert_eq!(snapshot.holders[0].note.as_deref(), Some("it's \\ $1"));
        let fence = guard.fence();
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.fence() > fence);
        let broken = one.break_lock_because("it's \\ $1", "it's \\ $2").await.unwrap();
        assert_eq!(broken[0].mode, Mode::Mutex);
        assert!(guard.lost().await.to_string().ends_with(": it's \\ $2"));
        let findings = one.doctor().await.unwrap();
        assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{findings:?}");
        assert!(findings.iter().any(|f| f.what.contains("by transaction")), "{findings:?}");
        for way in ["advisory", "row"] {
            let error = Client::connect(strategy(&through, way)).await.unwrap_err().to_string();
            assert!(error.contains("strategy=lease") && error.contains("connect past"), "{error}");
        }
    }
}

/// Clients with and without the pooler setting share a lock, and those that bypass it are notified.
#[tokio::test]
async fn clients_before_and_behind_a_pooler_share_a_lock() {
    let server = Postgres::start();
    let url = server.url();
    let pooler = Pgbouncer::start(&server, "pool_mode = transaction");
    let through = format!("{}?pooler=transaction", pooler.through(&server, &url));
    let (direct, pooled) = (connect(&url).await, connect(&through).await);
    for (first, second) in [(&direct, &pooled), (&pooled, &direct)] {
        let guard = first.mutex("key").ttl(LEASE).acquire().await.unwrap();
        assert!(second.mutex("key").try_acquire().await.unwrap().is_none());
        let waiting = tokio::spawn(second.mutex("key").ttl(LEASE).acquire());
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// Others use the same server processes: they find no setting and no statement of ours there.
#[tokio::test]
async fn nothing_is_left_in_connections_that_others_borrow_next() {
    let server = Postgres::start();
    let url = server.url();
    let pooler = Pgbouncer::start(&server, "pool_mode = transaction\ndefault_pool_size = 1");
    let client = connect(&pooler.through(&server, &url)).await;
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    client.doctor().await.unwrap();
    let look = "SELECT current_setting('enable_seqscan'), current_setting('synchronous_commit'),
                  current_setting('default_transaction_isolation'),
                  (SELECT count(*) FROM pg_prepared_statements),
                  (SELECT count(*) FROM pg_listening_channels())";
    let borrowed = PostgresDialect::client(pooler.port(), database(&url), look).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&borrowed.stdout), "on|on|read committed|0|0\n");
}

#[tokio::test]
async fn a_lease_outlives_a_restart_of_the_server_behind_the_pooler() {
    for mode in ["transaction", "statement", "session"] {
        let server = Postgres::start();
        let url = server.url();
        let pooler = Pgbouncer::start(&server, &format!("pool_mode = {mode}"));
        let through = pooler.through(&server, &url);
        let (one, other) = (connect(&through).await, connect(&through).await);
        let guard = one.mutex("key").ttl(5 * LEASE).acquire().await.unwrap();
        let waiting = tokio::spawn(other.mutex("key").ttl(LEASE).acquire());
        server.restart();
        guard.check().unwrap();
        let fence = guard.fence();
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.fence() > fence, "{mode}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_session_that_a_restart_behind_the_pooler_ended_is_lost_to_its_holder() {
    let server = Postgres::start();
    let url = server.url();
    let pooler = Pgbouncer::start(&server, "pool_mode = session");
    let through = pooler.through(&server, &url);
    for way in ["advisory", "row"] {
        let place = strategy(&through, way);
        let (one, other) = (connect(&place).await, connect(&place).await);
        let guard = one.mutex("key").ttl(LEASE).acquire().await.unwrap();
        let waiting = tokio::spawn(other.mutex("key").ttl(LEASE).acquire());
        server.restart();
        let lost = timeout(LEASE, guard.lost()).await;
        assert!(lost.is_ok(), "{way}: not noticed within the ttl");
        let next = waiting.await.unwrap().unwrap();
        assert!(next.fence() > guard.fence(), "{way}");
        next.release().await.unwrap();
    }
}

/// A pooler that assigns its connections in turn always gives the same ones to two alternating
/// clients.
#[tokio::test]
async fn a_pooler_that_lends_its_connections_in_turn_is_found_out() {
    let server = Postgres::start();
    let url = server.url();
    Client::connect(&url).await.unwrap();
    let settings = "pool_mode = transaction\nserver_round_robin = 1\ndefault_pool_size = 2\n\
                    ignore_startup_parameters = extra_float_digits";
    let pooler = Pgbouncer::start(&server, settings);
    let through = pooler.through(&server, &url);
    // Both connections of the pool exist once two transactions were open at the same time.
    let connect = async || sqlx::PgConnection::connect(&through).await.unwrap();
    let (mut one, mut other) = (connect().await, connect().await);
    let (one, other) = (one.begin().await.unwrap(), other.begin().await.unwrap());
    one.commit().await.unwrap();
    other.commit().await.unwrap();
    for _ in 0..4 {
        let client = Client::connect(&through).await.unwrap();
        assert_eq!(client.guarantees().wakeup, Wakeup::BackOff);
        let error = Client::connect(strategy(&through, "row")).await.unwrap_err().to_string();
        assert!(error.contains("pooler") && error.contains("connect past"), "{error}");
    }
}

/// Clients that connect while many others use the pool detect it too.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_is_busy_with_others_is_found_out() {
    let server = Postgres::start();
    let url = server.url();
    Client::connect(&url).await.unwrap();
    let settings = "pool_mode = transaction\ndefault_pool_size = 4\n\
                    ignore_startup_parameters = extra_float_digits";
    let pooler = Pgbouncer::start(&server, settings);
    let through = pooler.through(&server, &url);
    let mut others = tokio::task::JoinSet::new();
    for n in 0..8_u64 {
        let mut other = sqlx::PgConnection::connect(&through).await.unwrap();
        others.spawn(async move {
            loop {
                sqlx::raw_sql("SELECT pg_sleep(0.001)").execute(&mut other).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(n % 4)).await;
            }
        });
    }
    for _ in 0..200 {
        let client = connect(&through).await;
        assert_eq!(client.guarantees().wakeup, Wakeup::BackOff);
        client.close().await;
    }
    others.shutdown().await;
}

/// The option `schema` is a startup parameter, which a pooler refuses, or ignores if configured to.
#[tokio::test]
async fn a_search_path_that_the_pooler_does_not_pass_on_is_explained() {
    let server = Postgres::start();
    let url = server.url();
    server.sql(
        database(&url),
        "CREATE SCHEMA locks; CREATE ROLE app LOGIN; GRANT ALL ON SCHEMA locks TO app",
    );
    for mode in ["session", "transaction"] {
        let strict = Pgbouncer::start(&server, &format!("pool_mode = {mode}"));
        let through = format!("{}?schema=locks", strict.through(&server, &url));
        let error = Client::connect(through).await.unwrap_err().to_string();
        assert!(error.contains("ignore_startup_parameters = options"), "{error}");
        let lax = format!("pool_mode = {mode}\nignore_startup_parameters = options");
        let lax = Pgbouncer::start(&server, &lax);
        let through = format!("{}?schema=locks", lax.through(&server, &url));
        let error = Client::connect(&through).await.unwrap_err().to_string();
        assert!(error.contains("SET search_path = locks"), "{error}");
        server.sql(database(&url), "ALTER ROLE postgres SET search_path = locks");
        let lax = Pgbouncer::start(
            &server,
            &format!("pool_mode = {mode}\nignore_startup_parameters = options"),
        );
        let client = connect(&format!("{}?schema=locks", lax.through(&server, &url))).await;
        client.mutex("key").acquire().await.unwrap().release().await.unwrap();
        let rows = server.sql(database(&url), "SELECT count(*) FROM locks.lockkeeper_lock");
        assert_eq!(rows, "1");
        server.sql(database(&url), "ALTER ROLE postgres RESET search_path");
    }
}

async fn connect(url: &str) -> Client {
    Client::connect(url).await.unwrap()
}
