//! Several locks at once: all or nothing, and never a deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{Client, Error, Multi};
use tokio::task::JoinSet;

use super::Store;
use super::check::{busy, eventually, nothing_left, take};

fn locks(client: &Client, keys: [&str; 3]) -> Multi {
    Multi::new(keys.map(|key| client.mutex(key)))
}

pub(super) async fn all_or_nothing(store: Store) {
    let (a, b) = (store.client().await, store.client().await);
    let taken = take(b.mutex("2")).await;
    assert!(locks(&a, ["3", "2", "1"]).try_acquire().await.unwrap().is_none());
    let within = locks(&a, ["1", "2", "3"]).acquire_within(Duration::from_millis(100)).await;
    assert!(matches!(within, Err(Error::Timeout { .. })), "{within:?}");
    for key in ["1", "3"] {
        nothing_left(&a, key).await;
        take(b.mutex(key)).await.release().await.unwrap();
    }
    taken.release().await.unwrap();
    let all = locks(&a, ["2", "3", "1"]).acquire().await.unwrap();
    all.check().unwrap();
    assert_eq!(all.guards().len(), 3);
    for key in ["1", "2", "3"] {
        busy(b.mutex(key)).await;
    }
    all.release().await.unwrap();
    take(b.mutex("1")).await.release().await.unwrap();
}

pub(super) async fn any_order_of_arguments_ends(store: Store) {
    let clients = [store.client().await, store.client().await];
    let orders = [["1", "2", "3"], ["3", "1", "2"], ["2", "3", "1"], ["3", "2", "1"]];
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        let client = clients[n % 2].clone();
        tasks.spawn(async move {
            for _ in 0..3 {
                let all = locks(&client, orders[n % orders.len()]).acquire().await.unwrap();
                all.check().unwrap();
                all.release().await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

pub(super) async fn a_foreign_order_does_not_deadlock(store: Store) {
    let (ours, theirs) = (store.client().await, store.client().await);
    let foreigner = tokio::spawn(async move {
        for _ in 0..3 {
            // The order that ours never uses, and no limit at all.
            let third = theirs.mutex("3").acquire().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let first = theirs.mutex("1").acquire().await.unwrap();
            first.release().await.unwrap();
            third.release().await.unwrap();
        }
    });
    for _ in 0..3 {
        let all = locks(&ours, ["1", "2", "3"]).acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        all.release().await.unwrap();
    }
    foreigner.await.unwrap();
}

pub(super) async fn a_multi_lock_is_not_starved_by_contention_on_one_lock(store: Store) {
    let client = store.client().await;
    let (mut crowd, entered) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..8 {
        let (lock, entered) = (client.mutex("2"), entered.clone());
        crowd.spawn(async move {
            loop {
                let guard = lock.clone().acquire().await.unwrap();
                entered.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
                guard.release().await.unwrap();
            }
        });
    }
    eventually("everyone is there", async || entered.load(Ordering::Relaxed) >= 8).await;
    for _ in 0..2 {
        // One round of the queue takes most of a second.
        let all = locks(&client, ["1", "2", "3"]).acquire_within(Duration::from_secs(15)).await;
        all.expect("its turn came").release().await.unwrap();
    }
    crowd.shutdown().await;
}

pub(super) async fn a_key_named_twice_is_refused(store: Store) {
    let client = store.client().await;
    for bad in [locks(&client, ["1", "2", "1"]), Multi::new([])] {
        match bad.acquire().await {
            Err(Error::Config(message)) => {
                assert!(message.contains("once") || message.contains("at least one"), "{message}");
            }
            other => panic!("it should be refused: {other:?}"),
        }
    }
    nothing_left(&client, "1").await;
}
