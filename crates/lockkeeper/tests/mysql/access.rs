//! Servers that are refused, users and their rights, passwords, TLS.

use lockkeeper::Client;
use lockkeeper::engine::Severity;
use lockkeeper_testkit::certificates;
use lockkeeper_testkit::server::Mariadb;

use super::{LEASE, database, server};

#[tokio::test]
async fn a_read_only_server_is_refused_with_what_to_do() {
    let server = Mariadb::start();
    let url = server.url();
    Client::connect(&url).await.unwrap();
    server.sql("mysql", "SET GLOBAL read_only = 1");
    let error = Client::connect(&url).await.unwrap_err().to_string();
    assert!(error.contains("read-only") && error.contains("primary"), "{error}");
}

#[tokio::test]
async fn tls_verifies_the_server() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let path = |name: &str| directory.path().join(name).display().to_string();
    let server = Mariadb::with(&[
        &format!("ssl-cert={}", path("server.pem")),
        &format!("ssl-key={}", path("server.key")),
        &format!("ssl-ca={}", path("ca.pem")),
    ]);
    let url = server.url();
    server.sql("mysql", "CREATE USER careful REQUIRE SSL; GRANT ALL ON *.* TO careful");
    let url = url.replace("root@", "careful@");
    let with = |ca: &str| format!("{url}?ssl-mode=VERIFY_IDENTITY&ssl-ca={}", path(ca));
    let client = Client::connect(with("ca.pem")).await.unwrap();
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let error = Client::connect(with("other.pem")).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    Client::connect(format!("{url}?ssl-mode=DISABLED")).await.unwrap_err();
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
async fn the_password_comes_from_the_environment() {
    let url = server().url();
    let name = format!("app_{}", database(&url));
    server().sql(
        "mysql",
        &format!("CREATE USER {name} IDENTIFIED BY 'canary'; GRANT ALL ON *.* TO {name}"),
    );
    let url = url.replace("root@", &format!("{name}@"));
    let error = Client::connect(&url).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("MYSQL_PWD"), "{error}");
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "access::child_that_has_the_password"])
        .env("LOCKKEEPER_TEST_URL", &url)
        .env("MYSQL_PWD", "canary")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[tokio::test]
async fn a_user_with_few_rights_can_do_everything_that_is_needed() {
    let url = server().url();
    let database = url.rsplit('/').next().unwrap();
    Client::connect(&url).await.unwrap();
    server().sql(
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
    for way in ["lease", "named", "row"] {
        let client = Client::connect(format!("{poor}&strategy={way}")).await.unwrap();
        let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
        assert_eq!(client.break_lock("key").await.unwrap().len(), 1);
        assert!(matches!(guard.lost().await, lockkeeper::Loss::Broken { .. }), "{way}");
        let findings = client.doctor().await.unwrap();
        assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{findings:?}");
    }
    std::fs::write(file.path(), "wrong canary\n").unwrap();
    let error = Client::connect(&poor).await.unwrap_err();
    assert!(!error.is_retryable() && !format!("{error} {error:?}").contains("canary"), "{error:?}");
}
