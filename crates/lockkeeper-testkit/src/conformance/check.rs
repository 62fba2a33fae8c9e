//! Helpers that the cases share.

use std::time::Duration;

use lockkeeper::engine::Order;
use lockkeeper::{Client, Guard, Lock};
use tokio::time::{Instant, sleep};

/// How long something that should be immediate may take.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// Waits until something is true.
pub(super) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < SOON, "{what}: not within {SOON:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Acquires a lock that must be free.
pub(super) async fn take(lock: Lock) -> Guard {
    let shown = format!("{lock:?}");
    match lock.try_acquire().await {
        Ok(Some(guard)) => guard,
        Ok(None) => panic!("busy: {shown}"),
        Err(error) => panic!("{error}: {shown}"),
    }
}

/// Acquires a lock that is free, or will be as soon as pending requests have ended.
///
/// A request that was abandoned on its way to a server is undone when its answer arrives.
pub(super) async fn take_soon(lock: Lock) -> Guard {
    let shown = format!("{lock:?}");
    lock.acquire_within(SOON).await.unwrap_or_else(|error| panic!("{error}: {shown}"))
}

/// Asserts that a lock is busy.
pub(super) async fn busy(lock: Lock) {
    let shown = format!("{lock:?}");
    match lock.try_acquire().await {
        Ok(None) => {}
        other => panic!("it should be busy, but: {other:?} of {shown}"),
    }
}

/// Waits until this many clients wait for a key. False if the engine does not know.
pub(super) async fn queued(client: &Client, key: &str, waiters: usize) -> bool {
    let started = Instant::now();
    loop {
        let snapshot = client.inspect(key).await.expect("it can be inspected");
        match snapshot.map(|snapshot| snapshot.waiters) {
            // An engine that keeps an order shows who waits, once somebody does.
            Some(None) if client.guarantees().order != Order::Fifo => return false,
            Some(Some(line)) if line.len() >= waiters => return true,
            _ => assert!(started.elapsed() < SOON, "no {waiters} waiters of {key:?} to be seen"),
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Asserts that a key soon has no holders and waiters.
pub(super) async fn nothing_left(client: &Client, key: &str) {
    eventually(&format!("nobody is left at {key:?}"), async || {
        client.inspect(key).await.expect("it can be inspected").is_none()
    })
    .await;
}
