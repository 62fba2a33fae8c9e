//! Locks that stay near: kept by the client that released them, until somebody else wants them.

use std::time::Duration;

use lockkeeper::engine::{Death, Scope, Support};
use lockkeeper::{Client, Error, Guard, Lock, Owner, Release};
use tokio::time::{Instant, sleep};

use super::Store;
use super::check::{SOON, busy, eventually, nothing_left, take_soon};
use crate::fault_link::{Call, FaultLink};

/// Longer than any case lasts.
const LONG: Duration = Duration::from_secs(3_600);

/// How often a lock is taken again.
const TIMES: usize = 1_000;

fn lock(client: &Client) -> Lock {
    client.mutex("key").ttl(Duration::from_secs(60)).keep(LONG)
}

/// Whether locks can be kept; if not, checks that it is refused before any request.
async fn keeps(store: &Store) -> bool {
    store.does(store.guarantees().await.keep, lock).await
}

/// Takes and releases the lock until the store is not asked for it any more. The first grant of a
/// key may reserve no fences.
async fn near(link: &FaultLink, lock: impl Fn() -> Lock) -> Guard {
    let started = Instant::now();
    loop {
        take_soon(lock()).await.release().await.unwrap();
        let before = link.calls(Call::Attempt);
        let guard = take_soon(lock()).await;
        if link.calls(Call::Attempt) == before {
            return guard;
        }
        guard.release().await.unwrap();
        assert!(started.elapsed() < SOON, "the store is asked each time");
    }
}

/// A lock that this client keeps, and the fence of its last holder.
async fn kept(link: &FaultLink, client: &Client) -> u64 {
    let guard = near(link, || lock(client)).await;
    let fence = guard.fence().get();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    fence
}

pub(super) async fn a_kept_lock_is_taken_again_without_the_store(store: Store) {
    if !keeps(&store).await {
        return;
    }
    let (client, link) = store.linked().await;
    let other = store.client().await;
    let mut last = kept(&link, &client).await;
    let [asked, released] = [Call::Attempt, Call::Release].map(|call| link.calls(call));
    for n in 0..TIMES {
        let guard = match n % 2 {
            0 => take_soon(lock(&client)).await,
            _ => lock(&client).try_acquire().await.unwrap().expect("nobody else wants it"),
        };
        assert!(guard.fence().get() > last, "{} after {last}", guard.fence());
        last = guard.fence().get();
        guard.check().unwrap();
        match n % 3 {
            0 => drop(guard),
            _ => assert_eq!(guard.release().await.unwrap(), Release::Released),
        }
    }
    // A grant has no more fences than its store has to spare.
    let asked = link.calls(Call::Attempt) - asked;
    assert!(asked <= TIMES / 4, "{asked} of {TIMES} asked the store");
    let released = link.calls(Call::Release) - released;
    assert!(released <= TIMES / 4, "{released} of {TIMES} were released at the store");
    let foreign = take_soon(other.mutex("key")).await;
    assert!(foreign.fence().get() > last, "{} after {last}", foreign.fence());
    foreign.release().await.unwrap();
}

pub(super) async fn a_kept_lock_goes_to_whoever_wants_it(store: Store) {
    if !keeps(&store).await {
        return;
    }
    let (client, link) = store.linked().await;
    let other = store.client().await;
    // Long before its lease or its time is over, and also if it is wanted in another way.
    let ways: [fn(&Client) -> Lock; 3] = [
        |client| client.mutex("key"),
        |client| client.mutex("key").owner(&Owner::named("somebody").unwrap()),
        |client| client.mutex("key").fair(),
    ];
    for way in ways {
        let last = kept(&link, &client).await;
        let guard = way(&other).acquire_within(Duration::from_secs(5)).await.unwrap();
        assert!(guard.fence().get() > last, "{} after {last}", guard.fence());
        // The client that kept it has to wait like any other.
        busy(lock(&client)).await;
        guard.release().await.unwrap();
    }
    // Wanted while it is in use, it is not kept.
    let guard = near(&link, || lock(&client)).await;
    busy(other.mutex("key")).await;
    let mut wait = Box::pin(other.mutex("key").acquire_within(SOON));
    assert!(crate::poll::poll_once(&mut wait).await.is_pending());
    guard.check().unwrap();
    guard.release().await.unwrap();
    wait.await.unwrap().release().await.unwrap();
    // A single attempt finds it busy, and makes it free.
    kept(&link, &client).await;
    eventually("a single attempt succeeds in the end", async || {
        other.mutex("key").try_acquire().await.unwrap().is_some()
    })
    .await;
}

pub(super) async fn a_kept_lock_is_shown_as_kept(store: Store) {
    if !keeps(&store).await {
        return;
    }
    let (client, link) = store.linked().await;
    let other = store.client().await;
    let shown = async |kept: bool| {
        eventually("it is shown as it is", async || {
            let seen = other.inspect("key").await.unwrap();
            let holders = seen.map(|seen| seen.holders).unwrap_or_default();
            holders.len() == 1 && holders[0].kept == kept && holders[0].who.is_some()
        })
        .await;
    };
    kept(&link, &client).await;
    shown(true).await;
    let before = link.calls(Call::Attempt);
    let guard = take_soon(lock(&client)).await;
    assert_eq!(link.calls(Call::Attempt), before, "looking at it is no wish");
    shown(false).await;
    guard.release().await.unwrap();
    shown(true).await;
}

