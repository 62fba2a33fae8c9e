//! How long a hold lasts, and how it ends without a release.

use std::time::Duration;

use lockkeeper::engine::{Death, Support};
use lockkeeper::{Error, Loss, Owner, Release, whoami};
use tokio::time::{Instant, sleep, timeout};

use super::Store;
use super::check::{SOON, busy, eventually, queued, take};
use crate::fault_link::Call;
use crate::poll::poll_once;

pub(super) async fn a_fixed_lease_ends_by_itself(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    let lease = store.lease();
    let started = Instant::now();
    let guard = take(client.mutex("key").lease(lease)).await;
    assert!(guard.remaining() <= lease, "{:?}", guard.remaining());
    busy(other.mutex("key")).await;
    assert_eq!(guard.lost().await, Loss::Ended);
    let held = started.elapsed();
    assert!(held < lease + store.slack(), "held for {held:?} of a lease of {lease:?}");
    let lost = guard.check();
    assert!(matches!(lost, Err(Error::Lost { reason: Loss::Ended, .. })), "{lost:?}");
    assert_eq!(guard.remaining(), Duration::ZERO);
    other.mutex("key").acquire_within(SOON).await.unwrap().release().await.unwrap();
    assert_eq!(link.calls(Call::Renew), 0, "a fixed lease is not renewed");
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
}

/// Regardless of what a client kept of the lock it had before, or of its time in the queue.
pub(super) async fn a_fixed_lease_lasts_as_long_as_asked_whatever_was_before(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    let lease = store.lease();
    let lock = || client.mutex("key").lease(lease);
    let before = take(lock()).await;
    assert_eq!(before.release().await.unwrap(), Release::Released);
    for waits in [false, true] {
        let first = match waits {
            true => Some(other.mutex("key").acquire_within(SOON).await.unwrap()),
            false => None,
        };
        let asked = Instant::now();
        let waiting = tokio::spawn(lock().acquire_within(SOON));
        if let Some(first) = first {
            queued(&other, "key", 1).await;
            first.release().await.unwrap();
        }
        let guard = waiting.await.unwrap().unwrap();
        let (granted, left) = (Instant::now(), guard.remaining());
        // A session vouches for a part of it at a time.
        if store.guarantees().await.death == Death::Lease {
            let whole = left + asked.elapsed();
            assert!(whole >= lease - lease / 50, "{left:?} left of {lease:?}");
        }
        assert_eq!(guard.lost().await, Loss::Ended);
        let next = other.mutex("key").acquire_within(SOON).await.unwrap();
        let held = granted.elapsed();
        // Leases and sessions are rounded up, but never by a whole one.
        let longest = lease.max(store.grace()) + lease / 2 + store.slack();
        assert!(held < longest, "free after {held:?} of a fixed lease of {lease:?}");
        assert_eq!(link.calls(Call::Renew), 0, "a fixed lease is not renewed");
        next.release().await.unwrap();
    }
}

