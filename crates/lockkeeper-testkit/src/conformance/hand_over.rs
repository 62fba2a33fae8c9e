//! Hand-over between the tasks of one client: without the store, and yet with a fence of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkeeper::engine::{Order, Support, Wakeup};
use lockkeeper::{Client, Guard, Lock};
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::{Instant, timeout};

use super::Store;
use super::check::{SOON, eventually, take, take_soon};
use crate::fault_link::Call;
use crate::poll::poll_once;

/// How many tasks wait.
const TASKS: usize = 20;

/// Tasks of one client that wait for a lock, in this order.
async fn line_up(client: &Client, lock: impl Fn(&Client) -> Lock) -> Vec<JoinHandle<Guard>> {
    let mut waiters = Vec::new();
    for _ in 0..TASKS {
        let mut acquire = Box::pin(lock(client).acquire());
        assert!(poll_once(&mut acquire).await.is_pending());
        waiters.push(tokio::spawn(async { acquire.await.unwrap() }));
    }
    waiters
}

pub(super) async fn fences_rise_over_tasks_that_hand_a_lock_over(store: Store) {
    let (client, link) = store.linked().await;
    let other = store.client().await;
    let (mut last, started) = (0, Instant::now());
    loop {
        let before = link.calls(Call::Attempt);
        let first = take_soon(client.mutex("key")).await;
        let mut fences = vec![first.fence().get()];
        let waiters = line_up(&client, |client| client.mutex("key")).await;
        first.release().await.unwrap();
        for waiter in waiters {
            let guard = waiter.await.unwrap();
            fences.push(guard.fence().get());
            guard.check().unwrap();
            guard.release().await.unwrap();
        }
        // The reserved fences that were not used are not granted to anybody else.
        let foreign = take_soon(other.mutex("key")).await;
        fences.push(foreign.fence().get());
        foreign.release().await.unwrap();
        assert!(fences[0] > last && fences.is_sorted_by(|a, b| a < b), "{fences:?} after {last}");
        last = fences[fences.len() - 1];
        let asked = link.calls(Call::Attempt) - before;
        match store.guarantees().await.hand_over {
            Support::Yes if asked <= TASKS => break,
            // A busy machine may take longer for every single one than a lock is handed over for.
            Support::Yes => assert!(started.elapsed() < SOON, "{asked} of {TASKS} asked the store"),
            Support::No(reason) => {
                assert!(
                    asked > TASKS,
                    "only {asked} of {TASKS} asked the store, although {reason}"
                );
                break;
            }
        }
    }
}

pub(super) async fn a_lock_is_not_handed_over_against_the_wish_of_its_holder(store: Store) {
    let (client, link) = store.linked().await;
    let mut ways: Vec<fn(&Client) -> Lock> = vec![|client| client.mutex("key").hand_over(false)];
    if store.guarantees().await.order == Order::Fifo {
        ways.push(|client| client.mutex("key").fair());
    }
    for lock in ways {
        let before = link.calls(Call::Attempt);
        let first = take_soon(lock(&client)).await;
        let waiters = line_up(&client, lock).await;
        first.release().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap().release().await.unwrap();
        }
        let asked = link.calls(Call::Attempt) - before;
        assert!(asked > TASKS, "only {asked} of {TASKS} asked the store");
    }
}

pub(super) async fn tasks_that_hand_a_lock_over_let_other_clients_in(store: Store) {
    let promised = store.guarantees().await;
    if promised.wakeup == Wakeup::BackOff {
        // Whichever asks at the right moment: clients do not know of each other.
        return;
    }
    let (busy, other) = (store.client().await, store.client().await);
    let (mut crowd, entered) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..8 {
        let (lock, entered) = (busy.mutex("key"), entered.clone());
        crowd.spawn(async move {
            loop {
                let guard = lock.clone().acquire().await.unwrap();
                entered.fetch_add(1, Ordering::Relaxed);
                // The others queue meanwhile.
                yield_now().await;
                guard.release().await.unwrap();
            }
        });
    }
    for _ in 0..5 {
        let before = entered.load(Ordering::Relaxed);
        let guard = other.mutex("key").acquire_within(SOON).await.unwrap();
        let passed = entered.load(Ordering::Relaxed) - before;
        if promised.order == Order::Fifo {
            // The rest of a turn; a task of the client may be ahead in the store's queue, with a
            // turn of its own.
            assert!(passed <= 2 * 10_001, "{passed} went first");
        }
        guard.release().await.unwrap();
    }
    crowd.shutdown().await;
}

pub(super) async fn a_loss_reaches_the_task_that_a_lock_was_handed_over_to(store: Store) {
    let (client, operator) = (store.client().await, store.client().await);
    let lock = |client: &Client| client.mutex("key").ttl(store.lease());
    let first = take(lock(&client)).await;
    let mut waiters = line_up(&client, lock).await.into_iter();
    first.release().await.unwrap();
    // The first of them asks the store, and the others need not.
    let mut guard = waiters.next().unwrap().await.unwrap();
    for waiter in waiters {
        let (lost, fence) = (guard.lost(), guard.fence());
        guard.release().await.unwrap();
        assert_eq!(lost.await, lockkeeper::Loss::Released);
        guard = waiter.await.unwrap();
        assert!(guard.fence() > fence, "{} after {fence}", guard.fence());
    }
    let broken = operator.break_lock("key").await.unwrap();
    assert_eq!(broken.len(), 1, "{broken:?}");
    let told = timeout(store.lease(), guard.lost()).await;
    assert!(told.is_ok(), "the task inside was not told within its lease");
    eventually("who broke it is known", async || {
        guard.check().is_err_and(|error| error.to_string().contains("broken by"))
    })
    .await;
    assert!(guard.check().is_err());
    let next = take_soon(lock(&operator)).await;
    assert!(next.fence() > guard.fence(), "{} after {}", next.fence(), guard.fence());
    drop(guard);
    next.check().unwrap();
    next.release().await.unwrap();
}
