//! The contents of the tables, and what a server and foreign transactions do to them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::{Client, Release};
use lockkeeper_testkit::server::{Dialect, Mariadb, MariadbDialect};
use sqlx::{Connection, MySqlConnection};

use super::{LEASE, database, numbers, server, strategy};

#[tokio::test]
async fn a_stale_holder_cannot_write_in_a_guarded_transaction() {
    for way in ["lease", "named", "row"] {
        let url = server().url();
        let sql = |statement: &str| server().sql(database(&url), statement);
        let client = Client::connect(strategy(&url, way)).await.unwrap();
        sql("CREATE TABLE orders (id INT PRIMARY KEY, state VARCHAR(20));
             INSERT INTO orders VALUES (42, 'new')");
        sql("DELIMITER //
             CREATE PROCEDURE set_state(a_state VARCHAR(20), a_fence BIGINT) BEGIN
               DECLARE EXIT HANDLER FOR SQLSTATE '45000' BEGIN
                 ROLLBACK;
                 INSERT INTO orders VALUES (0, CONCAT('refused ', a_state));
               END;
               START TRANSACTION;
               CALL lockkeeper_guard('orders/42', a_fence);
               UPDATE orders SET state = a_state WHERE id = 42;
               COMMIT;
             END //");
        let stale = client.mutex("orders/42").ttl(LEASE).acquire().await.unwrap();
        let write = |state: &str, fence: lockkeeper::Fence| {
            sql(&format!("CALL set_state('{state}', {fence})"))
        };
        write("paid", stale.fence());
        client.break_lock("orders/42").await.unwrap();
        let next = client.mutex("orders/42").acquire().await.unwrap();
        write("sent", next.fence());
        write("lost", stale.fence());
        assert_eq!(sql("SELECT state FROM orders ORDER BY id"), "refused lost\nsent", "{way}");
    }
}

/// Renewals go on beside the statements of the test.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_any_characters_is_handed_on() {
    for way in ["lease", "named", "row"] {
        let key = "Schlüssel 🔒";
        let url = server().url();
        let place = strategy(&url, way);
        let (one, other) =
            (Client::connect(&place).await.unwrap(), Client::connect(&place).await.unwrap());
        let guard = one.mutex(key).ttl(LEASE).acquire().await.unwrap();
        let waiting = tokio::spawn(other.mutex(key).ttl(LEASE).acquire());
        // Waiters learn of it from the table, or are blocked in the server.
        while one.inspect(key).await.unwrap().unwrap().waiters.is_none_or(|them| them.is_empty())
            && server().busy_sessions(database(&url)) == 0
        {
            assert!(!waiting.is_finished(), "{way}: {:?}", waiting.await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let fence = guard.fence();
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{way}");
        let next = waiting.await.unwrap().unwrap();
        assert!(next.fence() > fence, "{way}");
        assert_eq!(next.release().await.unwrap(), Release::Released, "{way}");
    }
}

/// InnoDB spares the transaction that changed more, which is the foreign one.
#[tokio::test]
async fn a_deadlock_is_not_our_callers_problem() {
    let url = server().url();
    let client = Client::connect(&url).await.unwrap();
    // A reader is in the queue even if it is the only claim.
    let guard = client.read("key").ttl(LEASE).acquire().await.unwrap();
    let mut foreign = MySqlConnection::connect(&url).await.unwrap();
    let heavy = format!(
        "CREATE TABLE heavy (n INT); START TRANSACTION; INSERT INTO heavy SELECT seq FROM {};
         SELECT * FROM lockkeeper_claim WHERE name = 'key' FOR UPDATE",
        numbers(1000)
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(heavy)).execute(&mut foreign).await.unwrap();
    let other = Client::connect(&url).await.unwrap();
    // It gets the lock's row, and then has to wait for the claim's.
    let waiting = tokio::spawn(other.write("key").acquire());
    while server().busy_sessions(database(&url)) == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = if server().is_mysql() { 0 } else { deadlocks() };
    let both = "SELECT * FROM lockkeeper_lock WHERE name = 'key' FOR UPDATE; COMMIT";
    sqlx::raw_sql(both).execute(&mut foreign).await.unwrap();
    // MySQL does not count them.
    assert!(server().is_mysql() || deadlocks() > before, "there was none");
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

fn deadlocks() -> u64 {
    let told = server().sql("mysql", "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    told.split_whitespace().last().and_then(|number| number.parse().ok()).expect("a number")
}

/// A restarted server numbers its connections from the start. Nothing else runs in this test until
/// the waiter is evicted, so that its connection is still the one that it waits on.
#[tokio::test]
async fn a_connection_with_the_number_of_one_that_ended_is_left_alone() {
    let server = Mariadb::start();
    let url = server.url();
    let place = strategy(&url, "named");
    let (one, other) =
        (Client::connect(&place).await.unwrap(), Client::connect(&place).await.unwrap());
    let number = |server: &Mariadb| -> u64 {
        server.sql("mysql", "SELECT CONNECTION_ID()").parse().unwrap()
    };
    // More numbers than a server uses until it gets there.
    while number(&server) < 60 {}
    let _held = one.mutex("key").ttl(LEASE).acquire().await.unwrap();
    let waiting = tokio::spawn(other.mutex("key").ttl(LEASE).acquire());
    let busy = "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist
                WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command <> 'Sleep'";
    let busy = |server: &Mariadb| -> u64 { server.sql(database(&url), busy).parse().unwrap() };
    let waiter = loop {
        match busy(&server) {
            0 => tokio::time::sleep(Duration::from_millis(20)).await,
            number => break number,
        }
    };
    server.kill();
    server.restart();
    while number(&server) + 1 < waiter {}
    let (port, nap) = (server.address().port(), "SELECT CONNECTION_ID(); DO SLEEP(5)");
    let mut innocent = MariadbDialect::client(port, database(&url), nap)
        .arg("--unbuffered")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(innocent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim().parse::<u64>().unwrap(), waiter, "it has another number");
    waiting.abort();
    other.close().await;
    assert!(innocent.wait().unwrap().success(), "it was ended");
}

#[tokio::test]
async fn a_statement_timeout_does_not_end_waiters() {
    let limit = match server().is_mysql() {
        true => "max-execution-time=1000",
        false => "max-statement-time=1",
    };
    let server = Mariadb::with(&[limit]);
    for way in ["lease", "named", "row"] {
        let place = strategy(&server.url(), way);
        let (one, other) =
            (Client::connect(&place).await.unwrap(), Client::connect(&place).await.unwrap());
        let guard = one.mutex("key").ttl(LEASE).acquire().await.unwrap();
        let waiting = tokio::spawn(other.mutex("key").ttl(LEASE).acquire());
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!waiting.is_finished(), "{way}: {:?}", waiting.await);
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// By its defaults, or by a proxy's.
#[tokio::test]
async fn a_release_after_more_silence_than_the_server_allows_is_confirmed() {
    let server = Mariadb::with(&["wait-timeout=2"]);
    for way in ["lease", "named", "row"] {
        let client = Client::connect(strategy(&server.url(), way)).await.unwrap();
        let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{way}");
    }
}

#[tokio::test]
async fn unused_rows_are_removed() {
    let url = server().url();
    let client = Client::connect(&url).await.unwrap();
    let _held = client.mutex("held").acquire().await.unwrap();
    let _line = client.read("line").acquire().await.unwrap();
    let sql = |statement: &str| server().sql(database(&url), statement);
    sql("INSERT INTO lockkeeper_lock (name, fence, used)
           VALUES ('idle', 1, NOW() - INTERVAL 31 DAY), ('used', 1, UTC_TIMESTAMP());
         UPDATE lockkeeper_lock SET used = NOW() - INTERVAL 31 DAY WHERE name IN ('held', 'line');
         INSERT INTO lockkeeper_claim
             (name, token, place, owner, kind, take, permits, slots, since, until, who)
           VALUES ('gone', 't', 1, 't', 'mutex', 1, 0, '', NOW(), NOW() - INTERVAL 2 DAY, '');
         INSERT INTO lockkeeper_freed
           VALUES (UNHEX(SHA2('over', 256)), 'over', UTC_TIMESTAMP() - INTERVAL 1 SECOND),
                  (UNHEX(SHA2('used', 256)), 'used', UTC_TIMESTAMP() + INTERVAL 1 DAY);
         CALL lockkeeper_sweep()");
    let left = "SELECT GROUP_CONCAT(name ORDER BY name) FROM lockkeeper_lock";
    assert_eq!(sql(left), "held,line,used");
    assert_eq!(sql("SELECT GROUP_CONCAT(name) FROM lockkeeper_claim"), "line");
    assert_eq!(sql("SELECT GROUP_CONCAT(token) FROM lockkeeper_freed WHERE token <> ''"), "used");
    // A few at a time, however many keys there are: each has its turn, except for those in use.
    sql(&format!(
        "INSERT INTO lockkeeper_lock (name, fence, used)
           SELECT CONCAT('many ', seq), 1, NOW() - INTERVAL 31 DAY FROM {};
         INSERT INTO lockkeeper_bound (name, fence, pid, who, since)
           SELECT CONCAT('many ', seq), 1, 1, '', NOW() - INTERVAL 31 DAY FROM {}",
        numbers(2500),
        numbers(1500)
    ));
    let rest =
        "SELECT COUNT(*) FROM lockkeeper_lock UNION ALL SELECT COUNT(*) FROM lockkeeper_bound";
    let rests: Vec<_> = (0..5)
        .map(|_| {
            sql("CALL lockkeeper_sweep()");
            sql(rest).replace('\n', " ")
        })
        .collect();
    assert_eq!(rests, ["2503 500", "1505 0", "505 0", "3 0", "3 0"]);
}