pub(super) async fn the_watchdog_keeps_a_lock_past_its_ttl(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    let guard = take(client.mutex("key").ttl(store.lease())).await;
    // In steps, as a working holder would check it.
    for _ in 0..14 {
        sleep(store.lease() / 4).await;
        guard.check().unwrap();
        assert!(guard.remaining() > Duration::ZERO);
        busy(other.mutex("key")).await;
    }
    if store.guarantees().await.death == Death::Lease {
        assert!(link.calls(Call::Renew) >= 3, "renewed only {} times", link.calls(Call::Renew));
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

pub(super) async fn a_hung_renewal_cannot_hide_a_loss(store: Store) {
    let ((client, link), other) = (store.linked().await, store.client().await);
    let lease = store.lease();
    link.cut(Call::Renew, true);
    let started = Instant::now();
    let guard = take(client.mutex("key").ttl(lease)).await;
    if guard.remaining() == Duration::MAX {
        // The kernel holds it: there is no lease to lose, however long the store does not answer.
        assert_eq!(store.guarantees().await.death, Death::AtOnce);
        assert!(timeout(lease * 2, guard.lost()).await.is_err(), "it was lost all the same");
        guard.check().unwrap();
        return busy(other.mutex("key")).await;
    }
    let admitted = tokio::spawn(async move {
        let next = other.mutex("key").acquire_within(SOON + lease).await.unwrap();
        (Instant::now(), next.release().await.unwrap())
    });
    assert!(timeout(lease * 2, guard.lost()).await.is_ok(), "no signal within twice its lease");
    let (signalled, left) = (Instant::now(), guard.remaining());
    assert!(guard.check().is_err() && left == Duration::ZERO, "lost, and yet {left:?} left");
    let after = signalled - started;
    assert!(after < lease + store.slack(), "told after {after:?} of {lease:?}");
    let (admitted, _) = admitted.await.unwrap();
    let margin =
        admitted.checked_duration_since(signalled).expect("told only after the next was in");
    // Timers tick in milliseconds.
    let promised = (lease / 3).saturating_sub(store.slack() + Duration::from_millis(2));
    assert!(margin >= promised, "told only {margin:?} before the next one was let in");
    link.cut(Call::Renew, false);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
}

pub(super) async fn a_release_after_the_loss_reports_it(store: Store) {
    let client = store.client().await;
    let guard = take(client.mutex("key").lease(store.lease())).await;
    let unlike = take(client.mutex("another").lease(store.lease() * 20)).await;
    sleep(store.lease() + Duration::from_millis(20)).await;
    // The clock was not checked meanwhile, so this is the first to find out.
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    assert_eq!(unlike.release().await.unwrap(), Release::Released);
}

pub(super) async fn a_broken_lock_is_free_and_its_holder_learns(store: Store) {
    let (client, operator) = (store.client().await, store.client().await);
    assert!(operator.break_lock("key").await.is_ok_and(|broken| broken.is_empty()));
    let guard = take(client.mutex("key").ttl(store.lease()).note("broken")).await;
    let broken = operator.break_lock("key").await.unwrap();
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert!(broken[0].note.as_deref().is_none_or(|note| note == "broken"), "{broken:?}");
    let next = operator.mutex("key").acquire_within(SOON).await.unwrap();
    assert!(next.fence() > guard.fence(), "{} after {}", next.fence(), guard.fence());
    let told = timeout(store.lease(), guard.lost()).await;
    assert!(told.is_ok(), "the broken holder was not told within its lease");
    eventually("its check says so too", async || guard.check().is_err()).await;
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    next.check().unwrap();
    busy(client.mutex("key")).await;
    next.release().await.unwrap();
}

/// Before the watchdog, or the engine itself, would report it.
pub(super) async fn a_requested_renewal_reports_a_loss_at_once(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = take(client.mutex("key")).await;
    guard.renew().await.unwrap();
    other.break_lock("key").await.unwrap();
    let next = other.mutex("key").acquire_within(SOON).await.unwrap();
    let lost = guard.renew().await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    next.renew().await.unwrap();
    let fixed = take(client.mutex("fixed").lease(store.lease())).await;
    if store.guarantees().await.death == Death::Lease {
        let refused = fixed.renew().await;
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
}

/// The next hold of the same owner was not asked, however the one before it ended.
pub(super) async fn a_request_to_give_way_ends_with_its_hold(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    let owner = Owner::new();
    let guard = take(client.mutex("key").owner(&owner)).await;
    assert_eq!(other.request_yield("key").await.unwrap().len(), 1);
    timeout(SOON, guard.yield_requested()).await.expect("the holder is told");
    if other.break_lock("key").await.is_ok() {
        timeout(SOON, guard.lost()).await.expect("it is broken");
    }
    let _ = guard.release().await;
    let next = client.mutex("key").owner(&owner).acquire_within(SOON).await.unwrap();
    // Longer than any engine takes between two looks.
    let asked = timeout(Duration::from_secs(3), next.yield_requested()).await;
    assert!(asked.is_err(), "it was asked for the hold before");
    next.check().unwrap();
}

pub(super) async fn a_holder_is_asked_to_give_way(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = take(client.mutex("key").note("asked")).await;
    let beside = take(client.mutex("another")).await;
    let asked = other.request_yield_because("key", "a\nmigration").await.unwrap();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(asked[0].note.as_deref().is_none_or(|note| note == "asked"), "{asked:?}");
    let told = timeout(SOON, guard.yield_requested()).await.expect("the holder is told");
    assert_eq!(told.by.as_deref(), Some(whoami().as_str()), "{told:?}");
    assert_eq!(told.why.as_deref(), Some("a migration"), "{told:?}");
    // A later call gets the answer as well, and nothing was taken away.
    let again = timeout(SOON, guard.yield_requested()).await.expect("and still knows");
    assert_eq!(again, told);
    guard.check().unwrap();
    busy(other.mutex("key")).await;
    assert!(poll_once(&mut Box::pin(beside.yield_requested())).await.is_pending());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    // The request was for that holder alone, and nobody holds it now.
    assert!(other.request_yield("key").await.unwrap().is_empty());
    let next = take(other.mutex("key")).await;
    assert!(poll_once(&mut Box::pin(next.yield_requested())).await.is_pending());
}

/// All of them, and none that comes later, although they share a fence.
pub(super) async fn readers_are_asked_to_give_way(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    if store.guarantees().await.read_write != Support::Yes {
        return;
    }
    let readers = [take(client.read("key")).await, take(other.read("key")).await];
    assert_eq!(other.request_yield("key").await.unwrap().len(), 2);
    for reader in readers {
        timeout(SOON, reader.yield_requested()).await.expect("the reader is told");
        reader.check().unwrap();
        reader.release().await.unwrap();
    }
    let next = take(client.read("key")).await;
    // Longer than any engine takes between two looks.
    let asked = timeout(Duration::from_secs(3), next.yield_requested()).await;
    assert!(asked.is_err(), "it was asked for the readers before");
}
