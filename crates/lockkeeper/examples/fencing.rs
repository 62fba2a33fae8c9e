//! Why a lock alone is not enough, and what the fence does about it.
//!
//! A holder is paused for longer than its lease. Another client gets the lock and writes. Then the
//! first one resumes and writes as well: the resource rejects it, because it has seen a higher
//! fence.
//!
//! `cargo run -p lockkeeper --example fencing`

use std::time::Duration;

use lockkeeper::testing::Memory;
use lockkeeper::{Client, Fenced};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lockkeeper::Result<()> {
    let store = Memory::new();
    let (slow, quick) = (Client::new(store.clone()), Client::new(store.clone()));
    // The resource keeps the highest fence it has seen, with its data.
    let account = Fenced::new(0);

    let first = slow.mutex("account").ttl(Duration::from_millis(200)).acquire().await?;
    let seen = account.access(first.fence(), |balance| *balance).expect("nobody was here before");
    println!("fence {} reads {seen}", first.fence());

    // The lease ends while the first holder is paused: a long GC, a swap storm, a suspended laptop.
    store.expire("account");

    let second = quick.mutex("account").acquire().await?;
    let written = account.access(second.fence(), |balance| {
        *balance += 100;
        *balance
    });
    println!("fence {} writes {}", second.fence(), written.expect("it is newer"));

    let late = account.access(first.fence(), |balance| *balance = seen + 1);
    println!("the first one comes back: {}", late.expect_err("it is older"));
    println!("its guard learns it too: {}", first.lost().await);
    assert_eq!(account.into_parts(), (second.fence(), 100));
    Ok(())
}
