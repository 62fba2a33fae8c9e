//! Users that the servers know, and TLS.

use lockkeeper::engine::Severity;
use lockkeeper::{Client, Error};
use lockkeeper_testkit::certificates;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use tokio::task::spawn_blocking;

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_checked_on_both_sides_and_users_are_proved_by_sasl() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let servers = spawn_blocking(move || {
        certificates(&path);
        Ensemble::guarded(&path, "can@ry word")
    });
    let servers = servers.await.expect("a server can be started");
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let host = servers.secure_host();
    let tls = format!("session=10s&ca={ca}&cert={cert}&key={key}");
    let user = "keeper:can%40ry%20word";

    let url = format!("zookeepers://{user}@{host}/locks?auth=sasl&{tls}");
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("key").acquire().await.unwrap();
    let findings = client.doctor().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity < Severity::Problem), "{findings:#?}");
    // The servers know its owner, and let no other user touch it.
    let plain = format!("zookeeper://{user}@{}/locks?auth=sasl", servers.hosts());
    let same = Client::connect(plain).await.unwrap();
    assert!(same.mutex("key").try_acquire().await.unwrap().is_none());
    let other = Client::connect(format!("zookeeper://{}/locks", servers.hosts())).await.unwrap();
    let refused = other.mutex("key").try_acquire().await;
    assert!(matches!(refused, Err(Error::Engine { retryable: false, .. })), "{refused:?}");
    guard.release().await.unwrap();

    for refused in [
        // Without a certificate of our own, with a CA that did not sign, in plain text.
        format!("zookeepers://{host}/locks?session=10s&ca={ca}"),
        format!("zookeepers://{host}/locks?session=10s&ca={cert}&cert={cert}&key={key}"),
        format!("zookeeper://{host}/locks?session=1s"),
        // A password that is not the user's.
        format!("zookeepers://keeper:canary@{host}/locks?auth=sasl&{tls}"),
    ] {
        let connected = Client::connect(&refused).await;
        let shown = format!("{connected:?}");
        assert!(matches!(connected, Err(Error::Engine { .. })), "{refused}: {shown}");
        assert!(!shown.contains("canary"), "{shown}");
    }
    for (bad, hint) in [
        (format!("zookeepers://{host}/locks"), "ca=FILE"),
        (format!("zookeepers://{host}/locks?ca={ca}&cert={cert}"), "go together"),
        (format!("zookeepers://{host}/locks?ca=/nowhere.pem"), "/nowhere.pem"),
        (format!("zookeeper://{host}/locks?ca={ca}"), "it takes: session, acl, auth"),
    ] {
        let message = Client::connect(&bad).await.unwrap_err().to_string();
        assert!(message.contains(hint), "{bad}: {message}");
    }
}