pub(super) async fn a_kept_lock_is_released_when_its_time_is_over(store: Store) {
    if !keeps(&store).await {
        return;
    }
    let (client, link) = store.linked().await;
    let other = store.client().await;
    let short = Duration::from_millis(300);
    let guard = near(&link, || lock(&client).keep(short)).await;
    guard.release().await.unwrap();
    nothing_left(&other, "key").await;
    // The time counts from the first release: taking it again does not prolong it.
    near(&link, || lock(&client).keep(short)).await.release().await.unwrap();
    let (started, released) = (Instant::now(), link.calls(Call::Release));
    while link.calls(Call::Release) == released {
        assert!(started.elapsed() < SOON, "it is never released");
        sleep(Duration::from_millis(20)).await;
        take_soon(lock(&client).keep(short)).await.release().await.unwrap();
    }
}

pub(super) async fn a_kept_lock_that_is_broken_or_asked_for_is_let_go(store: Store) {
    if !keeps(&store).await {
        return;
    }
    let (client, link) = store.linked().await;
    let operator = store.client().await;
    let last = kept(&link, &client).await;
    assert_eq!(operator.break_lock("key").await.unwrap().len(), 1);
    let foreign = take_soon(operator.mutex("key")).await;
    assert!(foreign.fence().get() > last);
    // The client that kept it does not believe in it until its next renewal.
    eventually("it asks the store again", async || {
        lock(&client).try_acquire().await.unwrap().is_none()
    })
    .await;
    foreign.check().unwrap();
    foreign.release().await.unwrap();

    kept(&link, &client).await;
    assert_eq!(operator.request_yield("key").await.unwrap().len(), 1);
    nothing_left(&operator, "key").await;
}

pub(super) async fn a_client_that_ends_releases_what_it_keeps(store: Store) {
    if !keeps(&store).await {
        return;
    }
    let observer = store.client().await;
    for way in 0..4 {
        let (client, link) = store.linked().await;
        kept(&link, &client).await;
        match way {
            0 => _ = client.shutdown(Duration::ZERO).await,
            1 => client.close().await,
            2 => drop(client),
            // The guard is the last handle.
            _ => {
                let guard = take_soon(lock(&client)).await;
                drop(client);
                drop(guard);
            }
        }
        nothing_left(&observer, "key").await;
    }
    // After it was closed, a client keeps nothing.
    let (client, link) = store.linked().await;
    let guard = near(&link, || lock(&client)).await;
    client.clone().close().await;
    drop(guard);
    nothing_left(&observer, "key").await;
}

pub(super) async fn a_kept_lock_of_other_terms_is_asked_for_again(store: Store) {
    if !keeps(&store).await {
        return;
    }
    let (client, link) = store.linked().await;
    let others: [fn(&Client) -> Lock; 4] = [
        |client| lock(client).keep(LONG * 2),
        |client| lock(client).ttl(Duration::from_secs(61)),
        |client| lock(client).note("another"),
        |client| client.mutex("key"),
    ];
    for other in others {
        let last = kept(&link, &client).await;
        let before = link.calls(Call::Attempt);
        let guard = take_soon(other(&client)).await;
        assert!(link.calls(Call::Attempt) > before, "it was held on other terms");
        assert!(guard.fence().get() > last);
        guard.release().await.unwrap();
        take_soon(client.mutex("key")).await.release().await.unwrap();
    }
}

pub(super) async fn what_cannot_be_kept_is_refused(store: Store) {
    let promised = store.guarantees().await;
    if !keeps(&store).await {
        return;
    }
    let (client, link) = store.linked().await;
    let mut refused = vec![
        lock(&client).keep(Duration::ZERO),
        lock(&client).lease(Duration::from_secs(1)),
        lock(&client).fair(),
        lock(&client).owner(&Owner::named("me").unwrap()),
    ];
    if promised.read_write == Support::Yes {
        refused.extend([client.read("key").keep(LONG), client.write("key").keep(LONG)]);
    }
    if promised.semaphore == Support::Yes {
        refused.push(client.semaphore("key", 2).keep(LONG));
    }
    for lock in refused {
        let shown = format!("{lock:?}");
        match lock.acquire().await {
            Err(Error::Config(why)) => assert!(why.contains("keep"), "{why}"),
            other => panic!("it should be refused: {other:?} for {shown}"),
        }
    }
    assert_eq!(link.calls(Call::Attempt), 0, "refused, but only after asking the store");
}

pub(super) async fn a_killed_keeper_costs_its_lease(store: Store) {
    let promised = store.guarantees().await;
    if !keeps(&store).await || promised.scope == Scope::Process {
        return;
    }
    let (observer, lease) = (store.client().await, store.lease());
    let ttl = format!("{}ms", lease.as_millis());
    let mut keeper = store.holder("key", &["--ttl", &ttl, "--keep", "1h"]);
    keeper.granted().await;
    eventually("it keeps the lock", async || {
        assert_eq!(keeper.ask("release").await, "Released");
        sleep(Duration::from_millis(100)).await;
        let seen = observer.inspect("key").await.unwrap();
        let kept = seen.is_some_and(|seen| seen.holders.iter().any(|holder| holder.kept));
        if !kept {
            keeper.tell("acquire");
            keeper.granted().await;
        }
        kept
    })
    .await;
    keeper.kill();
    let started = Instant::now();
    let guard = observer.mutex("key").acquire_within(store.grace() * 2 + store.slack()).await;
    guard.expect("its lease is over").release().await.unwrap();
    if promised.death == Death::AtOnce {
        assert!(started.elapsed() < lease + store.slack(), "its death is noticed at once");
    }
}
