//! Hand-over between the tasks of one client, in paused time on `memory:`: when, when not, and what
//! becomes of it when something fails.

use std::time::Duration;

use lockkeeper::{Client, Error, Guard, Lock, Loss, Owner, Release, Result};
use lockkeeper_testkit::fault_link::Call;
use lockkeeper_testkit::poll::{poll_once, poll_times};
use tokio::time::{advance, sleep, timeout};

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

type Acquire = std::pin::Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

impl World {
    fn lock(&self) -> Lock {
        self.client.mutex("key").ttl(3 * SECOND)
    }

    /// A task of this client that waits.
    async fn waiting(&self, lock: Lock) -> Acquire {
        let mut acquire: Acquire = Box::pin(lock.acquire());
        assert!(poll_once(&mut acquire).await.is_pending());
        acquire
    }

    /// A grant that reserved fences, because other tasks waited before it.
    async fn reserving(&self) -> Guard {
        let first = self.lock().acquire().await.unwrap();
        let second = self.waiting(self.lock()).await;
        first.release().await.unwrap();
        second.await.unwrap()
    }

    /// How many requests of this sort something takes.
    async fn calls<T>(&self, call: Call, work: impl Future<Output = T>) -> (usize, T) {
        let before = self.link.calls(call);
        let done = work.await;
        (self.link.calls(call) - before, done)
    }

    /// Whether a lock is handed over from this guard to a task that wants it on these terms.
    async fn is_handed_over(&self, guard: Guard, lock: Lock) -> bool {
        let next = self.waiting(lock).await;
        let (asked, next) = self
            .calls(Call::Attempt, async {
                guard.release().await.unwrap();
                next.await.unwrap()
            })
            .await;
        next.release().await.unwrap();
        asked == 0
    }

