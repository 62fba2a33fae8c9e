//! Replies that are lost after the effect: unknown is not no, and nothing happens twice.

use std::time::Duration;

use lockkeeper::engine::Support;
use lockkeeper::{Error, Release};
use tokio::time::timeout;

use super::Store;
use super::check::{SOON, busy, eventually, nothing_left, take};
use crate::fault_link::Call;
use crate::poll::poll_once;

pub(super) async fn a_lost_reply_to_an_acquire_is_one_grant(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    for lost in 1..=3 {
        link.swallow(Call::Attempt, lost);
        let guard = client.mutex("key").acquire().await.unwrap();
        let snapshot = other.inspect("key").await.unwrap().expect("it is held");
        assert_eq!(snapshot.holders.len(), 1, "{snapshot:?}");
        assert!(snapshot.waiters.is_none_or(|line| line.is_empty()));
        busy(other.mutex("key")).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        nothing_left(&other, "key").await;
    }
    if store.guarantees().await.semaphore == Support::Yes {
        link.swallow(Call::Attempt, 2);
        let guard = client.semaphore("permits", 2).acquire().await.unwrap();
        let second = take(other.semaphore("permits", 2)).await;
        guard.release().await.unwrap();
        second.release().await.unwrap();
    }
}

pub(super) async fn a_lost_reply_to_a_try_is_one_grant(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    link.swallow(Call::Attempt, 1);
    let guard = take(client.mutex("key")).await;
    busy(other.mutex("key")).await;
    guard.release().await.unwrap();
    // Also if the lost answer was "busy".
    let taken = take(other.mutex("key")).await;
    link.swallow(Call::Attempt, 1);
    busy(client.mutex("key")).await;
    taken.release().await.unwrap();
    nothing_left(&other, "key").await;
}

/// The second failure in a row begins it, and the answer that follows ends it.
pub(super) async fn an_outage_is_told_from_its_beginning_to_its_end(store: Store) {
    let (client, link) = store.linked().await;
    let mut outages = client.outages();
    link.refuse(Call::Attempt, 1);
    let guard = client.mutex("key").acquire().await.unwrap();
    assert!(outages.current().is_none(), "{outages:?}");
    guard.release().await.unwrap();
    link.refuse(Call::Attempt, 3);
    let observing = async {
        let outage = outages.changed().await.expect("it begins");
        assert!(!outage.cause.is_empty());
        let end = outages.changed().await;
        assert!(end.is_none(), "{end:?}");
    };
    let acquiring = client.mutex("key").acquire();
    let both = async { tokio::join!(acquiring, observing) };
    let (guard, ()) = timeout(SOON, both).await.expect("both are told");
    guard.unwrap().release().await.unwrap();
    assert!(outages.current().is_none(), "{outages:?}");
}

pub(super) async fn a_lost_reply_to_a_renewal_keeps_the_lock(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    // A lease has time for two attempts, and a busy machine needs some of it too.
    let guard = take(client.mutex("key").ttl(store.lease() * 2)).await;
    for _ in 0..3 {
        let before = link.calls(Call::Renew);
        link.swallow(Call::Renew, 1);
        eventually("the renewal is repeated", async || {
            link.calls(Call::Renew) >= before + 2 && guard.trouble().is_none()
        })
        .await;
        guard.check().unwrap();
    }
    busy(other.mutex("key")).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    nothing_left(&other, "key").await;
}

pub(super) async fn a_lost_reply_to_a_release_frees_the_lock(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    link.swallow(Call::Release, 2);
    let guard = take(client.mutex("key")).await;
    let fence = guard.fence();
    assert_eq!(guard.release().await.unwrap(), Release::Unconfirmed);
    let next = other.mutex("key").acquire_within(SOON).await.unwrap();
    assert!(next.fence() > fence);
    // The repeated release finds another holder and does not touch it.
    client.close().await;
    next.check().unwrap();
    busy(store.client().await.mutex("key")).await;
    link.swallow(Call::Release, 2);
    drop(next);
    nothing_left(&other, "key").await;
}

pub(super) async fn an_acquire_abandoned_without_a_reply_leaves_nothing(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    for _ in 0..3 {
        link.cut(Call::Attempt, true);
        let mut acquire = Box::pin(client.mutex("key").acquire());
        assert!(poll_once(&mut acquire).await.is_pending());
        drop(acquire);
        // The request arrives when its result is no longer wanted.
        link.cut(Call::Attempt, false);
        nothing_left(&other, "key").await;
        client.mutex("key").acquire_within(SOON).await.unwrap().release().await.unwrap();
    }
}

pub(super) async fn a_release_that_is_refused_for_a_while_is_repeated(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    // A server that is out of memory or disk space, and recovers a little later.
    let refusals = 3;
    link.refuse(Call::Release, refusals);
    let guard = take(client.mutex("key")).await;
    assert_eq!(guard.release().await.unwrap(), Release::Unconfirmed);
    nothing_left(&other, "key").await;
    link.refuse(Call::Release, refusals);
    drop(take(client.mutex("key")).await);
    nothing_left(&other, "key").await;
    // A release that is no longer awaited.
    link.refuse(Call::Release, refusals);
    let mut release = Box::pin(take(client.mutex("key")).await.release());
    let _ = poll_once(&mut release).await;
    drop(release);
    nothing_left(&other, "key").await;
    // A waiter that gave up, and may have a place in a queue.
    let taken = take(other.mutex("key")).await;
    link.refuse(Call::Release, refusals);
    let within = client.mutex("key").acquire_within(Duration::from_millis(50)).await;
    assert!(matches!(within, Err(Error::Timeout { .. })), "{within:?}");
    taken.release().await.unwrap();
    nothing_left(&other, "key").await;
}
