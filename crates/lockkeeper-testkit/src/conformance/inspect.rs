//! Who holds, who waits, and why.

use std::time::Duration;

use lockkeeper::engine::{Mode, Order, Snapshot};
use lockkeeper::{Client, Error, Owner, whoami};
use tokio::time::{Instant, sleep};

use super::Store;
use super::check::{nothing_left, queued, take};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often a lock changes hands under the eyes of those who look.
const HAND_OFFS: usize = 50;

pub(super) async fn holders_and_waiters_are_seen(store: Store) {
    let observer = store.client().await;
    assert!(observer.inspect("key").await.unwrap().is_none(), "nobody was there yet");
    let holder = store.client().await;
    holder.set_command(Some("nightly\t--all"));
    let guard = take(holder.mutex("key").note("the holder's why")).await;
    let mut waiters = Vec::new();
    let mut line = true;
    for note in ["one", "two", "three"] {
        let waiter = store.client().await;
        waiter.set_command(Some(note).filter(|note| *note != "two"));
        let lock = waiter.mutex("key").note(note);
        waiters.push(tokio::spawn(async move {
            lock.acquire().await.unwrap().release().await.unwrap()
        }));
        line &= queued(&observer, "key", waiters.len()).await;
    }
    let snapshot = observer.inspect("key").await.unwrap().expect("it is held");
    assert_eq!(snapshot.key.as_str(), "key");
    let [entry] = &snapshot.holders[..] else { panic!("one holder: {snapshot:?}") };
    assert_eq!(entry.mode, Mode::Mutex);
    assert_eq!(entry.note.as_deref(), Some("the holder's why"));
    assert_eq!(entry.who.as_deref(), Some(whoami().as_str()));
    assert_eq!(entry.command.as_deref(), Some("nightly --all"));
    assert!(entry.since.is_some());
    assert_eq!(entry.fence.unwrap_or(guard.fence()), guard.fence());
    assert!(snapshot.fence.unwrap_or(guard.fence()) >= guard.fence());
    let listed = observer.list("key").await.unwrap();
    let [listed] = &listed[..] else { panic!("one lock: {listed:?}") };
    let left = |snapshot: &Snapshot| snapshot.holders[0].left.is_some();
    assert_eq!(left(listed), left(&snapshot), "a list tells what is left of a lease too");
    if line && matches!(store.guarantees().await.order, Order::Fifo) {
        let notes: Vec<_> = snapshot.waiters.iter().flatten().map(|w| w.note.as_deref()).collect();
        assert_eq!(notes, [Some("one"), Some("two"), Some("three")]);
    }
    let mut commands = Vec::new();
    for waiter in snapshot.waiters.iter().flatten() {
        assert_eq!(waiter.who.as_deref(), Some(whoami().as_str()));
        assert!(waiter.since.is_some(), "{waiter:?}");
        commands.extend(waiter.command.as_deref());
    }
    // A name of a connection, where a server keeps nothing else of a waiter, may be too short for it.
    let known = snapshot.waiters.iter().flatten().any(|waiter| waiter.note.is_some());
    if line && known {
        commands.sort_unstable();
        assert_eq!(commands, ["one", "three"], "{snapshot:?}");
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    nothing_left(&observer, "key").await;
}

pub(super) async fn a_lock_that_changes_hands_can_be_looked_at(store: Store) {
    let observer = store.client().await;
    let mut working = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let client = store.client().await;
        working.spawn(async move {
            for _ in 0..HAND_OFFS {
                client.mutex("key").acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    while !working.is_empty() {
        let seen = observer.inspect("key").await.expect("it can be inspected");
        let listed = observer.list("key").await.expect("it can be listed");
        for snapshot in seen.iter().chain(&listed) {
            assert_eq!(snapshot.key.as_str(), "key");
            assert!(snapshot.holders.len() <= 1, "more than one holder: {snapshot:?}");
        }
        while let Some(ended) = working.try_join_next() {
            ended.unwrap();
        }
        tokio::task::yield_now().await;
    }
    nothing_left(&observer, "key").await;
}

pub(super) async fn a_list_is_in_order_and_by_prefix(store: Store) {
    let (client, observer) = (store.client().await, store.client().await);
    let keys = ["a", "a/b", "a/c", "ab", "b", "z%_*"];
    let mut guards = Vec::new();
    for n in [3, 1, 5, 0, 4, 2] {
        guards.push(take(client.mutex(keys[n])).await);
    }
    let list = async |prefix: &str| -> Vec<String> {
        let snapshots = observer.list(prefix).await.unwrap();
        snapshots.iter().map(|snapshot| snapshot.key.to_string()).collect()
    };
    assert_eq!(list("").await, keys);
    assert_eq!(list("a/").await, ["a/b", "a/c"]);
    assert_eq!(list("a").await, ["a", "a/b", "a/c", "ab"]);
    // Nothing in a prefix is a pattern.
    assert_eq!(list("z%_*").await, ["z%_*"]);
    for nothing in ["*", "%", "_", "A", "zz"] {
        assert!(list(nothing).await.is_empty(), "{nothing:?}");
    }
}

/// A waiter that asks again and again has waited since it asked first.
pub(super) async fn the_age_of_a_waiter_counts_from_when_it_began_to_wait(store: Store) {
    // Longer than the time between two questions of a waiter.
    const WAIT: Duration = Duration::from_secs(5);
    if store.is_paused() {
        // Ages are by the wall clock.
        return;
    }
    let observer = store.client().await;
    let lock = |client: &Client| client.mutex("key");
    let guard = take(lock(&observer)).await;
    let (waiter, started) = (store.client().await, Instant::now());
    let waiting = tokio::spawn(lock(&waiter).acquire());
    let line = queued(&observer, "key", 1).await;
    let stood = started.elapsed();
    sleep(WAIT).await;
    let snapshot = observer.inspect("key").await.unwrap().expect("it is held");
    if let Some(waiter) = snapshot.waiters.iter().flatten().next().filter(|_| line) {
        let age = waiter.since.map(|since| since.elapsed().unwrap_or_default());
        let most = started.elapsed();
        // Some stores note it in whole milliseconds.
        let slack = Duration::from_millis(100);
        let is_right = |age| age + stood + slack >= WAIT && age <= most + slack;
        assert!(age.is_none_or(is_right), "a waiter of {most:?} is said to wait for {age:?}");
    }
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Whatever is not certainly a lock is neither held nor broken, and never changed.
pub(super) async fn data_that_is_no_lock_is_left_alone(store: Store) {
    let (client, owner) = (store.client().await, Owner::named("somebody").unwrap());
    for (n, data) in store.planted().iter().enumerate() {
        let key = format!("data-{n}");
        (data.plant)(key.clone()).await;
        let before = (data.look)(key.clone()).await;
        let what = &data.what;
        for lock in [
            client.mutex(&key),
            client.mutex(&key).fair(),
            client.mutex(&key).owner(&owner),
            client.read(&key),
            client.write(&key),
            client.semaphore(&key, 3),
        ] {
            let shown = format!("{lock:?}");
            let mut answers = Vec::new();
            for waits in [false, true] {
                let answer = match waits {
                    false => lock.clone().try_acquire().await,
                    // Whatever is no lock is not waited for.
                    true => lock.clone().acquire_within(PATIENCE).await.map(Some),
                };
                answers.push(match answer {
                    Err(Error::Conflict { .. } | Error::Unsupported { .. }) => "refused",
                    // Where a lock has room beside it.
                    Ok(Some(guard)) => {
                        guard.release().await.unwrap();
                        "granted"
                    }
                    other => panic!("{what} is no lock, but {shown}, waiting {waits}: {other:?}"),
                });
            }
            assert_eq!(answers[0], answers[1], "{what}: {shown}");
        }
        match client.inspect(&key).await {
            Ok(None) | Err(Error::Conflict { .. }) => {}
            other => panic!("{what} is no lock, and is seen as one: {other:?}"),
        }
        let listed = client.list(&key).await.unwrap();
        assert!(listed.is_empty(), "{what} is no lock, and is listed: {listed:?}");
        match client.break_lock(&key).await {
            Err(Error::Conflict { .. }) => {}
            Ok(broken) if broken.is_empty() => {}
            other => panic!("{what} is no lock, and was broken: {other:?}"),
        }
        assert_eq!((data.look)(key).await, before, "{what} was changed");
    }
}
