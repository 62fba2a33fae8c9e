//! An owner may re-enter; nobody else may.

use std::time::Duration;

use lockkeeper::engine::Reentrance;
use lockkeeper::{Client, Error, Owner};
use tokio::time::sleep;

use super::Store;
use super::check::{busy, nothing_left, take};
use crate::fault_link::Call;
use crate::poll::poll_once;

pub(super) async fn an_owner_enters_again_and_others_do_not(store: Store) {
    let (client, link) = store.linked().await;
    let other = store.client().await;
    let (owner, stranger) = (Owner::new(), Owner::new());
    let outer = take(client.mutex("key").owner(&owner)).await;
    let asked = link.calls(Call::Attempt);
    let inner = take(client.mutex("key").owner(&owner)).await;
    assert_eq!(link.calls(Call::Attempt), asked, "re-entry costs no request");
    assert_eq!(inner.fence(), outer.fence(), "it is the same hold");
    for client in [&client, &other] {
        busy(client.mutex("key")).await;
        busy(client.mutex("key").owner(&stranger)).await;
    }
    // A waiter does not block the owner: that would be a deadlock.
    let mut waiting = Box::pin(client.mutex("key").acquire());
    assert!(poll_once(&mut waiting).await.is_pending());
    drop(take(client.mutex("key").owner(&owner)).await);
    drop((inner, outer));
    waiting.await.unwrap().release().await.unwrap();
}

pub(super) async fn the_last_guard_releases(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    let owner = Owner::new();
    let first = take(client.mutex("key").owner(&owner)).await;
    let second = take(client.mutex("key").owner(&owner)).await;
    first.release().await.unwrap();
    second.check().unwrap();
    busy(other.mutex("key")).await;
    busy(client.mutex("key")).await;
    second.release().await.unwrap();
    nothing_left(&client, "key").await;
    take(other.mutex("key")).await.release().await.unwrap();
}

pub(super) async fn a_writer_may_read(store: Store) {
    if !store.does_read_write().await {
        return;
    }
    let (client, other) = (store.client().await, store.client().await);
    let owner = Owner::new();
    let writer = take(client.write("key").owner(&owner)).await;
    let reader = take(client.read("key").owner(&owner)).await;
    writer.release().await.unwrap();
    reader.check().unwrap();
    busy(other.write("key")).await;
    reader.release().await.unwrap();
    take(other.write("key")).await.release().await.unwrap();
}

pub(super) async fn a_reader_may_not_write(store: Store) {
    if !store.does_read_write().await {
        return;
    }
    let client = store.client().await;
    let owner = Owner::new();
    let reader = take(client.read("key").owner(&owner)).await;
    match client.write("key").owner(&owner).acquire().await {
        Err(Error::Unsupported { what, .. }) => {
            assert!(what.contains("release it first"), "{what}");
        }
        other => panic!("an upgrade waits for itself and should be refused: {other:?}"),
    }
    reader.check().unwrap();
    take(client.read("key").owner(&owner)).await.release().await.unwrap();
    reader.release().await.unwrap();
    take(client.write("key").owner(&owner)).await.release().await.unwrap();
}

pub(super) async fn an_owner_enters_through_another_client_where_promised(store: Store) {
    let (here, there) = (store.client().await, store.client().await);
    let owner = Owner::new();
    let first = take(here.mutex("key").owner(&owner)).await;
    if store.guarantees().await.reentrance == Reentrance::Client {
        busy(there.mutex("key").owner(&owner)).await;
        return;
    }
    let second = take(there.mutex("key").owner(&owner)).await;
    busy(there.mutex("key").owner(&Owner::new())).await;
    first.release().await.unwrap();
    busy(here.mutex("key")).await;
    second.check().unwrap();
    second.release().await.unwrap();
    take(here.mutex("key")).await.release().await.unwrap();
}

/// The holds of one owner in two clients last as long as each was requested, whichever came first.
pub(super) async fn a_short_hold_does_not_end_a_long_one_of_its_owner(store: Store) {
    if store.guarantees().await.reentrance == Reentrance::Client || !store.does_read_write().await {
        return;
    }
    let (one, two, other) = (store.client().await, store.client().await, store.client().await);
    let (short, long) = (store.lease() / 2, store.lease() * 10);
    let kinds: [fn(&Client, &str) -> lockkeeper::Lock; 3] = [
        |client, key| client.mutex(key),
        |client, key| client.write(key),
        |client, key| client.read(key),
    ];
    let mut held = Vec::new();
    for (n, kind) in kinds.iter().enumerate() {
        for short_first in [true, false] {
            let key = format!("key {n} {short_first}");
            let owner = Owner::new();
            let hold = async |client: &Client, lease: Duration| {
                take(kind(client, &key).owner(&owner).lease(lease)).await
            };
            let (brief, lasting) = match short_first {
                true => {
                    let brief = hold(&one, short).await;
                    (brief, hold(&two, long).await)
                }
                false => {
                    let lasting = hold(&two, long).await;
                    (hold(&one, short).await, lasting)
                }
            };
            brief.release().await.unwrap();
            let wanted = if n == 0 { other.mutex(&key) } else { other.write(&key) };
            held.push((key, lasting, wanted));
        }
    }
    sleep(short + store.slack() / 6).await;
    for (key, lasting, wanted) in held {
        lasting.check().unwrap();
        busy(wanted).await;
        lasting.check().unwrap();
        lasting.release().await.unwrap();
        nothing_left(&other, &key).await;
    }
}
