//! What the core does when an engine is slow, silent or gone, in paused time on `memory:`.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::testing::{Faults, Memory, Plan};
use lockkeeper::{Client, Error, Guard, Lock, Loss, Multi, Owner, Release};
use lockkeeper_testkit::fault_link::{Call, FaultLink};
use tokio::sync::Notify;
use tokio::time::{Instant, advance, timeout};

use crate::watched::Watched;

const SECOND: Duration = Duration::from_secs(1);

fn store() -> (Memory, Client) {
    let memory = Memory::new();
    (memory.clone(), Client::new(memory))
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_is_an_error_and_is_undone_when_the_answer_comes() {
    let (memory, client) = store();
    memory.partition(true);
    let asked = Instant::now();
    let error = client.mutex("key").acquire().await.unwrap_err();
    assert!(error.to_string().contains("no answer within 10s") && error.is_retryable(), "{error}");
    assert_eq!(asked.elapsed(), 10 * SECOND);
    memory.partition(false);
    let other = Client::new(memory);
    let guard =
        timeout(SECOND, other.mutex("key").acquire()).await.expect("it was undone").unwrap();
    drop(guard);
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_kept_also_when_the_engine_is_silent() {
    let (memory, client) = store();
    memory.partition(true);
    let asked = Instant::now();
    let error = client.mutex("key").acquire_within(2 * SECOND).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(asked.elapsed(), 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_longer_than_the_lease_is_no_grant() {
    let (memory, client) = store();
    memory.delay(4 * SECOND);
    let error = client.mutex("key").ttl(5 * SECOND).acquire().await.unwrap_err();
    assert!(error.to_string().contains("longer than the lease"), "{error}");
    memory.delay(Duration::ZERO);
    drop(client.mutex("key").ttl(5 * SECOND).acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn leases_that_were_taken_over_a_while_are_renewed_in_full_calls() {
    let link = FaultLink::new(Arc::new(Memory::new()));
    let client = Client::new(link.clone());
    let mut guards = Vec::new();
    for n in 0..1250 {
        guards.push(client.mutex(n.to_string()).ttl(30 * SECOND).acquire().await.unwrap());
        advance(2 * SECOND / 1250).await;
    }
    tokio::time::sleep(30 * SECOND).await;
    let before = link.calls(Call::Renew);
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(link.calls(Call::Renew) - before, 3 * 3, "three calls for each third of the lease");
}

#[tokio::test(start_paused = true)]
async fn loss_is_signalled_by_the_clock_when_the_store_does_not_answer() {
    let (memory, client) = store();
    let asked = Instant::now();
    let guard = client.mutex("key").ttl(9 * SECOND).acquire().await.unwrap();
    memory.partition(true);
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(asked.elapsed(), 6 * SECOND, "two thirds after the last word of the engine");
    assert!(matches!(guard.check(), Err(Error::Lost { reason: Loss::Expired, .. })));
    assert_eq!(guard.remaining(), Duration::ZERO);
    memory.partition(false);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_are_known_until_one_succeeds() {
    let link = FaultLink::new(Arc::new(Memory::new()));
    let client = Client::new(link.clone());
    let guard = client.mutex("key").ttl(9 * SECOND).acquire().await.unwrap();
    let failures = || guard.trouble().map_or(0, |trouble| trouble.failures);
    assert_eq!(failures(), 0);
    // Every third of the lease, and every sixth while there is no answer.
    link.swallow(Call::Renew, 1);
    tokio::time::sleep(4 * SECOND).await;
    let trouble = guard.trouble().unwrap();
    assert!(trouble.failures == 1 && trouble.error.contains("the reply was lost"), "{trouble:?}");
    tokio::time::sleep(SECOND).await;
    assert_eq!(failures(), 0);
    // Silence counts at the next retry.
    link.cut(Call::Renew, true);
    let loss = guard.lost().await;
    let trouble = guard.trouble().unwrap();
    assert_eq!(loss, Loss::Expired);
    // From the renewal three seconds after the last good one to the loss three seconds later.
    assert_eq!(trouble.error, "no answer from memory: for 3.0 s");
    assert!(trouble.failures > 0);
}

#[tokio::test(start_paused = true)]
async fn a_margin_of_ones_own_moves_the_signal() {
    let (memory, client) = store();
    let asked = Instant::now();
    let lock = client.mutex("key").ttl(9 * SECOND).margin(SECOND);
    let guard = lock.acquire().await.unwrap();
    memory.partition(true);
    guard.lost().await;
    assert_eq!(asked.elapsed(), 8 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn check_needs_no_task_to_have_run() {
    let (_, client) = store();
    let guard = client.mutex("key").ttl(3 * SECOND).acquire().await.unwrap();
    // Like a stopped process: time passes, and no task runs before the check.
    advance_without_running(10 * SECOND).await;
    assert!(guard.check().is_err());
}

/// Moves the clock without yielding to any task before the caller continues.
async fn advance_without_running(by: Duration) {
    let mut advancing = Box::pin(advance(by));
    // The first poll moves the clock; nothing else has run by then.
    std::future::poll_fn(|cx| {
        let _ = advancing.as_mut().poll(cx);
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_comes_back_late_does_not_revive_a_lost_lock() {
    let (memory, client) = store();
    let guard = client.mutex("key").ttl(9 * SECOND).acquire().await.unwrap();
    memory.delay(8 * SECOND);
    assert_eq!(guard.lost().await, Loss::Expired);
    memory.delay(Duration::ZERO);
    tokio::time::sleep(20 * SECOND).await;
    assert!(guard.check().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_release_is_unconfirmed_and_continues_in_the_background() {
    let (memory, client) = store();
    let guard = client.mutex("key").acquire().await.unwrap();
    memory.partition(true);
    assert_eq!(guard.release().await.unwrap(), Release::Unconfirmed);
    memory.partition(false);
    client.clone().close().await;
    assert!(client.inspect("key").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn run_drops_the_work_when_the_lock_is_lost() {
    struct Dropped(Arc<Notify>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let (memory, client) = store();
    let dropped = Arc::new(Notify::new());
    let work = Dropped(dropped.clone());
    let result = client
        .mutex("key")
        .ttl(3 * SECOND)
        .run(async |_| {
            let _work = work;
            memory.expire("key");
            std::future::pending::<()>().await;
        })
        .await;
    assert!(matches!(result, Err(Error::Lost { reason: Loss::Gone, .. })), "{result:?}");
    timeout(SECOND, dropped.notified()).await.expect("the work was dropped");
}

#[tokio::test(start_paused = true)]
async fn work_that_ends_after_the_loss_is_late_and_its_result_can_be_kept() {
    let (_, client) = store();
    let mut receipt = None;
    let work = async |_: &Guard| {
        // Like work that blocks its thread: nothing could stop it.
        advance_without_running(10 * SECOND).await;
        receipt = Some(17);
    };
    let ran = client.mutex("key").ttl(3 * SECOND).run(work).await;
    assert!(matches!(ran, Err(Error::Late { reason: Loss::Expired, .. })), "{ran:?}");
    assert_eq!(receipt, Some(17));
    let locks = Multi::new([client.mutex("a").ttl(3 * SECOND), client.mutex("b")]);
    let ran = locks.run(async |_| advance_without_running(10 * SECOND).await).await;
    assert!(matches!(&ran, Err(Error::Late { key, .. }) if key.as_str() == "a"), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn work_is_tried_or_waits_for_a_while() {
    let (memory, client) = store();
    let other = Client::new(memory);
    let guard = other.mutex("key").acquire().await.unwrap();
    let lock = || client.mutex("key");
    let both = || Multi::new([client.mutex("free"), client.mutex("key")]);
    assert_eq!(lock().try_run(async |_| 1).await.unwrap(), None);
    assert_eq!(both().try_run(async |_| 1).await.unwrap(), None);
    let late = lock().run_within(SECOND, async |_| 1).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    let late = both().run_within(SECOND, async |_| 1).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    let guard_fence = guard.fence();
    guard.release().await.unwrap();
    assert!(lock().try_run(async |hold| hold.fence()).await.unwrap() > Some(guard_fence));
    assert_eq!(both().try_run(async |held| held.guards().len()).await.unwrap(), Some(2));
    // The limit does not apply to the work.
    let slow = async |_: &Guard| tokio::time::sleep(60 * SECOND).await;
    lock().run_within(SECOND, slow).await.unwrap();
    assert_eq!(both().run_within(SECOND, async |held| held.guards().len()).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_does_not_block_others_of_the_same_process() {
    let (memory, client) = store();
    let lost = client.mutex("key").ttl(3 * SECOND).acquire().await.unwrap();
    memory.expire("key");
    lost.lost().await;
    let guard = timeout(SECOND, client.mutex("key").acquire()).await.unwrap().unwrap();
    assert!(guard.fence() > lost.fence());
    assert_eq!(lost.release().await.unwrap(), Release::AlreadyLost);
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_next_acquire_comes_after_the_release_and_does_not_wait_for_its_answer() {
    let engine = Watched::default();
    let calls = engine.calls.clone();
    let client = Client::new(engine);
    drop(client.mutex("silent").acquire().await.unwrap());
    let asked = Instant::now();
    let _guard = client.mutex("silent").acquire().await.unwrap();
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!(*calls.lock().unwrap(), ["attempt", "release", "attempt"]);
}

#[tokio::test(start_paused = true)]
async fn where_requests_may_overtake_each_other_the_next_acquire_waits_for_the_answer() {
    let engine = Watched { unordered: true, ..Watched::default() };
    let client = Client::new(engine.clone());
    let guard = client.mutex("key").acquire().await.unwrap();
    engine.memory.delay(2 * SECOND);
    let asked = Instant::now();
    drop(guard);
    let again = client.mutex("key").try_acquire().await.unwrap();
    assert!(again.is_some(), "it waited for the release");
    assert_eq!(asked.elapsed(), 4 * SECOND, "a release, then an attempt");
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_acquire_does_not_make_a_try_busy() {
    let engine = Watched { unordered: true, ..Watched::default() };
    let client = Client::new(engine.clone());
    engine.memory.delay(2 * SECOND);
    // Its attempt is on the way, and then has reached the store.
    for patience in [SECOND / 2, 3 * SECOND / 2] {
        timeout(patience, client.mutex("key").acquire()).await.expect_err("not yet answered");
        let tried = client.mutex("key").try_acquire().await.unwrap();
        tried.expect("nobody else wants it").release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_that_was_dropped_does_not_make_a_try_busy() {
    let engine = Watched { unordered: true, ..Watched::default() };
    let client = Client::new(engine.clone());
    let lose = async || {
        let guard = client.mutex("key").ttl(9 * SECOND).acquire().await.unwrap();
        engine.memory.partition(true);
        assert_eq!(guard.lost().await, Loss::Expired);
        engine.memory.partition(false);
        guard
    };
    // The store keeps it for another third of the lease.
    drop(lose().await);
    let tried = client.mutex("key").try_acquire().await.unwrap();
    tried.expect("it was let go").release().await.unwrap();
    let lost = lose().await;
    engine.memory.delay(SECOND / 2);
    let (released, tried) = tokio::join!(lost.release(), client.mutex("key").try_acquire());
    assert_eq!(released.unwrap(), Release::AlreadyLost);
    tried.unwrap().expect("it was let go").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_leaves_is_not_in_the_way_of_another_kind() {
    let engine = Watched { unordered: true, ..Watched::default() };
    let client = Client::new(engine.clone());
    engine.memory.delay(2 * SECOND);
    drop(client.mutex("key").acquire().await.unwrap());
    let permit = client.semaphore("key", 2).acquire().await;
    drop(permit.expect("the mutex is on its way out"));
    drop(client.mutex("key").acquire().await.expect("and so is the permit"));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_never_ends_does_not_keep_others_of_its_client_away() {
    let (memory, client) = store();
    let faults = Faults::new(memory, 1);
    let client = {
        drop(client);
        Client::new(faults.clone())
    };
    faults.set(Plan::NONE.hang(1.0).longest(Duration::from_secs(365 * 24 * 3600)));
    let error = client.mutex("key").acquire().await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    faults.set(Plan::NONE);
    // The attempt that hangs may have got it, and then keeps it for a lease.
    let other = timeout(60 * SECOND, client.mutex("key").acquire());
    drop(other.await.expect("it does not wait for the one that hangs").unwrap());
}

#[test]
fn releases_without_an_answer_may_be_dropped_with_their_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (memory, client) = store();
        let guard = client.mutex("held").acquire().await.unwrap();
        memory.partition(true);
        let limit = Duration::from_millis(10);
        client.mutex("abandoned").acquire_within(limit).await.unwrap_err();
        drop(guard);
        tokio::task::yield_now().await;
    });
    drop(runtime);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_release_that_another_task_helps_onto_the_wire_is_no_loss() {
    let (_, client) = store();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let lock = client.mutex("key");
        tasks.spawn(async move {
            for _ in 0..4_000 {
                let guard = lock.clone().acquire().await.unwrap();
                assert_eq!(guard.release().await.unwrap(), Release::Released);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn two_tasks_of_one_owner_share_a_hold_even_if_they_arrive_together() {
    let (memory, client) = store();
    memory.delay(Duration::from_millis(100));
    let owner = Owner::new();
    let lock = client.mutex("key").owner(&owner);
    let (a, b) = tokio::join!(lock.clone().acquire(), lock.acquire());
    assert_eq!(a.unwrap().fence(), b.unwrap().fence());
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_enters_through_another_client_keeps_its_fence() {
    let (memory, client) = store();
    let (other, owner) = (Client::new(memory), Owner::new());
    let outer = client.mutex("key").owner(&owner).acquire().await.unwrap();
    let inner = other.mutex("key").owner(&owner).acquire().await.unwrap();
    assert_eq!(inner.fence(), outer.fence());
    drop((inner, outer));
    client.clone().close().await;
    other.clone().close().await;
    assert!(client.mutex("key").acquire().await.unwrap().fence().get() > 1);
}

#[tokio::test(start_paused = true)]
async fn a_loss_reported_by_the_engine_is_signalled_at_once() {
    let engine = Watched::default();
    let told = engine.told.clone();
    let client = Client::new(engine);
    let guard = client.mutex("key").acquire().await.unwrap();
    // The engine watches a lock that is held for longer than a moment.
    tokio::time::sleep(SECOND).await;
    told.notify_one();
    let asked = Instant::now();
    assert_eq!(guard.lost().await, Loss::Disconnected("cut".into()));
    assert_eq!(asked.elapsed(), Duration::ZERO);
}

#[test]
fn a_guard_may_be_dropped_after_its_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (client, guard) = runtime.block_on(async {
        let (_, client) = store();
        let guard = client.mutex("key").acquire().await.unwrap();
        (client, guard)
    });
    drop(runtime);
    assert!(guard.check().is_ok());
    drop(guard);
    drop(client);
}

#[test]
fn futures_and_guards_can_move_between_threads() {
    fn movable<T: Send + 'static>(_: &T) {}
    fn shareable<T: Send + Sync + 'static>() {}
    shareable::<Guard>();
    shareable::<Client>();
    shareable::<Lock>();
    fn futures(client: Client, guard: Guard) {
        movable(&guard.lost());
        movable(&client.mutex("key").acquire());
        movable(&client.mutex("key").try_acquire());
        movable(&client.mutex("key").acquire_within(SECOND));
        movable(&Multi::new([client.mutex("key")]).acquire());
        movable(&client.mutex("key").run(async |hold| hold.fence()));
        movable(&client.mutex("key").try_run(async |hold| hold.fence()));
        movable(&client.mutex("key").run_within(SECOND, async |hold| hold.fence()));
        movable(&client.clone().shutdown(SECOND));
        movable(&guard.release());
    }
    let _ = futures;
}
