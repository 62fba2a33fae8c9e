//! At most one holder, whatever the number of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper::engine::Scope;
use tokio::task::JoinSet;

use super::Store;
use crate::holder::process::entered;

pub(super) async fn tasks_exclude_each_other(store: Store) {
    const TASKS: u32 = 64;
    const CYCLES: u32 = 4;
    let clients = [store.client().await, store.client().await, store.client().await];
    let inside = Arc::new(AtomicU32::new(0));
    let counter = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let client = clients[n as usize % clients.len()].clone();
        let (inside, counter) = (inside.clone(), counter.clone());
        tasks.spawn(async move {
            for _ in 0..CYCLES {
                let guard = client.mutex("busy").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                // Not atomic on purpose: an update is lost if two do this at the same time.
                let before = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counter.store(before + 1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), TASKS * CYCLES, "an update was lost");
}

pub(super) async fn processes_exclude_each_other(store: Store) {
    if store.guarantees().await.scope == Scope::Process {
        return;
    }
    compete(&store, &[], &[0], 1).await;
}

pub(super) async fn processes_share_permits_and_never_a_slot(store: Store) {
    if !store.does_permits().await || store.guarantees().await.scope == Scope::Process {
        return;
    }
    compete(&store, &["--kind", "semaphore", "--limit", "3"], &[0, 1, 2], 1).await;
    compete(&store, &["--kind", "semaphore", "--limit", "4", "--take", "2"], &[0, 1, 2, 3], 2)
        .await;
}

/// Runs eight competing processes, and checks how often each slot was entered.
async fn compete(store: &Store, arguments: &[&str], slots: &[u32], take: u64) {
    const PROCESSES: usize = 8;
    const CYCLES: u64 = 25;
    let arbiter = tempfile::tempdir().expect("there is room for a temporary directory");
    let place = arbiter.path().to_str().expect("its path is UTF-8");
    let cycles = CYCLES.to_string();
    let arguments = [arguments, &["--cycles", &cycles, "--arbiter", place]].concat();
    let mut processes: Vec<_> =
        (0..PROCESSES).map(|_| store.holder("competed for", &arguments)).collect();
    for process in &mut processes {
        let said = process.said("").await;
        assert_eq!(said, format!("done {CYCLES}"), "something else than the end came first");
    }
    let entries: u64 = slots.iter().map(|slot| entered(arbiter.path(), *slot)).sum();
    assert_eq!(entries, PROCESSES as u64 * CYCLES * take, "an update was lost");
}
