//! The behaviour of the library itself, with every engine behind it.

use std::time::Duration;

use lockkeeper::engine::Order;
use lockkeeper::{Backoff, Error, Lock, Loss, Owner, Release, blocking};

use super::Store;
use crate::fault_link::Call;

/// Much less than a lease.
const SOON: Duration = Duration::from_secs(2);

pub(super) async fn bad_settings_are_refused_with_what_is_accepted(store: Store) {
    let (client, link) = store.linked().await;
    let key = || client.mutex("key");
    let permits = |take, limit| client.semaphore("key", limit).permits(take);
    let semaphores = store.does_permits().await;
    let second = Duration::from_secs(1);
    let mut cases: Vec<(Lock, &str)> = vec![
        (key().ttl(Duration::ZERO), "between 10ms and 366 days"),
        (key().ttl(Duration::from_millis(1)), "between 10ms and 366 days"),
        (key().ttl(Duration::MAX), "between 10ms and 366 days"),
        (key().lease(Duration::ZERO), "between 10ms and 366 days"),
        (key().ttl(second).margin(second), "must be shorter"),
        (key().ttl(second).margin(Duration::MAX), "must be shorter"),
        (key().permits(2), "only a semaphore"),
    ];
    if !matches!(store.guarantees().await.order, Order::Chance(_)) {
        let backoff = Backoff::new(Duration::from_millis(1), second);
        cases.push((key().fair().spin(backoff), "choose one"));
    }
    if semaphores {
        cases.push((permits(0, 3), "at least one"));
        cases.push((permits(4, 3), "at most as many as there are"));
        cases.push((permits(1, 0), "at most as many as there are"));
        cases.push((permits(u32::MAX, 3), "at most as many as there are"));
    }
    for (lock, accepted) in cases {
        let shown = format!("{lock:?}");
        match lock.acquire().await {
            Err(Error::Config(message)) => {
                assert!(message.contains(accepted), "{message:?} for {shown}");
            }
            other => panic!("it should be refused: {other:?} for {shown}"),
        }
    }
    assert_eq!(link.calls(Call::Attempt), 0, "refused, but only after asking the store");
}

pub(super) async fn the_last_blocking_handle_waits_for_its_release(store: Store) {
    let Some(url) = store.place().map(str::to_owned) else {
        panic!("the blocking front needs a URL; name one with Store::url")
    };
    let connect = move || blocking::Client::connect(&url).unwrap();
    let observer = elsewhere(connect.clone()).await;
    // Soon rather than at once: a server that follows another may be a moment behind.
    let is_free = || {
        let lock = observer.mutex("key");
        elsewhere(move || lock.acquire_within(SOON).map(blocking::Guard::release).is_ok())
    };
    for round in 0..20 {
        let connect = connect.clone();
        // A thread that belongs to a runtime, but not to its executor.
        let own = elsewhere(move || {
            let client = connect();
            let guard = client.mutex("key").acquire().unwrap();
            match round % 2 {
                0 => drop((client, guard)),
                _ => drop((guard, client)),
            }
        });
        own.await;
        assert!(is_free().await, "held by a program that is done with it");
    }
    // A thread of the executor.
    let client = elsewhere(connect).await;
    let lock = client.mutex("key");
    let guard = elsewhere(move || lock.acquire().unwrap()).await;
    drop(client);
    drop(guard);
    assert!(is_free().await, "held by a program that is done with it");
    elsewhere(move || observer.close()).await;
}

/// Runs something that blocks.
async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

pub(super) async fn the_blocking_front_does_the_same(store: Store) {
    let Some(url) = store.place().map(str::to_owned) else {
        panic!("the blocking front needs a URL; name one with Store::url")
    };
    let lease = store.lease();
    // Not on a thread of the runtime: that is its purpose.
    elsewhere(move || check_blocking(&url, lease)).await;
}

fn check_blocking(url: &str, lease: Duration) {
    let (a, b) = (blocking::Client::connect(url).unwrap(), blocking::Client::connect(url).unwrap());
    let guard = a.mutex("key").ttl(lease).note("blocking").acquire().unwrap();
    assert!(b.mutex("key").try_acquire().unwrap().is_none());
    let within = b.mutex("key").acquire_within(Duration::from_millis(30));
    assert!(matches!(within, Err(Error::Timeout { .. })), "{within:?}");
    // Its own thread renews it while this one does something else.
    assert_eq!(guard.lost_within(lease * 2), None);
    guard.check().unwrap();
    let holders = b.inspect("key").unwrap().expect("it is held").holders;
    assert_eq!(holders[0].note.as_deref(), Some("blocking"));
    let fence = guard.fence();
    assert_eq!(guard.release().unwrap(), Release::Released);

    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(10));
    let guard = b.mutex("key").spin(backoff).acquire_within(Duration::from_secs(10)).unwrap();
    assert!(guard.fence() > fence);
    drop(guard);
    let owner = Owner::new();
    let fenced = a.mutex("key").owner(&owner).run(|outer| {
        let inner = a.mutex("key").owner(&owner).try_acquire().unwrap().expect("the same owner");
        assert_eq!(inner.fence(), outer.fence());
        inner.fence()
    });
    assert!(fenced.unwrap() > fence);
    let short = a.mutex("another").lease(lease).acquire().unwrap();
    assert!(short.lost_within(lease * 2).is_some(), "a fixed lease ends");
    drop(short);
    let lock = || b.mutex("key");
    assert_eq!(a.mutex("key").run(|_| lock().try_run(|_| 1).unwrap()).unwrap(), None);
    assert!(lock().run_within(SOON, |held| held.check().is_ok()).unwrap());

    let both = || blocking::Multi::new([a.mutex("one"), b.mutex("two")]);
    let held = both().acquire().unwrap();
    held.check().unwrap();
    let keys: Vec<_> = held.fences().map(|(key, _)| key.to_string()).collect();
    assert_eq!(keys, ["one", "two"]);
    assert!(both().try_acquire().unwrap().is_none());
    let within = both().acquire_within(Duration::from_millis(30));
    assert!(matches!(within, Err(Error::Timeout { .. })), "{within:?}");
    assert_eq!(held.release().unwrap(), Release::Released);

    let election = a.election("leader").note("a");
    let term = election.campaign().unwrap();
    assert!(b.election("leader").try_campaign().unwrap().is_none());
    let leader = b.election("leader").observe(Duration::from_millis(10)).next().unwrap();
    assert_eq!(leader.and_then(|leader| leader.note).as_deref(), Some("a"));
    assert_eq!(b.request_yield("leader").unwrap().len(), 1);
    let asked = term.guard().yield_requested_within(SOON).unwrap();
    assert_eq!(asked.why, None);
    let number = term.number();
    term.step_down().unwrap();
    assert!(election.campaign().unwrap().number() > number);

    let forgotten = a.mutex("forgotten").acquire().unwrap();
    let stopping = std::thread::spawn(move || a.shutdown(Duration::from_millis(100)));
    assert_eq!(forgotten.lost_within(SOON), Some(Loss::Shutdown));
    assert_eq!(stopping.join().unwrap().len(), 1);
    assert!(forgotten.check().is_err());
    b.close();
}
