//! Servers that are refused, users and their rights, passwords, TLS.

use lockkeeper::Client;
use lockkeeper::engine::Severity;
use lockkeeper_testkit::certificates;
use lockkeeper_testkit::server::Mariadb;

use super::{LEASE, database, server, strategy};

#[tokio::test]
async fn a_read_only_server_is_refused_with_what_to_do() {
    let server = Mariadb::start();
    let url = server.url();
    Client::connect(&url).await.unwrap();
    server.sql("mysql", "SET GLOBAL read_only = 1");
    for way in ["lease", "named", "row"] {
        let error = Client::connect(strategy(&url, way)).await.unwrap_err().to_string();
        assert!(error.contains("read-only") && error.contains("primary"), "{way}: {error}");
    }
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

#[tokio::test]
async fn waiters_are_unknown_to_a_user_that_may_not_see_them_all() {
    let url = server().url();
    let user = format!("blind_{}", database(&url));
    let named = strategy(&url, "named");
    let (holder, other) =
        (Client::connect(&named).await.unwrap(), Client::connect(&named).await.unwrap());
    let sql = |statement: &str| server().sql("mysql", statement);
    sql(&format!("CREATE USER {user}; GRANT ALL ON {}.* TO {user}", database(&url)));
    let blind = Client::connect(named.replace("root@", &format!("{user}@"))).await.unwrap();
    let guard = holder.mutex("key").ttl(LEASE).acquire().await.unwrap();
    let waiting = tokio::spawn(other.mutex("key").ttl(LEASE).acquire());
    let waiters = async |client: &Client| client.inspect("key").await.unwrap().unwrap().waiters;
    while waiters(&holder).await.expect("root sees all").is_empty() {
        assert!(!waiting.is_finished(), "{:?}", waiting.await);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(waiters(&blind).await.is_none());
    let right = match server().is_mysql() {
        true => "SELECT on performance_schema.*",
        false => "PROCESS",
    };
    let why = blind.inspect("key").await.unwrap().unwrap().unknown;
    assert!(why.is_some_and(|why| why.ends_with(right)), "{why:?}");
    let said = async || {
        let findings = blind.doctor().await.unwrap();
        findings.into_iter().find(|finding| finding.what.contains("waiters")).unwrap().what
    };
    assert!(said().await.ends_with(right), "{}", said().await);
    let on = if server().is_mysql() { "" } else { " ON *.*" };
    sql(&format!("GRANT {right}{on} TO {user}"));
    // Connections remember the rights of the whole server that they had at their start.
    let seeing = Client::connect(named.replace("root@", &format!("{user}@"))).await.unwrap();
    let seen = waiters(&seeing).await.expect("it may see all");
    assert_eq!(seen[0].who.as_deref(), Some(lockkeeper::whoami().as_str()), "{seen:?}");
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
