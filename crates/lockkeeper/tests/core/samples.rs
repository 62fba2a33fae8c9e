//! The Rust samples of the documents. Written by scripts/samples; do not edit.

#![allow(dead_code, unused_imports, unused_variables)]

use std::time::Duration;

use lockkeeper::testing::Memory;
use lockkeeper::{Backoff, Client, Error, Fence, Fenced, Guard, Loss, Multi, Owner, Release, Result};
use tokio::signal::unix::{SignalKind, signal};

/// What the samples take from the text around them.
struct Store;

impl Store {
    fn write(&self, _: Fence, _: &str) -> Result<()> {
        Ok(())
    }
}

async fn charge(_: Fence) {}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

mod readme_1 {
    use lockkeeper::{Client, Fence};

    #[tokio::main]
    async fn main() -> lockkeeper::Result<()> {
        let client = Client::connect("file:").await?;

        // If the lock is lost, the work is dropped before anyone else can get the lock.
        client.mutex("orders/42").run(async |guard| charge(guard.fence()).await).await
    }

    async fn charge(fence: Fence) {
        println!("charged under fence {fence}");
    }
}

async fn readme_2(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard  = client.mutex("orders/42").acquire().await?;                  // waits
    let guard  = client.mutex("orders/42").acquire_within(secs(5)).await?;    // Err(Timeout)
    let maybe  = client.mutex("orders/42").try_acquire().await?;              // Option<Guard>; busy is not an error
    let shared = client.read("report").acquire().await?;                      // client.write("report")
    let permit = client.semaphore("gpu", 4).acquire().await?;
    let both   = Multi::new([client.mutex("a"), other.mutex("b")]).acquire().await?;
    let again  = client.mutex("a").owner(&owner).acquire().await?;            // reentrant for that owner
    let term   = client.election("scheduler").campaign().await?;              // leadership is a lock you keep
    guard.release().await?;                                                   // or drop it
    client.shutdown(secs(10)).await;                                          // on SIGTERM: leaves nothing behind
    Ok(())
}

