//! Holders and waiters in processes that are stopped and killed.

use std::time::Duration;

use lockkeeper::engine::{Death, Scope};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Store;
use super::check::{busy, nothing_left, queued, take};
use crate::holder::process::entered;

/// Whether a store spans processes. An engine of one process has nothing to test here.
async fn spans_processes(store: &Store) -> bool {
    let scope = store.guarantees().await.scope;
    assert!(scope == Scope::Process || store.place().is_some(), "processes need a URL");
    scope > Scope::Process
}

fn millis(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

pub(super) async fn a_stopped_holder_knows_when_it_resumes(store: Store) {
    if !spans_processes(&store).await {
        return;
    }
    let (client, lease) = (store.client().await, store.lease());
    let mut holder = store.holder("key", &["--ttl", &millis(lease)]);
    let fence = holder.granted().await;
    assert_eq!(holder.ask("check").await, "ok");
    holder.stop();
    if store.guarantees().await.death == Death::AtOnce {
        // A stopped process is not dead: it keeps the lock, and still has it when it resumes.
        sleep(lease * 2).await;
        busy(client.mutex("key")).await;
        holder.resume();
        assert_eq!(holder.ask("check").await, "ok");
        return assert_eq!(holder.ask("release").await, "Released");
    }
    let next = client.mutex("key").acquire_within(store.grace() * 2 + store.slack()).await;
    let next = next.expect("a stopped holder loses its lease");
    assert!(next.fence().get() > fence);
    holder.resume();
    let check = holder.ask("check").await;
    assert!(check.contains("is lost"), "resumed after its lease, it said {check:?}");
    assert_eq!(holder.ask("release").await, "AlreadyLost");
    next.check().unwrap();
    busy(client.mutex("key")).await;
}

pub(super) async fn a_stopped_holder_of_a_fixed_lease_knows_when_it_resumes(store: Store) {
    if !spans_processes(&store).await {
        return;
    }
    let mut holder = store.holder("key", &["--lease", &millis(store.lease())]);
    holder.granted().await;
    holder.stop();
    sleep(store.lease() + Duration::from_millis(50)).await;
    holder.resume();
    let check = holder.ask("check").await;
    assert!(check.contains("fixed lease ended"), "resumed after its lease, it said {check:?}");
    nothing_left(&store.client().await, "key").await;
}

pub(super) async fn a_killed_holder_frees_its_lock(store: Store) {
    if !spans_processes(&store).await {
        return;
    }
    let (client, lease) = (store.client().await, store.lease());
    for round in 0..2 {
        let mut holder = store.holder("key", &["--ttl", &millis(lease)]);
        let fence = holder.granted().await;
        let waiting = tokio::spawn(client.mutex("key").acquire());
        queued(&client, "key", 1).await;
        match round {
            0 => holder.kill(),
            _ => holder.tell("exit"),
        }
        let died = Instant::now();
        let next = waiting.await.unwrap().unwrap();
        let took = died.elapsed();
        let bound = match store.guarantees().await.death {
            // Less than the time after which a waiter checks again without a wake-up.
            Death::AtOnce => store.slack(),
            _ => store.grace() + store.slack(),
        };
        assert!(took <= bound, "free only {took:?} after its holder was killed");
        assert!(next.fence().get() > fence, "{} after {fence}", next.fence());
        next.release().await.unwrap();
    }
}

pub(super) async fn killed_waiters_do_not_jam_the_queue(store: Store) {
    if !spans_processes(&store).await {
        return;
    }
    let client = store.client().await;
    let guard = take(client.mutex("key")).await;
    let mut waiters = Vec::new();
    for n in 1..=5 {
        let mut waiter = store.holder("key", &[]);
        waiter.said("asking").await;
        queued(&client, "key", n).await;
        waiters.push(waiter);
    }
    // The first, one in the middle and the last.
    for n in [4, 2, 0] {
        waiters.remove(n).kill();
    }
    guard.release().await.unwrap();
    // All at once: an engine without an order may serve the second one first.
    let mut served = JoinSet::new();
    for mut waiter in waiters {
        served.spawn(async move {
            waiter.granted().await;
            assert_eq!(waiter.ask("release").await, "Released");
        });
    }
    served.join_all().await;
    nothing_left(&client, "key").await;
}

pub(super) async fn a_program_that_ends_releases_its_lock(store: Store) {
    if !spans_processes(&store).await {
        return;
    }
    let client = store.client().await;
    for _ in 0..6 {
        let mut program = store.holder("key", &["--leave"]);
        program.granted().await;
        program.ended().await;
        take(client.mutex("key")).await.release().await.unwrap();
    }
}

pub(super) async fn forked_workers_exclude_each_other(store: Store) {
    if !spans_processes(&store).await {
        return;
    }
    const WORKERS: u64 = 3;
    const CYCLES: u64 = 20;
    let arbiter = tempfile::tempdir().expect("there is room for a temporary directory");
    let place = arbiter.path().to_str().expect("its path is UTF-8");
    let (workers, cycles) = (WORKERS.to_string(), CYCLES.to_string());
    let arguments = ["--fork", &workers, "--cycles", &cycles, "--arbiter", place];
    let mut parent = store.forking_holder("key", &arguments);
    let (mut worked, mut refused) = (0, 0);
    while worked + refused < WORKERS {
        match parent.said("").await {
            line if line == "forked" => worked += 1,
            // An engine whose driver does not survive a fork reports that.
            line if line.starts_with("failed") && line.contains("fork") => refused += 1,
            line => assert_eq!(line, format!("done {CYCLES}"), "something else came first"),
        }
    }
    assert!(worked == 0 || refused == 0, "{worked} were let in and {refused} were not");
    assert_eq!(entered(arbiter.path(), 0), worked * CYCLES, "an update was lost");
}
