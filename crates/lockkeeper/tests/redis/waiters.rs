//! The waiters for a mutex without a queue, as `inspect` shows them.

use std::time::Duration;

use lockkeeper::{Client, Error, Owner};
use lockkeeper_testkit::server::redis::Server;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);

async fn connect(server: &Server) -> Client {
    Client::connect(server.url()).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until the waiters have these notes, the longest waiting first.
async fn notes(client: &Client, expected: &[&str]) {
    let started = Instant::now();
    loop {
        let seen = client.inspect("N").await.unwrap().and_then(|seen| seen.waiters);
        let seen = seen.unwrap_or_default();
        let notes: Vec<_> = seen.iter().filter_map(|waiter| waiter.note.as_deref()).collect();
        if notes == expected {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{notes:?} instead of {expected:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_a_plain_mutex_are_shown_while_they_wait() {
    let server = Server::start();
    let holder = connect(&server).await;
    let guard = holder.mutex("N").acquire().await.unwrap();
    assert!(holder.inspect("N").await.unwrap().unwrap().waiters.is_none(), "others leave no trace");
    // With an owner, as the command asks, and without.
    let (plain, owned) = (connect(&server).await, connect(&server).await);
    let first = tokio::spawn(plain.mutex("N").note("plain").acquire());
    notes(&holder, &["plain"]).await;
    let second = tokio::spawn(owned.mutex("N").owner(&Owner::new()).note("owned").acquire());
    notes(&holder, &["plain", "owned"]).await;
    // A waiter that gives up is no longer shown, nor is one that is granted.
    let impatient = connect(&server).await;
    let late = impatient.mutex("N").note("late").acquire_within(Duration::from_millis(500)).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    notes(&holder, &["plain", "owned"]).await;
    second.abort();
    notes(&holder, &["plain"]).await;
    guard.release().await.unwrap();
    let guard = timeout(PATIENCE, first).await.unwrap().unwrap().unwrap();
    notes(&holder, &[]).await;
    assert_eq!(server.ask(&["EXISTS", "lockkeeper_waiters:{N}"]), "0");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_shown_on_a_full_server_or_waits_unseen() {
    let server = Server::start();
    let holder = connect(&server).await;
    let guard = holder.mutex("N").acquire().await.unwrap();
    let waiter = connect(&server).await;
    let mut waiting = tokio::spawn(waiter.mutex("N").note("waits").acquire());
    notes(&holder, &["waits"]).await;
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    // Longer than it takes until it asks again.
    let ended = timeout(Duration::from_secs(7), &mut waiting).await;
    assert!(ended.is_err(), "a full server is no reason to give up a wait");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    guard.release().await.unwrap();
    timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_request_to_give_way_is_not_listed_as_a_lock() {
    let server = Server::start();
    let client = Client::connect(server.url() + "?layout=string").await.unwrap();
    let guard = client.mutex("key").acquire().await.unwrap();
    assert_eq!(client.request_yield("key").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    assert_eq!(server.ask(&["EXISTS", "lockkeeper_asked:{key}"]), "1", "it is kept for a while");
    for url in [server.url(), server.url() + "?layout=string"] {
        let listed = Client::connect(url).await.unwrap().list("").await.unwrap();
        assert!(listed.is_empty(), "{listed:?}");
    }
}
