//! Why a lock alone is not enough, and what the fence does about it.
//!
//! A holder is paused for longer than its lease. Somebody else gets the lock and writes. Then the
//! first one wakes up and writes as well: the resource refuses it, because it has seen a higher fence.
//!
//! `cargo run -p lockkeeper --example fencing`

use std::time::Duration;

use lockkeeper::backends::memory::Memory;
use lockkeeper::{Client, Fence};

/// A resource that keeps the highest fence it has seen, with its data.
#[derive(Default)]
struct Account {
    fence: Fence,
    balance: i64,
}

impl Account {
    /// Raise the fence before the first read: from then on nobody older gets in.
    fn read(&mut self, fence: Fence) -> Result<i64, String> {
        if fence < self.fence {
            return Err(format!("fence {fence} is too old, {} was here", self.fence));
        }
        self.fence = fence;
        Ok(self.balance)
    }

    fn write(&mut self, fence: Fence, balance: i64) -> Result<(), String> {
        self.read(fence)?;
        self.balance = balance;
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> lockkeeper::Result<()> {
    let store = Memory::new();
    let (slow, quick) = (Client::new(store.clone()), Client::new(store.clone()));
    let mut account = Account::default();

    let first = slow.mutex("account").ttl(Duration::from_millis(200)).acquire().await?;
    let seen = account.read(first.fence()).expect("nobody was here before");
    println!("fence {} reads {seen}", first.fence());

    // The lease ends while the first holder is somewhere else: a pause, a swap storm, a suspended laptop.
    store.expire("account");

    let second = quick.mutex("account").acquire().await?;
    let now = account.read(second.fence()).expect("it is newer");
    account.write(second.fence(), now + 100).expect("it is newer");
    println!("fence {} writes {}", second.fence(), account.balance);

    let refused = account.write(first.fence(), seen + 1).expect_err("it is older");
    println!("the first one comes back: {refused}");
    println!("its guard learns it too: {}", first.lost().await);
    assert_eq!(account.balance, 100);
    Ok(())
}
