//! Whatever is dropped, whenever: nothing is left behind.

use std::time::Duration;

use lockkeeper::engine::Support;
use lockkeeper::{Client, Error, Key, Lock, Loss};
use tokio::time::sleep;

use super::Store;
use super::check::{SOON, nothing_left, take, take_soon};
use crate::poll::{poll_once, poll_times};

/// More polls than an acquire ever needs.
const POLLS: usize = 200;

/// A kind of lock, and one that conflicts with it.
struct Kind {
    lock: fn(&Client) -> Lock,
    opponent: fn(&Client) -> Lock,
}

/// Every kind that the engine supports.
async fn kinds(store: &Store) -> Vec<Kind> {
    let guarantees = store.guarantees().await;
    let mut kinds = vec![Kind { lock: |c| c.mutex("key"), opponent: |c| c.mutex("key") }];
    if guarantees.read_write == Support::Yes {
        kinds.push(Kind { lock: |c| c.read("key"), opponent: |c| c.write("key") });
        kinds.push(Kind { lock: |c| c.write("key"), opponent: |c| c.read("key") });
    }
    if guarantees.semaphore == Support::Yes {
        let two: fn(&Client) -> Lock = |c| c.semaphore("key", 3).permits(2);
        kinds.push(Kind { lock: two, opponent: two });
    }
    kinds
}

pub(super) async fn dropped_at_any_poll_a_free_lock_leaves_nothing(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    for Kind { lock, .. } in kinds(&store).await {
        nothing_is_left(&other, lock, async |polls| {
            poll_times(lock(&client).acquire(), polls).await.is_some()
        })
        .await;
    }
}

pub(super) async fn dropped_at_any_poll_a_busy_lock_leaves_nothing(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    for Kind { lock, opponent } in kinds(&store).await {
        nothing_is_left(&other, lock, async |polls| {
            let guard = opponent(&other).acquire_within(SOON).await.unwrap();
            let (acquired, ()) = tokio::join!(poll_times(lock(&client).acquire(), polls), async {
                sleep(Duration::from_millis(5)).await;
                guard.release().await.unwrap();
            });
            acquired.is_some()
        })
        .await;
    }
}

/// Drops an acquire after one poll, after two, and so on until it completes; each time the lock
/// must become free again. `acquire` returns whether it completed.
async fn nothing_is_left(
    other: &Client,
    lock: fn(&Client) -> Lock,
    mut acquire: impl AsyncFnMut(usize) -> bool,
) {
    for polls in 1..POLLS {
        let complete = acquire(polls).await;
        take_soon(lock(other)).await.release().await.unwrap();
        nothing_left(other, "key").await;
        if complete {
            return;
        }
    }
    panic!("the lock is not taken within {POLLS} polls");
}

pub(super) async fn a_dropped_guard_is_released(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    for Kind { lock, .. } in kinds(&store).await {
        drop(take(lock(&client)).await);
        // The same client does not find its own remains, though the release has hardly begun.
        let guard = take(lock(&client)).await;
        drop(guard);
        nothing_left(&other, "key").await;
        take(lock(&other)).await.release().await.unwrap();
    }
}

pub(super) async fn a_guard_dropped_in_a_long_poll_is_released(store: Store) {
    let client = store.client().await;
    for Kind { lock, .. } in kinds(&store).await {
        for _ in 0..20 {
            let guard = take(lock(&client)).await;
            // The runtime's budget limits the work of one poll; then every channel returns
            // "pending".
            while poll_once(&mut Box::pin(tokio::task::consume_budget())).await.is_ready() {}
            drop(guard);
            take(lock(&client)).await.release().await.unwrap();
        }
    }
}

pub(super) async fn a_release_dropped_at_any_poll_is_finished(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    for polls in 1..POLLS {
        let guard = take(client.mutex("key")).await;
        let released = poll_times(guard.release(), polls).await;
        nothing_left(&other, "key").await;
        if released.is_some() {
            return;
        }
    }
    panic!("a release does not end within {POLLS} polls");
}

pub(super) async fn close_waits_for_releases(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(take(client.mutex(format!("key {n}"))).await);
    }
    drop(guards);
    client.close().await;
    for n in 0..20 {
        take(other.mutex(format!("key {n}"))).await.release().await.unwrap();
    }
}

pub(super) async fn an_abandoned_acquire_does_not_make_a_try_busy(store: Store) {
    let client = store.client().await;
    for polls in 1..POLLS {
        let complete = poll_times(client.mutex("key").acquire(), polls).await.is_some();
        let tried = client.mutex("key").try_acquire().await.unwrap();
        let Some(guard) = tried else { panic!("busy with its own, dropped at poll {polls}") };
        guard.release().await.unwrap();
        if complete {
            return;
        }
    }
    panic!("the lock is not taken within {POLLS} polls");
}

pub(super) async fn a_shutdown_leaves_nothing(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    let theirs = take(other.mutex("theirs")).await;
    let waiting = tokio::spawn(client.mutex("theirs").acquire());
    let forgotten = take(client.mutex("forgotten")).await;
    let obedient = take(client.mutex("obedient")).await;
    let stopping = tokio::spawn(client.clone().shutdown(Duration::from_millis(500)));
    assert_eq!(obedient.lost().await, Loss::Shutdown);
    obedient.check().unwrap();
    drop(obedient);
    assert!(matches!(waiting.await.unwrap(), Err(Error::Shutdown)));
    let late = stopping.await.unwrap();
    assert_eq!(late.iter().map(Key::as_str).collect::<Vec<_>>(), ["forgotten"]);
    assert!(matches!(forgotten.check(), Err(Error::Lost { reason: Loss::Shutdown, .. })));
    assert!(matches!(client.mutex("new").acquire().await, Err(Error::Shutdown)));
    for key in ["forgotten", "obedient"] {
        take_soon(other.mutex(key)).await.release().await.unwrap();
    }
    theirs.release().await.unwrap();
    for key in ["forgotten", "obedient", "theirs"] {
        nothing_left(&other, key).await;
    }
}
