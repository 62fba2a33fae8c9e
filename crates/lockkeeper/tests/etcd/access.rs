//! Users, permissions and TLS.

use std::time::Duration;

use lockkeeper::engine::Severity;
use lockkeeper::{Client, Error, Release};
use lockkeeper_testkit::certificates;

use lockkeeper_testkit::server::etcd::Servers;

const TTL: Duration = Duration::from_secs(5);

/// A cluster on which `keeper` may use keys under `locks/`, and other users may do nothing.
fn guarded(more: &[&str]) -> Servers {
    let servers = Servers::with(1, more);
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "keeper"],
        &["role", "grant-permission", "keeper", "--prefix=true", "readwrite", "locks/"],
        &["user", "add", "keeper:p@ss word"],
        &["user", "grant-role", "keeper", "keeper"],
        &["auth", "enable"],
    ] {
        servers.ctl(command);
    }
    servers
}

fn url(servers: &Servers, prefix: &str) -> String {
    format!("etcd://keeper:p%40ss%20word@{}?prefix={prefix}", servers[0].address())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_rights_that_are_documented_are_enough_for_everything() {
    let servers = guarded(&[]);
    let client = Client::connect(url(&servers, "locks/")).await.unwrap();
    for lock in [
        client.mutex("a/b"),
        client.write("report"),
        client.read("report"),
        client.semaphore("gpu", 2),
    ] {
        let guard = lock.ttl(TTL).acquire().await.unwrap();
        assert_eq!(client.list("").await.unwrap().len(), 1);
        assert_eq!(client.break_lock(guard.key()).await.unwrap().len(), 1);
        assert_eq!(client.broken("").await.unwrap()[0].key, *guard.key());
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    }
    let findings = client.doctor().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity < Severity::Problem), "{findings:#?}");
    let bare = findings.iter().any(|finding| finding.what.contains("plain text"));
    assert!(bare, "the password was sent in plain text, and nobody said so");
    client.close().await;
}

/// Servers of version 3.6 answer those only to root.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_doctor_asks_for_what_only_root_may_see() {
    let servers = guarded(&[]);
    let client = Client::connect(url(&servers, "locks/")).await.unwrap();
    let guard = client.mutex("key").ttl(TTL).acquire().await.unwrap();
    assert_eq!(client.list("").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    for service in ["etcdserverpb.Maintenance", "etcdserverpb.Cluster"] {
        assert_eq!(servers.requests_of(service), 0, "{service}");
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permissions_and_wrong_passwords_are_reported_at_once_and_without_the_password() {
    let servers = guarded(&[]);
    let elsewhere = Client::connect(url(&servers, "elsewhere/")).await.unwrap();
    let refused = elsewhere.mutex("key").acquire().await;
    assert!(matches!(refused, Err(Error::Engine { retryable: false, .. })), "{refused:?}");
    let findings = elsewhere.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.severity == Severity::Problem), "{findings:#?}");
    let wrong = format!("etcd://keeper:canary@{}", servers[0].address());
    let refused = Client::connect(wrong).await;
    let shown = format!("{refused:?}");
    assert!(matches!(refused, Err(Error::Engine { .. })) && !shown.contains("canary"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ended_is_renewed_for_holders_and_waiters() {
    let servers = guarded(&["--auth-token-ttl", "1"]);
    let client = Client::connect(url(&servers, "locks/")).await.unwrap();
    let waiter = Client::connect(url(&servers, "locks/")).await.unwrap();
    let guard = client.mutex("key").ttl(TTL * 2).acquire().await.unwrap();
    // Long enough that its token expires unused.
    let waiting = tokio::spawn(waiter.mutex("key").ttl(TTL * 4).acquire());
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(3)).await;
        client.mutex("another").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
        guard.check().unwrap();
    }
    assert!(!waiting.is_finished());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    waiting.await.unwrap().unwrap().release().await.unwrap();
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_the_server_forgot_is_renewed_and_no_lock_is_lost() {
    let servers = guarded(&[]);
    let client = Client::connect(url(&servers, "locks/")).await.unwrap();
    let guard = client.mutex("key").ttl(TTL * 6).acquire().await.unwrap();
    // They are kept in memory only.
    servers[0].kill();
    servers[0].restart();
    let again = client.mutex("another").ttl(TTL).acquire().await.unwrap();
    assert!(again.fence() > guard.fence());
    again.release().await.unwrap();
    guard.check().unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_checked_on_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let file = |name: &str| directory.path().join(name).display().to_string();
    let servers = Servers::with(
        1,
        &[
            ["--cert-file", &file("server.pem")],
            ["--key-file", &file("server.key")],
            ["--trusted-ca-file", &file("ca.pem")],
            ["--client-cert-auth", "--auto-tls=false"],
        ]
        .concat(),
    );
    let host = servers[0].address().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let client = Client::connect(format!("etcds://{host}?ca={ca}&cert={cert}&key={key}"));
    let client = client.await.unwrap();
    client.mutex("key").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    client.close().await;
    for refused in [
        format!("etcds://{host}?ca={ca}"),
        format!("etcds://{host}?ca={cert}&cert={cert}&key={key}"),
        format!("etcds://{host}?ca={ca}&cert={cert}&key={key}&server_name=elsewhere"),
        format!("etcd://{host}"),
    ] {
        let connected = Client::connect(&refused).await;
        assert!(matches!(connected, Err(Error::Engine { .. })), "{refused}: {connected:?}");
    }
}
