//! A service that shuts down: what happens to holders and waiters, and what they leave behind.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::testing::Memory;
use lockkeeper::{Client, Error, Loss, Multi, Release};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn store() -> (Memory, Client) {
    let memory = Memory::new();
    (memory.clone(), Client::new(memory))
}

/// Waits until a key has a waiter.
async fn queued(client: &Client, key: &str) {
    while client
        .inspect(key)
        .await
        .unwrap()
        .is_none_or(|seen| seen.waiters.unwrap_or_default().is_empty())
    {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_refused_and_holders_are_signalled_and_waited_for() {
    let (memory, client) = store();
    let other = Client::new(memory);
    let _theirs = other.mutex("theirs").acquire().await.unwrap();
    let guard = client.mutex("ours").acquire().await.unwrap();
    let at_the_gate = tokio::spawn(client.mutex("theirs").acquire());
    queued(&other, "theirs").await;
    let behind = tokio::spawn(client.mutex("theirs").acquire_within(60 * SECOND));
    let both = Multi::new([client.mutex("free"), client.mutex("theirs")]);
    let both = tokio::spawn(both.acquire());
    tokio::task::yield_now().await;

    let asked = Instant::now();
    let stopping = tokio::spawn(client.clone().shutdown(60 * SECOND));
    assert_eq!(guard.lost().await, Loss::Shutdown);
    assert_eq!(asked.elapsed(), Duration::ZERO, "told at once");
    guard.check().expect("it is ours until it is let go");
    for refused in [at_the_gate.await.unwrap().err(), behind.await.unwrap().err()] {
        assert!(matches!(refused, Some(Error::Shutdown)), "{refused:?}");
    }
    assert!(matches!(both.await.unwrap(), Err(Error::Shutdown)));
    assert!(matches!(client.mutex("new").try_acquire().await, Err(Error::Shutdown)));

    sleep(2 * SECOND).await;
    assert!(!stopping.is_finished(), "it waits for the holder");
    drop(guard);
    assert_eq!(stopping.await.unwrap(), []);
    assert!(asked.elapsed() < 3 * SECOND, "and no longer");
    assert!(other.mutex("ours").try_acquire().await.unwrap().is_some());
    assert!(other.mutex("free").try_acquire().await.unwrap().is_some());
    let waiters = other.inspect("theirs").await.unwrap().unwrap().waiters.unwrap();
    assert!(waiters.is_empty(), "{waiters:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_alive_while_its_holder_stops_and_released_under_it_after_the_grace() {
    let (memory, client) = store();
    let other = Client::new(memory);
    let guard = client.mutex("key").ttl(3 * SECOND).acquire().await.unwrap();
    let stopping = tokio::spawn(client.clone().shutdown(30 * SECOND));
    sleep(29 * SECOND).await;
    guard.check().expect("the grace is ten times the lease, which is renewed");
    assert!(other.mutex("key").try_acquire().await.unwrap().is_none());
    assert_eq!(stopping.await.unwrap(), ["key".parse().unwrap()]);
    assert!(matches!(guard.check(), Err(Error::Lost { reason: Loss::Shutdown, .. })));
    let next = other.mutex("key").try_acquire().await.unwrap().expect("it was released");
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_and_no_candidate_stands_again() {
    let (_, client) = store();
    let run = tokio::spawn(client.mutex("run").run(async |_| std::future::pending::<()>().await));
    let election = client.election("lead");
    let lead = async move { election.lead(async |_| std::future::pending::<()>().await).await };
    let lead = tokio::spawn(lead);
    for key in ["run", "lead"] {
        while client.inspect(key).await.unwrap().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(client.clone().shutdown(SECOND).await, []);
    let run = run.await.unwrap();
    assert!(matches!(run, Err(Error::Lost { reason: Loss::Shutdown, .. })), "{run:?}");
    assert!(matches!(lead.await.unwrap(), Err(Error::Shutdown)));
    assert!(client.list("").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_holder_is_waited_for_too() {
    let (memory, client) = store();
    let guard = client.mutex("key").ttl(3 * SECOND).acquire().await.unwrap();
    memory.expire("key");
    assert_eq!(guard.lost().await, Loss::Gone);
    let stopping = tokio::spawn(client.clone().shutdown(60 * SECOND));
    sleep(SECOND).await;
    assert!(!stopping.is_finished());
    drop(guard);
    assert_eq!(timeout(SECOND, stopping).await.unwrap().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_a_release_that_another_task_awaits() {
    let (memory, client) = store();
    let guard = client.mutex("key").acquire().await.unwrap();
    memory.delay(2 * SECOND);
    let releasing = tokio::spawn(guard.release());
    tokio::task::yield_now().await;
    let asked = Instant::now();
    client.close().await;
    assert_eq!(asked.elapsed(), 2 * SECOND);
    assert_eq!(releasing.await.unwrap().unwrap(), Release::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_lock_is_held_when_the_shutdown_returns_under_load() {
    for _ in 0..20 {
        let (memory, client) = store();
        let (other, client) = (Client::new(memory), Arc::new(client));
        let crowd: Vec<_> = (0..16)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move {
                    loop {
                        let lock = client.semaphore(format!("key {}", n % 4), 2);
                        match lock.run(async |_| tokio::task::yield_now().await).await {
                            Ok(()) => {}
                            Err(error) => return error,
                        }
                    }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(Client::clone(&client).shutdown(10 * SECOND).await, []);
        assert!(other.list("").await.unwrap().is_empty());
        for task in crowd {
            let error = task.await.unwrap();
            let told =
                matches!(error, Error::Shutdown | Error::Lost { reason: Loss::Shutdown, .. });
            assert!(told, "{error:?}");
        }
    }
}
