//! Requests of many tasks that wait for one connection are sent together.

use lockkeeper::{Client, Release};
use tokio::task::JoinSet;

use super::{LEASE, database, server};

const KEYS: u64 = 40;

/// A key that another client holds keeps none of the others.
#[tokio::test]
async fn claims_that_wait_for_one_connection_share_a_commit() {
    let url = server().url();
    let sql = |statement: &str| server().sql(database(&url), statement);
    let client = Client::connect(format!("{url}?connections=1")).await.unwrap();
    let other = Client::connect(&url).await.unwrap();
    let mut fences = vec![0; KEYS as usize];
    for round in 0..3 {
        let mut taking = JoinSet::new();
        for n in 0..KEYS {
            let lock = client.mutex(format!("key {n}")).ttl(LEASE * 20).note(format!("it's {n}"));
            taking.spawn(async move { (n, lock.acquire().await.unwrap()) });
        }
        let held = taking.join_all().await;
        for (n, guard) in &held {
            let last = std::mem::replace(&mut fences[*n as usize], guard.fence().get());
            assert!(guard.fence().get() > last, "round {round}, key {n}");
        }
        // In the first round there are no rows, and each is created separately.
        let commits =
            sql("SELECT count(DISTINCT xmin::text) FROM lockkeeper_lock WHERE token <> ''");
        assert!(round == 0 || commits.parse::<u64>().unwrap() < KEYS / 2, "{commits} commits");
        let seen = other.inspect("key 7").await.unwrap().unwrap();
        assert_eq!(seen.holders[0].note.as_deref(), Some("it's 7"));
        assert!(other.mutex("key 7").try_acquire().await.unwrap().is_none());
        let mut releasing = JoinSet::new();
        for (_, guard) in held {
            releasing.spawn(async move { guard.release().await.unwrap() });
        }
        assert!(releasing.join_all().await.iter().all(|done| *done == Release::Released));
        assert_eq!(sql("SELECT count(*) FROM lockkeeper_lock WHERE token <> ''"), "0");
    }
    let busy = other.mutex("key 7").acquire().await.unwrap();
    let mut trying = JoinSet::new();
    for n in 0..KEYS {
        let lock = client.mutex(format!("key {n}"));
        trying.spawn(async move { lock.try_acquire().await.unwrap().is_some() });
    }
    let had = trying.join_all().await.into_iter().filter(|had| *had).count();
    assert_eq!(had as u64, KEYS - 1);
    busy.release().await.unwrap();
}

/// The release of a key and its next claim may be sent together, in this order.
#[tokio::test]
async fn a_try_after_a_dropped_guard_is_not_busy() {
    let url = server().url();
    let client = Client::connect(format!("{url}?connections=1")).await.unwrap();
    let mut tasks = JoinSet::new();
    for n in 0..KEYS {
        let lock = client.mutex(format!("key {n}"));
        tasks.spawn(async move {
            for _ in 0..10 {
                drop(lock.clone().try_acquire().await.unwrap().expect("nobody else wants it"));
            }
        });
    }
    tasks.join_all().await;
}
