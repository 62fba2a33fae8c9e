//! PostgreSQL: every case of the test kit for every strategy, and what only such a server can suffer.

use std::fmt::Write;
use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper::backend::{Mode, Severity};
use lockkeeper::queue::{self, Place, Turn};
use lockkeeper::{Client, Loss};

use lockkeeper_testkit::certificates;
use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::database::{Pgbouncer, Postgres};
use sqlx::Connection;
use tokio::task::JoinSet;

#[path = "../examples/guarded_transaction.rs"]
#[expect(dead_code, reason = "its main function is not called here")]
mod guarded_transaction;

/// One server for all tests here; each has a database of its own.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// Long enough that a busy machine does not end a lease by accident.
const LEASE: Duration = Duration::from_secs(3);

conformance!(lease, Store::at(server().url()).ttl(LEASE));

conformance!(advisory, Store::at(strategy(&server().url(), "advisory")).ttl(LEASE));

conformance!(row, Store::at(strategy(&server().url(), "row")).ttl(LEASE));

fn strategy(url: &str, strategy: &str) -> String {
    format!("{url}?strategy={strategy}")
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("it names one")
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

/// A clock that goes back and a crash, of which both leave nothing but the committed bound.
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
        // As if all that was given came from a clock that was an hour ahead.
        sql("UPDATE lockkeeper_bound SET fence = fence + 3600000000;
             UPDATE lockkeeper_last l SET fence = b.fence - 5 FROM lockkeeper_bound b WHERE b.key = l.key");
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
async fn a_user_with_few_rights_can_do_everything() {
    let url = server().url();
    let name = format!("poor_{}", database(&url));
    Client::connect(&url).await.unwrap();
    server().sql(
        database(&url),
        &format!(
            "CREATE ROLE {name} LOGIN;
             GRANT SELECT, INSERT, UPDATE, DELETE ON lockkeeper_lock, lockkeeper_claim, lockkeeper_bound,
               lockkeeper_last, lockkeeper_row TO {name};
             GRANT SELECT ON lockkeeper_all TO {name}"
        ),
    );
    let poor = url.replace("postgres@", &format!("{name}@"));
    for place in [format!("{poor}?create=no"), strategy(&poor, "advisory"), strategy(&poor, "row")]
    {
        let client = Client::connect(&place).await.unwrap();
        let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
        assert_eq!(client.break_lock("key").await.unwrap().len(), 1);
        assert_eq!(guard.lost().await, Loss::Gone);
        let findings = client.doctor().await.unwrap();
        assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{findings:?}");
    }
    server().sql(database(&url), &format!("REVOKE UPDATE ON lockkeeper_claim FROM {name}"));
    let client = Client::connect(&poor).await.unwrap();
    let findings = client.doctor().await.unwrap();
    let worst = findings.iter().find(|finding| finding.severity == Severity::Problem).unwrap();
    assert!(worst.advice.contains("UPDATE"), "{findings:?}");
}

#[tokio::test]
async fn the_example_of_a_guarded_transaction_does_what_it_says() {
    assert_eq!(guarded_transaction::run(&server().url()).await.unwrap(), "sent");
}

/// Renewals and the release go on; only a grant has to wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_transaction_keeps_others_out_and_its_own_holder_alive() {
    let url = server().url();
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
    let fence = guard.fence();
    let guarded = tokio::task::spawn_blocking({
        let url = url.clone();
        // Far longer than the lease.
        let work = format!("BEGIN; SELECT lockkeeper_guard('key', {fence}), pg_sleep(8); COMMIT");
        move || server().sql(database(&url), &work)
    });
    let is_open = || {
        let ours = "SELECT count(*) FROM pg_stat_activity
                    WHERE query LIKE 'BEGIN; SELECT lockkeeper_guard%' AND datname = current_database()";
        server().sql(database(&url), ours) == "1"
    };
    while !is_open() {
        assert!(!guarded.is_finished(), "it ended before it was seen");
    }
    let next = tokio::spawn({
        let other = Client::connect(&url).await.unwrap();
        async move { other.mutex("key").ttl(LEASE).acquire().await.unwrap() }
    });
    tokio::time::sleep(LEASE + LEASE / 2).await;
    assert!(is_open() && !next.is_finished());
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert!(!next.is_finished() || !is_open(), "somebody was let in during the transaction");
    assert!(next.await.unwrap().fence() > fence && !is_open());
    guarded.await.unwrap();
}

/// A statement that waits for a row asks again when it has it, and so may take the lock a second time.
#[tokio::test]
async fn an_advisory_lock_that_was_taken_twice_by_one_statement_is_given_back_whole() {
    let url = server().url();
    let client = Client::connect(strategy(&url, "advisory")).await.unwrap();
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let in_the_way = tokio::task::spawn_blocking({
        let url = url.clone();
        let work = "BEGIN; UPDATE lockkeeper_last SET note = 'other'; SELECT pg_sleep(2); COMMIT";
        move || server().sql(database(&url), work)
    });
    let locks = |kind: &str| {
        let count = format!(
            "SELECT count(*) FROM pg_locks WHERE {kind} AND
               database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        );
        server().sql(database(&url), &count)
    };
    let theirs = "relation = 'lockkeeper_last'::regclass AND mode = 'RowExclusiveLock'";
    while locks(theirs) == "0" {
        assert!(!in_the_way.is_finished(), "it ended before it was seen");
    }
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    in_the_way.await.unwrap();
    let last = server().sql(database(&url), "SELECT count(note) FROM lockkeeper_last");
    assert_eq!(last, "0", "the other one was not in the way");
    assert_eq!(locks("locktype = 'advisory'"), "0");
}

/// Counted by the server itself, which says it when a connection ends.
#[tokio::test]
async fn a_lock_that_one_alone_wants_is_one_row() {
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
async fn missing_tables_that_may_not_be_made_are_named() {
    let url = server().url();
    let error = Client::connect(format!("{url}?create=no")).await.unwrap_err().to_string();
    assert!(error.contains("lockkeeper explain --schema postgres:"), "{error}");
    let error = Client::connect(format!("{url}?strategy=hope")).await.unwrap_err().to_string();
    assert!(error.contains("lease, advisory, row"), "{error}");
}

#[tokio::test]
async fn a_server_that_refuses_us_is_an_error_without_our_password() {
    let url = format!("postgres://nobody:canary@127.0.0.1:{}/nowhere", server().address().port());
    let error = Client::connect(&url).await.unwrap_err();
    assert!(!error.is_retryable() && !format!("{error} {error:?}").contains("canary"), "{error:?}");
}

#[tokio::test]
async fn a_pooler_that_lends_by_transaction_and_a_standby_are_refused() {
    let mut server = Postgres::start();
    let url = server.url();
    Client::connect(&url).await.unwrap();
    let pooler = Pgbouncer::start(&server);
    for way in ["lease", "advisory", "row"] {
        let through = strategy(&pooler.through(&server, &url), way);
        let error = Client::connect(&through).await.unwrap_err().to_string();
        assert!(error.contains("pooler") && error.contains("connect past"), "{error}");
    }
    server.crash();
    std::fs::write(server.directory().join("data/standby.signal"), "").unwrap();
    server.resume_service();
    for way in ["lease", "advisory", "row"] {
        let error = Client::connect(strategy(&url, way)).await.unwrap_err().to_string();
        assert!(error.contains("standby") && error.contains("primary"), "{error}");
    }
}

#[tokio::test]
async fn tls_knows_whom_it_talks_to() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let server = Postgres::start();
    let (ours, theirs) = (directory.path(), server.directory().join("data"));
    for file in ["server.key", "server.pem"] {
        let (from, to) = (ours.join(file), theirs.join(file));
        let copy = format!("cp {} {to} && chmod 600 {to}", from.display(), to = to.display());
        server.sql("postgres", &format!("COPY (SELECT 1) TO PROGRAM '{copy}'"));
    }
    for setting in ["ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'", "ssl = on"] {
        server.sql("postgres", &format!("ALTER SYSTEM SET {setting}"));
    }
    server.sql("postgres", "SELECT pg_reload_conf()");
    let url = server.url();
    let with =
        |ca: &str| format!("{url}?sslmode=verify-full&sslrootcert={}", ours.join(ca).display());
    let client = loop {
        match Client::connect(with("ca.pem")).await {
            Ok(client) => break client,
            // It has not read its new settings yet.
            Err(error) => assert!(error.to_string().contains("TLS"), "{error}"),
        }
    };
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let safe = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity a USING (pid)
                WHERE datname = current_database() AND application_name LIKE 'lockkeeper%'";
    assert_eq!(server.sql(database(&url), safe), "t");
    let error = Client::connect(with("other.pem")).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

/// Run again by the test below, with a password in the environment that nobody else should see.
#[tokio::test]
async fn child_that_has_the_password() {
    if let Ok(url) = std::env::var("LOCKKEEPER_TEST_URL") {
        let client = Client::connect(url).await.unwrap();
        client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn the_password_comes_from_the_environment_or_a_file() {
    let server = Postgres::start();
    server.sql("postgres", "CREATE ROLE app LOGIN PASSWORD 'canary'");
    let rules = server.directory().join("data/pg_hba.conf");
    let trusting = std::fs::read_to_string(&rules).unwrap();
    let strict = "host all app 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(&rules, strict.to_owned() + &trusting).unwrap();
    server.sql("postgres", "SELECT pg_reload_conf()");
    let url = server.url();
    server.sql(database(&url), "GRANT ALL ON SCHEMA public TO app");
    let url = url.replace("postgres@", "app@");
    // The new rules are read soon; then nobody gets in without a password.
    let refused = async || Client::connect(&url).await.err();
    let error = loop {
        if let Some(error) = refused().await {
            break error;
        }
    };
    assert!(!error.is_retryable(), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "canary\n").unwrap();
    let by_file = format!("{url}?password_file={}", file.path().display());
    let client = Client::connect(by_file).await.unwrap();
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_has_the_password"])
        .env("LOCKKEEPER_TEST_URL", &url)
        .env("PGPASSWORD", "canary")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[tokio::test]
async fn what_nobody_needs_is_swept_away() {
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
}

/// Whoever believes the row of a lock about who is in line does not look: so it must never be wrong.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lock_says_of_its_line_is_true_at_any_time() {
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

/// A waiter moves the holder from the lock's row to the line in the very moment in which it renews.
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
