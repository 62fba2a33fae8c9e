//! Semaphores: never more permits than the limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::engine::{Death, Mode};
use lockkeeper::{Client, Error, Fence};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Store;
use super::check::{busy, take};
use crate::fault_link::Call;

pub(super) async fn permits_are_never_exceeded(store: Store) {
    const LIMIT: u32 = 4;
    if !store.does_permits().await {
        return;
    }
    let clients = [store.client().await, store.client().await, store.client().await];
    let inside = Arc::new(Mutex::new(BTreeSet::new()));
    let mut tasks = JoinSet::new();
    for n in 0..24 {
        let (client, inside) = (clients[n % clients.len()].clone(), inside.clone());
        let take = n as u32 % 3 + 1;
        tasks.spawn(async move {
            for _ in 0..4 {
                let lock = client.semaphore("key", LIMIT).permits(take);
                let guard = lock.acquire().await.unwrap();
                assert_eq!(guard.slots().len(), take as usize);
                for slot in guard.slots() {
                    assert!(*slot < LIMIT, "there is no slot {slot} of {LIMIT}");
                    assert!(inside.lock().unwrap().insert(*slot), "two in slot {slot}");
                }
                sleep(Duration::from_millis(1)).await;
                for slot in guard.slots() {
                    inside.lock().unwrap().remove(slot);
                }
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

pub(super) async fn several_permits_are_taken_at_once(store: Store) {
    if !store.does_permits().await {
        return;
    }
    let (a, b) = (store.client().await, store.client().await);
    let two = take(a.semaphore("key", 3).permits(2)).await;
    assert_eq!(two.mode(), Mode::Permits { take: 2, limit: 3 });
    busy(a.semaphore("key", 3).permits(2)).await;
    busy(b.semaphore("key", 3).permits(2)).await;
    let one = take(b.semaphore("key", 3)).await;
    busy(a.semaphore("key", 3)).await;
    two.release().await.unwrap();
    take(b.semaphore("key", 3).permits(2)).await.release().await.unwrap();
    one.release().await.unwrap();
    take(a.semaphore("key", 3).permits(3)).await.release().await.unwrap();
}

pub(super) async fn every_slot_has_fences_of_its_own_that_rise(store: Store) {
    if !store.does_permits().await {
        return;
    }
    let clients = [store.client().await, store.client().await];
    let mut last: BTreeMap<u32, Fence> = BTreeMap::new();
    let mut held = std::collections::VecDeque::new();
    for n in 0..12 {
        let guard = take(clients[n % 2].semaphore("key", 3)).await;
        for slot in guard.slots() {
            let before = last.insert(*slot, guard.fence());
            assert!(before < Some(guard.fence()), "slot {slot}: {before:?}, then {guard:?}");
        }
        held.push_back(guard);
        if held.len() == 3 {
            // From the front and from the back, so that slots are reused in another order.
            let guard = if n % 2 == 0 { held.pop_front() } else { held.pop_back() };
            guard.expect("three are held").release().await.unwrap();
        }
    }
    assert!(last.len() > 1, "only one slot was ever used: {last:?}");
}

pub(super) async fn limits_that_differ_are_refused_naming_both(store: Store) {
    if !store.does_permits().await {
        return;
    }
    let (a, b) = (store.client().await, store.client().await);
    let guard = take(a.semaphore("key", 37)).await;
    for client in [&a, &b] {
        match client.semaphore("key", 41).try_acquire().await {
            Err(Error::Conflict { key, found, .. }) => {
                assert_eq!(key.as_str(), "key");
                assert!(found.contains("37") && found.contains("41"), "{found}");
            }
            other => panic!("another limit should be a conflict: {other:?}"),
        }
    }
    guard.release().await.unwrap();
}

/// One claim can take, keep and release as many permits as the engine promises, next to another
/// claim of the same size; one more is refused before any request.
pub(super) async fn many_permits_are_taken_or_refused_with_the_number(store: Store) {
    if !store.does_permits().await {
        return;
    }
    let most = store.guarantees().await.most_permits;
    let (client, link) = store.linked().await;
    for take in [8_000, 100_000, most.saturating_add(1), u32::MAX] {
        if take <= most {
            continue;
        }
        match client.semaphore("key", u32::MAX).permits(take).acquire().await {
            Err(Error::Unsupported { what, .. }) => {
                assert!(what.contains(&most.to_string()), "{what}");
                assert!(what.contains(&take.to_string()), "{what}");
            }
            other => panic!("{take} permits should be refused: {other:?}"),
        }
    }
    assert_eq!(link.calls(Call::Attempt), 0, "refused, but only after asking the store");

    // This many take a busy machine a while, and a session cannot be made longer for it.
    let ttl = store.lease() * 4;
    let is_session = store.guarantees().await.death == Death::Session;
    let many = if is_session { most.min(100) } else { most };
    let lock = |client: &Client| client.semaphore("key", many * 2).permits(many).ttl(ttl);
    let (first, second) = (take(lock(&client)).await, take(lock(&store.client().await)).await);
    let slots: BTreeSet<_> = first.slots().iter().chain(second.slots()).collect();
    assert_eq!(slots.len(), many as usize * 2, "two have the same permit");
    busy(store.client().await.semaphore("key", many * 2)).await;
    // Renewals have to cover them too.
    sleep(ttl).await;
    first.check().unwrap();
    second.check().unwrap();
    let seen = client.inspect("key").await.unwrap().expect("two hold it");
    assert!(seen.holders.iter().all(|holder| holder.slots.len() == many as usize));
    first.release().await.unwrap();
    take(lock(&client)).await.release().await.unwrap();
    second.release().await.unwrap();
}

pub(super) async fn a_semaphore_is_not_a_mutex(store: Store) {
    if !store.does_permits().await {
        return;
    }
    let (a, b) = (store.client().await, store.client().await);
    let permit = take(a.semaphore("key", 3)).await;
    for client in [&a, &b] {
        let refused = client.mutex("key").acquire().await;
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    }
    permit.release().await.unwrap();
    let guard = take(a.mutex("key")).await;
    for client in [&a, &b] {
        let refused = client.semaphore("key", 3).acquire().await;
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    }
    guard.release().await.unwrap();
}
