//! Access to the database: permissions, addresses, and what is refused.

use std::pin::pin;
use std::time::Duration;

use lockkeeper::engine::Severity;
use lockkeeper::{Client, Loss};
use lockkeeper_testkit::certificates;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::{Pgbouncer, Postgres};
use tokio::task::JoinSet;

use super::{LEASE, database, server, strategy};

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
               lockkeeper_last, lockkeeper_row, lockkeeper_asked, lockkeeper_broken TO {name};
             GRANT SELECT ON lockkeeper_all TO {name}"
        ),
    );
    let poor = url.replace("postgres@", &format!("{name}@"));
    for place in [format!("{poor}?create=no"), strategy(&poor, "advisory"), strategy(&poor, "row")]
    {
        let client = Client::connect(&place).await.unwrap();
        let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
        assert_eq!(client.break_lock("key").await.unwrap().len(), 1);
        assert!(matches!(guard.lost().await, Loss::Broken { .. }), "{place}");
        let findings = client.doctor().await.unwrap();
        assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{findings:?}");
    }
    // A break that cannot be recorded is carried out nevertheless.
    server().sql(database(&url), &format!("REVOKE ALL ON lockkeeper_broken FROM {name}"));
    for place in [poor.clone(), strategy(&poor, "advisory")] {
        let client = Client::connect(&place).await.unwrap();
        let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
        assert_eq!(client.break_lock_because("key", "why").await.unwrap().len(), 1);
        assert_eq!(guard.lost().await, Loss::Gone);
        assert!(client.broken("").await.is_err());
    }
    server().sql(database(&url), &format!("REVOKE UPDATE ON lockkeeper_claim FROM {name}"));
    let client = Client::connect(&poor).await.unwrap();
    let findings = client.doctor().await.unwrap();
    let worst = findings.iter().find(|finding| finding.severity == Severity::Problem).unwrap();
    assert!(worst.advice.contains("UPDATE"), "{findings:?}");
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
    let words = error.to_string();
    assert!(words.contains("password_file") && !words.contains("at line"), "{words}");
}

#[tokio::test]
async fn a_standby_is_refused() {
    let server = Postgres::start();
    let url = server.url();
    Client::connect(&url).await.unwrap();
    server.kill();
    std::fs::write(server.directory().join("data/standby.signal"), "").unwrap();
    server.restart();
    let pooler = Pgbouncer::start(&server, "pool_mode = transaction");
    let mut places = ["lease", "advisory", "row"].map(|way| strategy(&url, way)).to_vec();
    places.push(pooler.through(&server, &url));
    for place in places {
        let error = Client::connect(&place).await.unwrap_err().to_string();
        assert!(error.contains("standby") && error.contains("primary"), "{place}: {error}");
    }
}

#[tokio::test]
async fn a_search_path_that_names_no_schema_is_explained() {
    let url = server().url();
    let name = database(&url);
    server().sql(name, &format!("ALTER DATABASE {name} SET search_path = nowhere"));
    for way in ["lease", "advisory", "row"] {
        let error = Client::connect(strategy(&url, way)).await.unwrap_err().to_string();
        assert!(error.contains("option schema") && error.contains("ALTER ROLE"), "{way}: {error}");
    }
    server().sql(name, "CREATE SCHEMA locks");
    Client::connect(format!("{url}?schema=locks")).await.unwrap();
}

/// Two users with search paths of their own may use different tables.
#[tokio::test]
async fn doctor_names_the_schema_of_the_tables_and_warns_of_tables_in_another() {
    let url = server().url();
    let (name, role) = (database(&url), format!("role_{}", database(&url)));
    let found = async |url: &str| {
        let client = Client::connect(url).await.unwrap();
        let findings = client.doctor().await.unwrap();
        let mut about = findings.into_iter().filter(|f| f.what.contains("in the schema"));
        (client, about.next().unwrap())
    };
    let (one, finding) = found(&url).await;
    assert_eq!(finding.severity, Severity::Fine);
    assert!(finding.what.ends_with("in the schema public"), "{finding:?}");
    server().sql(
        name,
        &format!(
            "CREATE SCHEMA own; CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA own TO {role};
             ALTER ROLE {role} SET search_path = own"
        ),
    );
    let theirs = url.replace("postgres@", &format!("{role}@"));
    let (other, finding) = found(&theirs).await;
    let _guard = one.mutex("key").acquire().await.unwrap();
    assert!(other.mutex("key").try_acquire().await.unwrap().is_some(), "these are other locks");
    // The numbers of advisory locks belong to the whole database.
    let bound = Client::connect(strategy(&url, "advisory")).await.unwrap();
    let _guard = bound.mutex("key").acquire().await.unwrap();
    let bound = Client::connect(strategy(&theirs, "advisory")).await.unwrap();
    assert!(bound.mutex("key").try_acquire().await.unwrap().is_none());
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.what.contains("own") && finding.what.contains("public"), "{finding:?}");
    assert!(finding.advice.contains("option schema"), "{finding:?}");
    // The URL names it on purpose.
    for schema in ["own", "public"] {
        let (_, finding) = found(&format!("{url}?schema={schema}")).await;
        assert_eq!(finding.severity, Severity::Fine, "{finding:?}");
        assert!(finding.what.ends_with(&format!("in the schema {schema}")), "{finding:?}");
    }
}

#[tokio::test]
async fn doctor_counts_the_connections_of_clients() {
    let client = Client::connect(server().url()).await.unwrap();
    let findings = client.doctor().await.unwrap();
    let said =
        findings.iter().find_map(|f| f.what.strip_suffix(" connections are in use")).unwrap();
    let (used, _) = said.split_once(" of ").unwrap();
    assert!(used.parse::<u32>().unwrap() > 0, "{said}");
}

/// A connection whose reply is lost is replaced, and then has another server process, as behind a
/// pooler.
///
/// The network is so slow that every connection is pinged before it is reused.
#[tokio::test]
async fn a_connection_that_is_replaced_while_connecting_is_not_taken_for_a_pooler() {
    let url = server().url();
    Client::connect(&url).await.unwrap();
    let direct = server().address().port().to_string();
    for first in (0..).step_by(8) {
        let mut runs = JoinSet::new();
        for nth in first..first + 8 {
            let proxy = Proxy::start(server().address()).await;
            let through = url.replace(&direct, &proxy.address().port().to_string());
            proxy.latency(Duration::from_millis(100));
            proxy.swallow_reply_after(nth);
            runs.spawn(async move {
                let mut connecting = pin!(Client::connect(&through));
                let connected = tokio::select! {
                    connected = &mut connecting => connected,
                    () = proxy.swallowed() => {
                        proxy.heal().await;
                        connecting.await
                    }
                };
                if let Err(error) = connected {
                    assert!(error.is_retryable(), "without reply {nth}: {error}");
                }
                proxy.still_to_swallow() == 0
            });
        }
        if !runs.join_all().await.contains(&true) {
            return assert!(first > 0, "no reply was lost");
        }
    }
}

#[tokio::test]
async fn tls_verifies_the_server() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let server = Postgres::start();
    // Only a server that was fetched may lack it.
    if server.sql("postgres", "SHOW ssl_library").is_empty() {
        return println!("this PostgreSQL was built without TLS");
    }
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
    // The new rules are read soon; then there is no access without a password.
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
        .args(["--exact", "access::child_that_has_the_password"])
        .env("LOCKKEEPER_TEST_URL", &url)
        .env("PGPASSWORD", "canary")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}
