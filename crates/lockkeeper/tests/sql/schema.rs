//! Tables that another version of lockkeeper created.

use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::Severity;
use lockkeeper::{Client, engines};
use lockkeeper_testkit::server::{DatabaseServer, Dialect};

use crate::faults::{database, strategy};

/// What the first builds created, before a lock's row could name its holder; and two locks that are
/// held: a mutex, and two permits of three. The fence of a free lock is far ahead of the clock.
pub(super) const FIRST_OF_POSTGRES: &str = r#"
    CREATE TABLE lockkeeper_lock (
      key text COLLATE "C" PRIMARY KEY, fence bigint NOT NULL,
      used timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE TABLE lockkeeper_claim (
      key text COLLATE "C" NOT NULL, token text COLLATE "C" NOT NULL,
      place bigint GENERATED ALWAYS AS IDENTITY, owner text COLLATE "C" NOT NULL,
      kind text COLLATE "C" NOT NULL, take bigint NOT NULL, permits bigint NOT NULL, fence bigint,
      slots bigint[] NOT NULL DEFAULT '{}', since timestamptz NOT NULL, until timestamptz NOT NULL,
      wake text NOT NULL, who text NOT NULL, note text, PRIMARY KEY (key, token));
    CREATE FUNCTION lockkeeper_release(a_key text, a_token text) RETURNS text LANGUAGE sql AS 'SELECT a_key';
    CREATE FUNCTION lockkeeper_guard(a_key text, a_fence bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION lockkeeper_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
    CREATE VIEW of_a_user AS SELECT lockkeeper_guard('held', 7);
    INSERT INTO lockkeeper_lock (key, fence) VALUES ('held', 7), ('gpu', 8), ('free', 9000000000000000);
    INSERT INTO lockkeeper_claim (key, token, owner, kind, take, permits, fence, slots, since, until, wake, who)
      VALUES ('held', 't1', 'o1', 'mutex', 1, 0, 7, '{}', now(), now() + interval '1 hour', '', 'somebody'),
             ('gpu', 't2', 'o2', 'semaphore', 2, 3, 8, '{0,1}', now(), now() + interval '1 hour', '', 'somebody');
"#;

pub(super) const FIRST_OF_MARIADB: &str = r"
    CREATE TABLE lockkeeper_lock (
      name VARBINARY(512) NOT NULL PRIMARY KEY, fence BIGINT NOT NULL, next BIGINT NOT NULL DEFAULT 0,
      used DATETIME(6) NOT NULL) ENGINE = InnoDB;
    CREATE TABLE lockkeeper_claim (
      name VARBINARY(512) NOT NULL, token VARBINARY(64) NOT NULL, place BIGINT NOT NULL,
      owner VARBINARY(128) NOT NULL, kind VARBINARY(16) NOT NULL, take BIGINT NOT NULL,
      permits BIGINT NOT NULL, fence BIGINT NULL, slots LONGTEXT CHARACTER SET ascii NOT NULL,
      since DATETIME(6) NOT NULL, until DATETIME(6) NOT NULL,
      who VARCHAR(512) CHARACTER SET utf8mb4 NOT NULL, note TEXT CHARACTER SET utf8mb4 NULL,
      PRIMARY KEY (name, token), UNIQUE KEY (token)) ENGINE = InnoDB;
    CREATE TABLE lockkeeper_freed (
      id BINARY(32) NOT NULL PRIMARY KEY, token VARBINARY(64) NOT NULL, fence BIGINT NOT NULL,
      until DATETIME(6) NOT NULL) ENGINE = MEMORY;
    CREATE TABLE lockkeeper_version (version INT NOT NULL PRIMARY KEY) ENGINE = InnoDB;
    CREATE PROCEDURE lockkeeper_end(a_pid BIGINT) KILL a_pid;
    INSERT INTO lockkeeper_version VALUES (1);
    INSERT INTO lockkeeper_lock (name, fence, next, used) VALUES
      ('held', 7, 1, UTC_TIMESTAMP(6)), ('gpu', 8, 1, UTC_TIMESTAMP(6)),
      ('free', 9000000000000000, 1, UTC_TIMESTAMP(6));
    INSERT INTO lockkeeper_claim (name, token, place, owner, kind, take, permits, fence, slots, since, until, who)
      VALUES ('held', 't1', 0, 'o1', 'mutex', 1, 0, 7, '', UTC_TIMESTAMP(6),
              UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 'somebody'),
             ('gpu', 't2', 0, 'o2', 'semaphore', 2, 3, 8, '0,1', UTC_TIMESTAMP(6),
              UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 'somebody');
";

/// Statements that turn the tables into those of version 2, without requests to give way and broken locks.
pub(super) const SECOND_OF_POSTGRES: &str = "
    DROP TABLE lockkeeper_asked, lockkeeper_broken;
    ALTER TABLE lockkeeper_last DROP COLUMN range_end;
    CREATE OR REPLACE FUNCTION lockkeeper_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';
";
pub(super) const SECOND_OF_MARIADB: &str = "
    DROP TABLE lockkeeper_asked, lockkeeper_broken;
    UPDATE lockkeeper_version SET version = 2;
";

/// Statements that turn the tables into those of a later version.
pub(super) const LATER_OF_POSTGRES: &str = "CREATE OR REPLACE FUNCTION lockkeeper_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 99'";
pub(super) const LATER_OF_MARIADB: &str = "UPDATE lockkeeper_version SET version = 99";

/// The number of tables in a database.
pub(super) const TABLES_OF_POSTGRES: &str =
    "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
pub(super) const TABLES_OF_MARIADB: &str =
    "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()";

/// A client that looks at a database without tables finds no locks, and leaves no tables behind.
pub(super) async fn looking_creates_nothing<D: Dialect>(
    server: &DatabaseServer<D>,
    way: &str,
    count: &str,
) {
    let url = server.url();
    let tables = || server.sql(database(&url), count);
    let place = strategy(&url, way) + "&create=later";
    let client = Client::connect(&place).await.unwrap();
    assert!(client.list("").await.unwrap().is_empty(), "{way}");
    assert!(client.inspect("key").await.unwrap().is_none(), "{way}");
    assert!(client.broken("").await.unwrap().is_empty(), "{way}");
    assert!(client.break_lock_because("key", "test").await.unwrap().is_empty(), "{way}");
    assert!(client.request_yield("key").await.unwrap().is_empty(), "{way}");
    let findings = client.doctor().await.unwrap();
    assert!(findings.iter().any(|found| found.what.contains("no tables")), "{way}: {findings:?}");
    assert_eq!(tables(), "0", "{way}");
    // The first lock creates them, and the other client sees it.
    let other = Client::connect(&place).await.unwrap();
    let guard = other.mutex("key").acquire().await.unwrap();
    assert_ne!(tables(), "0", "{way}");
    assert!(client.inspect("key").await.unwrap().is_some(), "{way}");
    guard.release().await.unwrap();
}

/// Why the tables at a URL are refused.
async fn refusal(url: &str) -> String {
    let refused = Client::connect(url).await.expect_err("they have another version");
    assert!(!refused.is_retryable(), "{refused}");
    refused.to_string()
}

pub(super) async fn an_earlier_version<D: Dialect>(server: &DatabaseServer<D>, first: &str) {
    let url = server.url();
    server.sql(database(&url), first);
    let told = refusal(&url).await;
    let said = ["version 1", "lockkeeper explain --schema", "stop the clients"];
    assert!(said.iter().all(|words| told.contains(words)), "{told}");
    let schema = engines::schema(&Endpoint::parse(&url).unwrap()).unwrap();
    // Twice: the second time changes nothing.
    for _ in 0..2 {
        server.sql(database(&url), schema);
        let client = Client::connect(&url).await.unwrap();
        let held =
            client.inspect("held").await.unwrap().expect("it is held by one of the first version");
        assert_eq!(held.holders[0].who.as_deref(), Some("somebody"));
        assert!(client.mutex("held").try_acquire().await.unwrap().is_none());
        let permit = client.semaphore("gpu", 3).acquire().await.unwrap();
        assert_eq!(permit.slots(), [2], "the others are taken");
        assert!(client.semaphore("gpu", 3).try_acquire().await.unwrap().is_none());
        permit.release().await.unwrap();
        let guard = client.mutex("free").acquire().await.unwrap();
        assert!(guard.fence().get() > 9_000_000_000_000_000, "{:?}", guard.fence());
        guard.release().await.unwrap();
        let findings = client.doctor().await.unwrap();
        let problem = findings.iter().find(|finding| finding.severity == Severity::Problem);
        assert!(problem.is_none(), "{problem:?}");
    }
}

/// Locks of every strategy keep their fences, and holders can be asked to give way afterwards.
pub(super) async fn the_second_version<D: Dialect>(
    server: &DatabaseServer<D>,
    bound: [&str; 2],
    second: &str,
) {
    let url = server.url();
    let mut fences = Vec::new();
    for way in ["lease", bound[0], bound[1]] {
        let client = Client::connect(strategy(&url, way)).await.unwrap();
        let guard = client.mutex(way).acquire().await.unwrap();
        fences.push((way, guard.fence()));
        guard.release().await.unwrap();
        client.close().await;
    }
    server.sql(database(&url), second);
    assert!(refusal(&url).await.contains("version 2"));
    server.sql(database(&url), engines::schema(&Endpoint::parse(&url).unwrap()).unwrap());
    for (way, last) in fences {
        let client = Client::connect(strategy(&url, way)).await.unwrap();
        let guard = client.mutex(way).acquire().await.unwrap();
        assert!(guard.fence() > last, "{way}");
        assert_eq!(client.request_yield(guard.key()).await.unwrap().len(), 1, "{way}");
        assert_eq!(client.broken("").await.unwrap().len(), 0, "{way}");
    }
}

pub(super) async fn a_later_version<D: Dialect>(server: &DatabaseServer<D>, later: &str) {
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    server.sql(database(&url), later);
    let told = refusal(&url).await;
    assert!(told.contains("version 99") && told.contains("newer lockkeeper"), "{told}");
    // A client that was connected before learns it from its doctor.
    let findings = client.doctor().await.unwrap();
    let problem = findings.iter().find(|finding| finding.what.contains("version 99"));
    assert_eq!(problem.map(|finding| finding.severity), Some(Severity::Problem), "{findings:?}");
    // It is not downgraded by accident.
    let schema = engines::schema(&Endpoint::parse(&url).unwrap()).unwrap();
    let run = D::client(server.address().port(), database(&url), schema).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && said.contains("version"), "{said}");
    assert!(refusal(&url).await.contains("version 99"));
}
