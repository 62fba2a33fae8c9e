//! How to test your own code for the loss of a lock, without a server and without waiting.
//!
//! `cargo run -p lockkeeper --example loss`

use std::time::Duration;

use lockkeeper::testing::Memory;
use lockkeeper::{Client, Error, Loss};

/// The code under test: works until it is done, and must stop when it loses the lock.
async fn nightly(client: &Client, steps: &mut u32) -> lockkeeper::Result<()> {
    let work = async |_: &lockkeeper::Guard| {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            *steps += 1;
        }
    };
    client.mutex("nightly").run(work).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> lockkeeper::Result<()> {
    // Sleeps take no time any more, and leases still expire when they should.
    tokio::time::pause();
    let store = Memory::new();
    let client = Client::new(store.clone());

    let mut steps = 0;
    nightly(&client, &mut steps).await?;
    println!(
        "left alone, it does {steps} steps: the watchdog renewed a lease of 30 s for ten minutes"
    );

    let mut steps = 0;
    let cut = async {
        tokio::time::sleep(Duration::from_secs(150)).await;
        store.partition(true);
    };
    let (result, ()) = tokio::join!(nightly(&client, &mut steps), cut);
    assert!(matches!(result, Err(Error::Lost { reason: Loss::Expired, .. })));
    println!("cut off from the store, it stops after {steps} steps: {}", result.unwrap_err());
    assert_eq!(steps, 2);
    Ok(())
}
