//! The README's examples compile as they stand there: each of their lines is a line of this file.

use std::time::Duration;

use lockkeeper::{Fence, Multi, Owner, Result};

/// The first example.
#[allow(dead_code)]
async fn first() -> Result<()> {
    use lockkeeper::Client;

    let client = Client::connect("file:").await?;

    // Should the lock be lost, the work is dropped before anyone else can be let in.
    client.mutex("orders/42").run(async |hold| charge(hold.fence()).await).await?;
    Ok(())
}

/// The overview, which is to be read and not run: its second line would wait for its first.
#[rustfmt::skip]
#[allow(dead_code, unused_variables)]
async fn overview(client: lockkeeper::Client, other: lockkeeper::Client, owner: Owner) -> Result<()> {
let guard  = client.mutex("orders/42").acquire().await?;                  // waits
let guard  = client.mutex("orders/42").acquire_within(secs(5)).await?;    // Err(Timeout)
let maybe  = client.mutex("orders/42").try_acquire().await?;              // Option<Guard>; busy is not an error
let shared = client.read("report").acquire().await?;                      // client.write("report")
let permit = client.semaphore("gpu", 4).acquire().await?;
let both   = Multi::new([client.mutex("a"), other.mutex("b")]).acquire().await?;
let again  = client.mutex("a").owner(&owner).acquire().await?;            // re-entrant for that owner
let term   = client.election("scheduler").campaign().await?;              // leadership is a lock you keep
guard.release().await?;                                                   // or drop it
    Ok(())
}

async fn charge(_fence: Fence) {}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn every_line_of_rust_in_the_readme_is_compiled_here() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    let readme = readme.unwrap();
    let here: Vec<_> = include_str!("readme.rs").lines().map(str::trim).collect();
    let mut blocks = 0;
    for block in readme.split("```rust\n").skip(1) {
        blocks += 1;
        let (code, _) = block.split_once("```").unwrap();
        let mut rest = here.iter();
        for line in code.lines().map(str::trim) {
            assert!(
                rest.any(|here| *here == line),
                "the README has another line, or order: {line}"
            );
        }
    }
    assert_eq!(blocks, 2);
}
