//! Locks that are kept after their release, in paused time on `memory:`: what becomes of them when
//! something fails.

use std::time::Duration;

use lockkeeper::{Client, Guard, Lock, Release};
use lockkeeper_testkit::fault_link::Call;
use tokio::time::sleep;

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

impl World {
    fn lock_to_keep(&self) -> Lock {
        self.client.mutex("key").ttl(3 * SECOND).keep(3_600 * SECOND)
    }

    async fn keep(&self) {
        assert_eq!(
            self.lock_to_keep().acquire().await.unwrap().release().await.unwrap(),
            Release::Released
        );
        assert_eq!(self.link.calls(Call::Release), 0, "it is kept");
    }

    /// Takes it, without the store.
    async fn near(&self) -> Guard {
        let before = self.link.calls(Call::Attempt);
        let guard = self.lock_to_keep().try_acquire().await.unwrap().unwrap();
        assert_eq!(self.link.calls(Call::Attempt), before, "the store was asked");
        guard
    }

    async fn holders(&self) -> usize {
        let seen = Client::new(self.memory.clone()).inspect("key").await.unwrap();
        seen.map_or(0, |seen| seen.holders.len())
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_lock_is_renewed_for_as_long_as_it_is_kept() {
    let world = World::new();
    world.keep().await;
    for _ in 0..20 {
        sleep(SECOND).await;
        let guard = world.near().await;
        guard.check().unwrap();
        assert!(guard.remaining() > SECOND, "{:?}", guard.remaining());
        drop(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_lock_that_is_not_renewed_is_asked_for_again() {
    let world = World::new();
    world.keep().await;
    sleep(SECOND / 10).await;
    world.link.cut(Call::Renew, true);
    // Not much of the lease is left, and then nothing.
    for pause in [SECOND * 3 / 2, 10 * SECOND] {
        sleep(pause).await;
        let before = world.link.calls(Call::Attempt);
        let guard = world.lock_to_keep().acquire().await.unwrap();
        assert_eq!(world.link.calls(Call::Attempt), before + 1);
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_lock_that_the_store_forgot_is_asked_for_again() {
    let world = World::new();
    world.keep().await;
    world.memory.expire("key");
    // The next renewal finds out.
    sleep(2 * SECOND).await;
    let before = world.link.calls(Call::Attempt);
    world.lock_to_keep().acquire().await.unwrap().check().unwrap();
    assert_eq!(world.link.calls(Call::Attempt), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_wanted_while_its_release_cannot_be_sent_is_released_later() {
    let world = World::new();
    world.keep().await;
    world.link.cut(Call::Release, true);
    let other = Client::new(world.memory.clone());
    assert!(other.mutex("key").try_acquire().await.unwrap().is_none());
    sleep(SECOND / 10).await;
    assert_eq!(world.holders().await, 1);
    world.link.cut(Call::Release, false);
    let guard = other.mutex("key").acquire_within(SECOND).await.unwrap();
    guard.release().await.unwrap();
}
