//! MariaDB: every case of the test kit against a real server, and what only such a server can suffer.

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper::backend::Severity;
use lockkeeper::{Client, Error, Release};

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::database::mariadb::Mariadb;

/// One server for all tests here; each has a database of its own.
fn server() -> &'static Mariadb {
    static SERVER: OnceLock<Mariadb> = OnceLock::new();
    SERVER.get_or_init(Mariadb::start)
}

/// Long enough that a busy machine does not end a lease by accident.
const LEASE: Duration = Duration::from_secs(3);

conformance!(lease, Store::at(server().url()).ttl(LEASE));

#[tokio::test]
async fn a_lease_outlives_the_connections_of_its_client() {
    let url = server().url();
    let database = url.rsplit('/').next().unwrap();
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
    let waiting = tokio::spawn(client.mutex("key").acquire());
    let threads = server().run(
        "mysql",
        &format!("SELECT id FROM information_schema.processlist WHERE db = '{database}'"),
    );
    assert!(!threads.is_empty(), "there is nothing to kill");
    for thread in threads.lines() {
        server().run("mysql", &format!("KILL {thread}"));
    }
    tokio::time::sleep(LEASE * 2).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_server_that_crashed_remembers_leases_and_fences() {
    let mut server = Mariadb::start();
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("held").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let free = client.mutex("free").acquire().await.unwrap();
    let before = free.fence();
    free.release().await.unwrap();
    server.crash();
    server.resume_service();
    guard.check().unwrap();
    let other = Client::connect(&url).await.unwrap();
    assert!(other.mutex("held").try_acquire().await.unwrap().is_none());
    assert!(other.mutex("free").acquire().await.unwrap().fence() > before);
}

#[tokio::test]
async fn a_frozen_server_cannot_hide_a_loss() {
    let server = Mariadb::start();
    let client = Client::connect(server.url()).await.unwrap();
    let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
    server.freeze();
    let told = tokio::time::timeout(LEASE, guard.lost()).await;
    server.thaw();
    assert!(told.is_ok(), "not told within its lease");
    assert!(matches!(guard.check(), Err(Error::Lost { .. })));
    let next = client.mutex("key").acquire_within(Duration::from_secs(20)).await.unwrap();
    assert!(next.fence() > guard.fence());
}

#[tokio::test]
async fn a_user_with_few_rights_can_do_everything_that_is_needed() {
    let url = server().url();
    let database = url.rsplit('/').next().unwrap();
    Client::connect(&url).await.unwrap();
    server().run(
        "mysql",
        &format!(
            "CREATE USER poor_{database}@'%' IDENTIFIED BY 'canary';
             GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON {database}.* TO poor_{database}@'%'"
        ),
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "canary\n").unwrap();
    let poor = url.replace("root@", &format!("poor_{database}@"));
    let poor = format!("{poor}?create=no&password_file={}", file.path().display());
    let client = Client::connect(&poor).await.unwrap();
    let guard = client.write("key").ttl(LEASE).acquire().await.unwrap();
    assert_eq!(client.break_lock("key").await.unwrap().len(), 1);
    assert_eq!(guard.lost().await, lockkeeper::Loss::Gone);
    let findings = client.doctor().await.unwrap();
    assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{findings:?}");
    std::fs::write(file.path(), "wrong canary\n").unwrap();
    let error = Client::connect(&poor).await.unwrap_err();
    assert!(!error.is_retryable() && !format!("{error} {error:?}").contains("canary"), "{error:?}");
}
