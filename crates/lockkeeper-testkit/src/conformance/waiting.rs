//! The ways to wait, and the order in which waiters are served.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::engine::{Order, Scope, Support, Wakeup};
use lockkeeper::{Backoff, Client, Error, Guard, Release, Result};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::Store;
use super::check::{busy, eventually, queued, take};
use crate::fault_link::Call;
use crate::holder::Holder;
use crate::poll::poll_once;

pub(super) async fn a_free_lock_is_taken_at_once_and_a_busy_one_is_an_answer(store: Store) {
    let (a, b) = (store.client().await, store.client().await);
    let guard = take(a.mutex("key")).await;
    assert_eq!(guard.key().as_str(), "key");
    guard.check().unwrap();
    busy(a.mutex("key")).await;
    busy(b.mutex("key")).await;
    take(b.mutex("another")).await.release().await.unwrap();
    guard.release().await.unwrap();
    take(b.mutex("key")).await.release().await.unwrap();
}

pub(super) async fn waiting_ends_with_the_time_or_with_the_lock(store: Store) {
    let (a, b) = (store.client().await, store.client().await);
    let guard = take(a.mutex("key")).await;
    let limit = Duration::from_millis(150);
    for client in [&a, &b] {
        let started = Instant::now();
        match client.mutex("key").acquire_within(limit).await {
            Err(Error::Timeout { key, waited, .. }) => {
                assert_eq!((key.as_str(), waited), ("key", limit));
            }
            other => panic!("it should be busy: {other:?}"),
        }
        assert!(started.elapsed() >= limit, "it gave up after {:?}", started.elapsed());
    }
    let mut forever = Box::pin(b.mutex("key").acquire());
    let mut within = Box::pin(a.mutex("key").acquire_within(Duration::from_secs(60)));
    assert!(poll_once(&mut forever).await.is_pending());
    assert!(poll_once(&mut within).await.is_pending());
    guard.release().await.unwrap();
    let (forever, within) = tokio::join!(async { forever.await.unwrap().release().await }, async {
        within.await.unwrap().release().await
    },);
    assert_eq!((forever.unwrap(), within.unwrap()), (Release::Released, Release::Released));
}

pub(super) async fn clients_are_served_in_order_where_promised(store: Store) {
    match store.guarantees().await.order {
        Order::Fifo => {}
        // The server queues, but does not promise an order.
        Order::Server => return,
        Order::Chance(reason) => {
            store.does(Support::No(reason), |client| client.mutex("refused").fair()).await;
            return;
        }
        other => panic!("no case knows the order {other}"),
    }
    let first = store.client().await;
    let guard = first.mutex("key").acquire().await.unwrap();
    let served = Served::default();
    let mut waiters = Vec::new();
    for n in 1..=6 {
        let client = store.client().await;
        waiters.push(serve(client.mutex("key").acquire(), n, &served));
        assert!(queued(&first, "key", n).await, "an engine that keeps an order can show it");
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), [1, 2, 3, 4, 5, 6]);
}

pub(super) async fn tasks_of_one_client_are_served_in_order(store: Store) {
    let client = store.client().await;
    let guard = take(client.mutex("key")).await;
    let (waiters, served) = line_up(&client, 20).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..20).collect::<Vec<_>>());
}

pub(super) async fn a_thousand_tasks_are_one_waiter(store: Store) {
    let holder = store.client().await;
    let (client, link) = store.linked().await;
    let guard = take(holder.mutex("key")).await;
    let (waiters, served) = line_up(&client, 1_000).await;
    if queued(&holder, "key", 1).await {
        let snapshot = holder.inspect("key").await.unwrap().expect("it is held");
        assert_eq!(snapshot.waiters.map(|waiters| waiters.len()), Some(1));
    }
    let attempts = link.calls(Call::Attempt);
    assert!(attempts < 20, "{attempts} requests of a thousand tasks, of which one may ask");
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(served.lock().unwrap().len(), 1_000);
}

pub(super) async fn a_client_that_is_never_idle_lets_others_in(store: Store) {
    if store.guarantees().await.wakeup == Wakeup::BackOff {
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
                tokio::time::sleep(Duration::from_millis(10)).await;
                guard.release().await.unwrap();
            }
        });
    }
    let mut passed = Vec::new();
    for _ in 0..10 {
        let before = entered.load(Ordering::Relaxed);
        let guard = other.mutex("key").acquire().await.unwrap();
        passed.push(entered.load(Ordering::Relaxed) - before);
        guard.release().await.unwrap();
    }
    crowd.shutdown().await;
    assert!(passed.iter().all(|passed| *passed < 60), "so many went first: {passed:?}");
}

type Served = Arc<Mutex<Vec<usize>>>;

/// Starts tasks of one client that wait for `key`, each in the queue before the next one starts.
async fn line_up(client: &Client, tasks: usize) -> (Vec<JoinHandle<()>>, Served) {
    let served = Served::default();
    let mut waiters = Vec::new();
    for n in 0..tasks {
        let mut acquire = Box::pin(client.mutex("key").acquire());
        assert!(poll_once(&mut acquire).await.is_pending());
        waiters.push(serve(acquire, n, &served));
    }
    (waiters, served)
}

fn serve(
    acquire: impl Future<Output = Result<Guard>> + Send + 'static,
    n: usize,
    served: &Served,
) -> JoinHandle<()> {
    let served = served.clone();
    tokio::spawn(async move {
        let guard = acquire.await.unwrap();
        served.lock().unwrap().push(n);
        guard.release().await.unwrap();
    })
}

pub(super) async fn spinning_gets_the_lock_too(store: Store) {
    let (a, b) = (store.client().await, store.client().await);
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
    let guard = take(a.mutex("key")).await;
    let spinning = tokio::spawn(b.mutex("key").spin(backoff).acquire());
    let within = b.mutex("key").spin(backoff).acquire_within(Duration::from_millis(50)).await;
    assert!(matches!(within, Err(Error::Timeout { .. })), "{within:?}");
    let snapshot = a.inspect("key").await.unwrap().expect("it is held");
    assert!(
        snapshot.waiters.is_none_or(|line| line.is_empty()),
        "one that spins is not in the queue"
    );
    guard.release().await.unwrap();
    spinning.await.unwrap().unwrap().release().await.unwrap();
}

pub(super) async fn waits_that_time_out_leave_no_threads_and_no_open_files(store: Store) {
    if store.guarantees().await.scope == Scope::Process {
        return;
    }
    let client = store.client().await;
    let guard = take(client.mutex("key")).await;
    // In its own process, where nothing else opens files or starts threads.
    let mut waiter = store.holder("key", &["--within", "3ms"]);
    waiter.said("timeout").await;
    let wait = async |waiter: &mut Holder, times: usize| {
        for _ in 0..times {
            waiter.tell("acquire");
            waiter.said("timeout").await;
        }
    };
    wait(&mut waiter, 10).await;
    let (threads, files) = waiter.resources();
    wait(&mut waiter, 60).await;
    // A wait is undone in the background; anything that remains while the holder stays would remain
    // forever.
    eventually("nothing is left of waits that timed out", async || {
        let (threads_now, files_now) = waiter.resources();
        threads_now < threads + 15 && files_now < files + 15
    })
    .await;
    guard.release().await.unwrap();
}
