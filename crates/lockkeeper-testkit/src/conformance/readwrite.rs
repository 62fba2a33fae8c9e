//! Readers share, writers exclude.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::Client;
use tokio::time::sleep;

use super::Store;
use super::check::{SOON, busy, take};

pub(super) async fn readers_are_together_and_writers_alone(store: Store) {
    if !store.does_read_write().await {
        return;
    }
    let (a, b) = (store.client().await, store.client().await);
    let readers = [take(a.read("key")).await, take(a.read("key")).await, take(b.read("key")).await];
    busy(a.write("key")).await;
    busy(b.write("key")).await;
    for reader in readers {
        busy(b.write("key")).await;
        reader.release().await.unwrap();
    }
    let writer = take(b.write("key")).await;
    busy(a.write("key")).await;
    busy(a.read("key")).await;
    busy(b.read("key")).await;
    writer.release().await.unwrap();
    take(a.read("key")).await.release().await.unwrap();
}

pub(super) async fn a_stream_of_readers_does_not_starve_a_writer(store: Store) {
    if !store.does_read_write().await {
        return;
    }
    let done = Arc::new(AtomicBool::new(false));
    let first = store.client().await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        // Each acquires the next lock before it releases the last one: there is always a reader.
        let guard = take(first.read("key")).await;
        streams.push(tokio::spawn(stream(store.client().await, guard, done.clone())));
    }
    let writer = store.client().await.write("key").acquire_within(SOON).await;
    done.store(true, Ordering::Relaxed);
    writer.expect("a writer gets in").release().await.unwrap();
    for stream in streams {
        stream.await.unwrap();
    }
}

async fn stream(client: Client, mut guard: lockkeeper::Guard, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(3)).await;
        // A reader that waits behind the writer gives up, or neither would ever be granted.
        match client.read("key").acquire_within(Duration::from_millis(20)).await {
            Ok(next) => guard = next,
            Err(_) => return drop(guard),
        }
    }
    drop(guard);
}