    async fn nothing_is_left(self) {
        sleep(SECOND).await;
        let other = Client::new(self.memory.clone());
        let left = other.inspect("key").await.unwrap();
        assert!(left.is_none(), "{left:?}");
        self.client.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_on_the_same_terms_need_the_store_once() {
    let world = World::new();
    let guard = world.reserving().await;
    let mut fence = guard.fence().get();
    let (mut released, mut held) = (None, guard);
    for n in 0..50 {
        let next = world.waiting(world.lock()).await;
        let lost = held.lost();
        // Dropped and released guards alike.
        let (asked, next) = world
            .calls(Call::Attempt, async {
                match n % 2 {
                    0 => drop(held),
                    _ => released = Some(held.release().await.unwrap()),
                }
                next.await.unwrap()
            })
            .await;
        assert_eq!((asked, next.fence().get()), (0, fence + 1));
        assert_eq!(lost.await, Loss::Released);
        next.check().unwrap();
        fence += 1;
        held = next;
    }
    assert_eq!(released, Some(Release::Released));
    assert_eq!(world.link.calls(Call::Release), 1, "of the lock that reserved nothing");
    held.release().await.unwrap();
    let other = Client::new(world.memory.clone()).mutex("key").acquire().await.unwrap();
    assert!(other.fence().get() > fence);
    drop(other);
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_local_waiters_reserves_nothing() {
    let world = World::new();
    let guard = world.lock().acquire().await.unwrap();
    assert_eq!(guard.fence().get(), 1);
    assert!(!world.is_handed_over(guard, world.lock()).await);
}

#[tokio::test(start_paused = true)]
async fn other_terms_are_the_stores_business() {
    let owner = Owner::new();
    let others: [fn(Lock, &Owner) -> Lock; 8] = [
        |lock, _| lock.ttl(4 * SECOND),
        |lock, _| lock.lease(3 * SECOND),
        |lock, _| lock.margin(SECOND),
        |lock, _| lock.note("why"),
        |lock, _| lock.fair(),
        |lock, _| lock.keep_when_lost(),
        |lock, _| lock.hand_over(false),
        |lock, owner| lock.owner(owner),
    ];
    let world = World::new();
    for other in others {
        let guard = world.reserving().await;
        assert!(!world.is_handed_over(guard, other(world.lock(), &owner)).await);
    }
    let guard = world.reserving().await;
    assert!(world.is_handed_over(guard, world.lock()).await);
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_came_first_is_not_passed_over() {
    let world = World::new();
    let guard = world.reserving().await;
    let other = world.waiting(world.lock().note("on other terms")).await;
    let mut same = world.waiting(world.lock()).await;
    guard.release().await.unwrap();
    assert!(poll_once(&mut same).await.is_pending());
    let other = other.await.unwrap();
    assert!(poll_once(&mut same).await.is_pending());
    other.release().await.unwrap();
    same.await.unwrap().release().await.unwrap();
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_and_the_store_decides() {
    let world = World::new();
    let guard = world.reserving().await;
    advance(9 * MILLI).await;
    let next = world.waiting(world.lock()).await;
    guard.release().await.unwrap();
    let guard = next.await.unwrap();
    // Another client has been waiting, and gets in before the next task of this one.
    let other = Client::new(world.memory.clone());
    let mut foreign: Acquire = Box::pin(other.mutex("key").acquire());
    assert!(poll_once(&mut foreign).await.is_pending());
    let mut next = world.waiting(world.lock()).await;
    advance(MILLI).await;
    guard.release().await.unwrap();
    assert!(poll_once(&mut next).await.is_pending());
    let foreign = timeout(SECOND, foreign).await.expect("its turn").unwrap();
    assert!(poll_once(&mut next).await.is_pending());
    foreign.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_about_to_end_is_not_handed_over() {
    let world = World::new();
    // Its holder is signalled after 4 ms.
    let lock = || world.lock().margin(3 * SECOND - 4 * MILLI);
    for (old, handed_over) in [(2, true), (3, false)] {
        let first = lock().acquire().await.unwrap();
        let second = world.waiting(lock()).await;
        first.release().await.unwrap();
        let second = second.await.unwrap();
        advance(MILLI * old).await;
        assert_eq!(world.is_handed_over(second, lock()).await, handed_over, "after {old} ms");
    }
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_is_not_handed_over() {
    let world = World::new();
    let guard = world.reserving().await;
    world.memory.expire("key");
    assert!(matches!(guard.renew().await, Err(Error::Lost { .. })));
    let next = world.lock().acquire().await.unwrap();
    assert!(next.fence() > guard.fence());
    let after = world.waiting(world.lock()).await;
    // It must not hand over what it lost, nor release what the next one holds.
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    next.check().unwrap();
    next.release().await.unwrap();
    after.await.unwrap().release().await.unwrap();
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_for_the_task_that_has_the_lock_when_it_is_answered() {
    let world = World::new();
    let guard = world.reserving().await;
    let next = world.waiting(world.lock()).await;
    sleep(5 * MILLI).await;
    world.link.cut(Call::Renew, true);
    assert!(poll_times(guard.renew(), 1).await.is_none());
    tokio::task::yield_now().await;
    let (asked, ()) = world.calls(Call::Attempt, async { drop(guard) }).await;
    let guard = next.await.unwrap();
    assert_eq!(asked, 0, "it was not handed over");
    let before = guard.remaining();
    // The answer comes later than all that the holder knew of, and counts from its request.
    sleep(3 * MILLI).await;
    world.link.cut(Call::Renew, false);
    sleep(MILLI).await;
    assert_eq!(guard.remaining(), before + 5 * MILLI - 4 * MILLI);
    guard.release().await.unwrap();
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_keeps_a_lock_that_was_handed_over() {
    let world = World::new();
    let guard = world.reserving().await;
    let next = world.waiting(world.lock()).await;
    drop(guard);
    let guard = next.await.unwrap();
    let (renewals, ()) = world.calls(Call::Renew, sleep(30 * SECOND)).await;
    assert!((29..=31).contains(&renewals), "{renewals} renewals of one lease in 30 of its thirds");
    guard.check().unwrap();
    // And a loss reaches the task inside, by the store as by the clock.
    world.memory.expire("key");
    assert_eq!(timeout(SECOND, guard.lost()).await.unwrap(), Loss::Gone);
    drop(guard);
    let guard = world.reserving().await;
    let next = world.waiting(world.lock()).await;
    drop(guard);
    let guard = next.await.unwrap();
    world.link.cut_all(true);
    assert_eq!(timeout(2 * SECOND, guard.lost()).await.unwrap(), Loss::Expired);
    world.link.cut_all(false);
    drop(guard);
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_stops_waiting_leaves_the_lock_to_the_next() {
    let world = World::new();
    let guard = world.reserving().await;
    let (gone, woken) = (world.waiting(world.lock()).await, world.waiting(world.lock()).await);
    let last = world.waiting(world.lock()).await;
    drop(gone);
    guard.release().await.unwrap();
    // It has the lock already, and was not polled since.
    drop(woken);
    let last = timeout(SECOND, last).await.expect("it was handed over").unwrap();
    // The last one: the lock goes back to the store.
    let unpolled = world.waiting(world.lock()).await;
    last.release().await.unwrap();
    drop(unpolled);
    world.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_poll_nothing_is_left() {
    for polls in 1..6 {
        let world = World::new();
        let guard = world.reserving().await;
        let tasks: Vec<_> = (0..9)
            .map(|n| {
                let acquire = world.lock().acquire();
                tokio::spawn(async move {
                    match n % 3 {
                        0 => drop(poll_times(acquire, polls).await),
                        1 => _ = poll_times(acquire.await.unwrap().release(), polls).await,
                        _ => _ = acquire.await.unwrap().release().await,
                    }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        guard.release().await.unwrap();
        for task in tasks {
            timeout(SECOND, task).await.expect("nobody waits for ever").unwrap();
        }
        world.nothing_is_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_shuts_down_hands_nothing_over() {
    let world = World::new();
    let guard = world.reserving().await;
    let waiting = tokio::spawn(world.lock().acquire());
    tokio::task::yield_now().await;
    let lost = guard.lost();
    let stopping = tokio::spawn(world.client.clone().shutdown(5 * SECOND));
    assert_eq!(lost.await, Loss::Shutdown);
    let (released, _) = world.calls(Call::Release, guard.release()).await;
    assert_eq!(released, 1);
    assert!(matches!(waiting.await.unwrap(), Err(Error::Shutdown)));
    assert!(stopping.await.unwrap().is_empty());
    let other = Client::new(world.memory.clone());
    assert!(other.mutex("key").try_acquire().await.unwrap().is_some());
}
