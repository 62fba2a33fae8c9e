//! Fences rise with every grant of a key, whichever client gets it.

use lockkeeper::Client;

use super::Store;
use super::check::take;

async fn fence_of_one_grant(client: &Client) -> u64 {
    let guard = take(client.mutex("key")).await;
    let fence = guard.fence().get();
    guard.release().await.unwrap();
    fence
}

pub(super) async fn fences_rise_over_clients(store: Store) {
    let clients = [store.client().await, store.client().await, store.client().await];
    let mut last = 0;
    for n in 0..12 {
        let fence = fence_of_one_grant(&clients[n % clients.len()]).await;
        assert!(fence > last, "{fence} after {last}");
        // Other keys have their own fences, which must not disturb these.
        take(clients[0].mutex("another")).await.release().await.unwrap();
        last = fence;
    }
}

pub(super) async fn fences_rise_after_the_store_was_opened_again(store: Store) {
    let mut last = 0;
    for _ in 0..4 {
        let client = store.client().await;
        let fence = fence_of_one_grant(&client).await;
        assert!(fence > last, "{fence} after {last}, which was before the store was closed");
        client.close().await;
        last = fence;
    }
}

pub(super) async fn readers_carry_the_last_writers_fence(store: Store) {
    if !store.does_read_write().await {
        return;
    }
    let (a, b) = (store.client().await, store.client().await);
    for _ in 0..3 {
        let writer = take(a.write("key")).await;
        let written = writer.fence();
        writer.release().await.unwrap();
        let readers = [take(a.read("key")).await, take(b.read("key")).await];
        let read = readers[0].fence();
        assert!(read >= written, "a reader's {read} would be refused after the writer's {written}");
        assert_eq!(read, readers[1].fence(), "a reader would make the resource refuse another");
        for reader in readers {
            reader.release().await.unwrap();
        }
        let next = take(b.write("key")).await;
        assert!(next.fence() > read, "the next writer's {} after {read}", next.fence());
        next.release().await.unwrap();
    }
}