async fn interop_1(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("redis://localhost").await?;
    client.mutex("orders/42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

async fn interop_2(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("zookeeper://h1,h2,h3/locks").await?;
    client.mutex("orders-42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

async fn interop_3(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("etcd://h1,h2,h3").await?;
    client.mutex("orders/42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

async fn interop_4(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("redis://localhost?layout=string").await?;
    client.mutex("orders/42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

async fn interop_5(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("redlock://a,b,c,d,e").await?;
    client.mutex("orders/42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

async fn interop_6(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("redis://localhost?layout=string").await?;
    client.mutex("orders/42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

async fn interop_7(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("zookeeper://h1,h2,h3/locks").await?;
    client.mutex("orders-42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

async fn interop_8(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("postgres://localhost/app?strategy=advisory").await?;
    client.mutex("orders/42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

mod quickstart_1 {
    use lockkeeper::{Client, Fence};

    #[tokio::main]
    async fn main() -> lockkeeper::Result<()> {
        let client = Client::connect("redis://127.0.0.1:7379").await?;
        client.mutex("orders/42").run(async |guard| charge(guard.fence()).await).await
    }

    async fn charge(fence: Fence) {
        println!("charged under fence {fence}");
    }
}

async fn semantics_1(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").ttl(secs(10)).acquire().await?;
    guard.check()?;                          // still ours, by the clock, now?
    store.write(guard.fence(), "paid")?;     // the resource refuses a fence lower than one it has seen
    guard.release().await?;                  // or drop it
    Ok(())
}

async fn semantics_2(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let lock = client.mutex("shard/7").keep(secs(60));
    for part in ["a", "b", "c"] {
        let guard = lock.clone().acquire().await?;   // after the first times, without the store
        store.write(guard.fence(), part)?;
        guard.release().await?;                      // kept
    }
    Ok(())
}

async fn semantics_3(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    terminate.recv().await;
    client.shutdown(secs(10)).await;
    Ok(())
}

async fn techniques_1(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let client = Client::connect("memory:").await?;                           // or any other URL
    let guard = client.mutex("orders/42").acquire().await?;
    println!("held under fence {}", guard.fence());
    guard.release().await?;
    Ok(())
}

async fn techniques_2(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").acquire().await?;
    assert!(client.mutex("orders/42").try_acquire().await?.is_none());        // busy is an answer, not an error
    guard.release().await?;
    Ok(())
}

async fn techniques_3(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").ttl(secs(10)).acquire().await?;
    assert!(guard.remaining() <= secs(10));                                   // free 10 s after this machine dies
    Ok(())
}

async fn techniques_4(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").ttl(millis(300)).acquire().await?;
    tokio::time::sleep(millis(900)).await;                                    // three times the ttl
    guard.check()?;                                                           // still ours
    Ok(())
}

async fn techniques_5(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").lease(millis(100)).acquire().await?;
    assert_eq!(guard.lost().await, Loss::Ended);                              // 100 ms later
    Ok(())
}

async fn techniques_6(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").acquire().await?;
    let late = client.mutex("orders/42").lease(secs(10)).acquire_within(millis(50)).await;
    assert!(matches!(late, Err(Error::Timeout { .. })));
    Ok(())
}

async fn techniques_7(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").lease(millis(50)).acquire().await?;
    guard.lost().await;
    let next = client.mutex("orders/42").acquire().await?;                    // somebody else
    assert_eq!(guard.release().await?, Release::AlreadyLost);
    next.check()?;                                                            // not affected
    Ok(())
}

async fn techniques_8(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let owner = Owner::new();
    let outer = client.mutex("orders/42").owner(&owner).acquire().await?;
    let inner = client.mutex("orders/42").owner(&owner).acquire().await?;     // no request, the same fence
    assert_eq!(outer.fence(), inner.fence());
    Ok(())
}

async fn techniques_9(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").acquire().await?;
    guard.check()?;                                                           // Err(Lost) if it is not certain
    Ok(())
}

async fn techniques_10(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let work = async |guard: &Guard| guard.fence();
    let fence = client.mutex("orders/42").run(work).await?;                   // drops the work if the lock is lost
    println!("done under fence {fence}");
    Ok(())
}

async fn techniques_11(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let backoff = Backoff::new(millis(1), millis(50));
    let guard = client.mutex("orders/42").spin(backoff).acquire().await?;     // polls instead of waiting to be woken
    Ok(())
}

async fn techniques_12(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").fair().acquire().await?;            // first come, first served
    Ok(())
}

async fn techniques_13(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let one = client.read("report").acquire().await?;
    let two = client.read("report").acquire().await?;                         // together
    assert!(client.write("report").try_acquire().await?.is_none());
    Ok(())
}

async fn techniques_14(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let one = client.semaphore("gpu", 2).acquire().await?;
    let two = client.semaphore("gpu", 2).acquire().await?;
    assert!(client.semaphore("gpu", 2).try_acquire().await?.is_none());       // the slots are taken
    Ok(())
}

async fn techniques_15(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let pair = Multi::new([client.mutex("b"), client.mutex("a")]).acquire().await?;   // all or nothing, any engines
    pair.check()?;
    pair.release().await?;
    Ok(())
}

async fn techniques_16(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let term = client.election("scheduler").campaign().await?;                // leadership is a lock you keep
    println!("leading term {}", term.number());
    term.step_down().await?;
    Ok(())
}

async fn techniques_17(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let account = Fenced::new(0);                                             // keeps the highest fence it has seen
    let late = client.mutex("account").lease(millis(50)).acquire().await?;
    late.lost().await;                                                        // paused for too long
    let next = client.mutex("account").acquire().await?;
    account.access(next.fence(), |balance| *balance = 100).expect("newer");
    assert!(account.access(late.fence(), |balance| *balance = 1).is_err());   // refused
    Ok(())
}

async fn techniques_18(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let guard = client.mutex("orders/42").lease(millis(50)).acquire().await?;
    std::thread::sleep(millis(80));                                           // the whole thread stops, no task runs
    assert!(guard.check().is_err());                                          // known all the same
    Ok(())
}

async fn memory_1(client: Client, other: Client, owner: Owner, store: Store) -> Result<()> {
    let store = Memory::new();
    let client = Client::new(store.clone());
    let guard = client.mutex("orders/42").ttl(millis(300)).acquire().await?;
    store.expire("orders/42");                             // the store forgets the lock
    assert_eq!(guard.lost().await, Loss::Gone);            // and the holder learns of it at its next renewal
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn techniques_1_runs() {
    let client = Client::new(Memory::new());
    techniques_1(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_2_runs() {
    let client = Client::new(Memory::new());
    techniques_2(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_3_runs() {
    let client = Client::new(Memory::new());
    techniques_3(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_4_runs() {
    let client = Client::new(Memory::new());
    techniques_4(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_5_runs() {
    let client = Client::new(Memory::new());
    techniques_5(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_6_runs() {
    let client = Client::new(Memory::new());
    techniques_6(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_7_runs() {
    let client = Client::new(Memory::new());
    techniques_7(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_8_runs() {
    let client = Client::new(Memory::new());
    techniques_8(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_9_runs() {
    let client = Client::new(Memory::new());
    techniques_9(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_10_runs() {
    let client = Client::new(Memory::new());
    techniques_10(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_11_runs() {
    let client = Client::new(Memory::new());
    techniques_11(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_12_runs() {
    let client = Client::new(Memory::new());
    techniques_12(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_13_runs() {
    let client = Client::new(Memory::new());
    techniques_13(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_14_runs() {
    let client = Client::new(Memory::new());
    techniques_14(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_15_runs() {
    let client = Client::new(Memory::new());
    techniques_15(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_16_runs() {
    let client = Client::new(Memory::new());
    techniques_16(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn techniques_17_runs() {
    let client = Client::new(Memory::new());
    techniques_17(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test]
async fn techniques_18_runs() {
    let client = Client::new(Memory::new());
    techniques_18(client.clone(), client, Owner::new(), Store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn memory_1_runs() {
    let client = Client::new(Memory::new());
    memory_1(client.clone(), client, Owner::new(), Store).await.unwrap();
}
