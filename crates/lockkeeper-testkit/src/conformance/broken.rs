//! What is recorded of a lock that was broken, and who is told.

use lockkeeper::engine::Support;
use lockkeeper::{Client, Lock, Loss, Release, whoami};
use tokio::time::timeout;

use super::Store;
use super::check::{SOON, eventually, take};

/// For every kind of lock: the loss names who broke it and why, and so does the store.
pub(super) async fn a_break_is_recorded_and_its_victim_is_told(store: Store) {
    let (client, operator) = (store.client().await, store.client().await);
    assert_eq!(operator.broken("").await.unwrap(), []);
    let mut keys = Vec::new();
    for lock in every_kind(&store, &client).await {
        let guard = take(lock).await;
        let (key, fence) = (guard.key().to_string(), guard.fence());
        let why = format!("{key} is stuck:\tsee\n\u{1b}[31mthe log --password hunter2");
        assert_eq!(operator.break_lock_because(&key, &why).await.unwrap().len(), 1);
        // The next renewal, or the engine itself, would report it later.
        let _ = guard.renew().await;
        timeout(SOON, guard.lost()).await.expect("it is lost");
        // At once, if the store answers within half a second.
        eventually("who broke it is known", async || {
            guard.check().is_err_and(|error| error.to_string().contains("broken by"))
        })
        .await;
        let told = guard.lost().await;
        let Loss::Broken { by, why: Some(why), .. } = &told else { panic!("{key}: {told:?}") };
        assert_eq!(*by, whoami());
        assert_eq!(*why, format!("{key} is stuck: see [31mthe log --password ***"));
        let expected = format!("broken by {by}: {why}");
        assert_eq!(told.to_string(), expected);
        let checked = guard.check().unwrap_err().to_string();
        assert!(checked.ends_with(&expected), "{checked}");
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);

        let listed = operator.broken(&key).await.unwrap();
        let [one] = listed.as_slice() else { panic!("{key}: {listed:?}") };
        assert_eq!((one.key.as_str(), &one.by, one.why.as_ref()), (&*key, by, Some(why)));
        assert!(one.command.is_some(), "{one:?}");
        let [hold] = one.holders.as_slice() else { panic!("{one:?}") };
        assert_eq!(hold.who, Some(whoami()), "{one:?}");
        assert!(hold.fence.is_none_or(|of| of == fence), "{fence}: {one:?}");
        keys.insert(0, key);
    }
    // The last one comes first; they are no locks; and nothing was broken that is not held.
    assert!(operator.break_lock_because("a mutex", "again").await.unwrap().is_empty());
    let listed: Vec<_> = operator.broken("").await.unwrap();
    assert_eq!(listed.iter().map(|one| one.key.to_string()).collect::<Vec<_>>(), keys);
    assert!(operator.list("").await.unwrap().is_empty());
    assert!(operator.broken("another").await.unwrap().is_empty());
    // A loss for another reason is not blamed on anyone.
    let guard = take(client.mutex("a mutex").lease(store.lease())).await;
    let told = guard.lost().await;
    assert!(!matches!(told, Loss::Broken { .. }), "{told:?}");
}

/// Whoever releases a lock before the next renewal learns that it was broken, too.
pub(super) async fn a_break_that_only_the_release_notices_is_named(store: Store) {
    let (client, operator) = (store.client().await, store.client().await);
    for lock in every_kind(&store, &client).await {
        let guard = take(lock).await;
        let (key, lost) = (guard.key().to_string(), guard.lost());
        assert_eq!(operator.break_lock_because(&key, "stuck").await.unwrap().len(), 1);
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost, "{key}");
        let told = timeout(SOON, lost).await.expect("it is lost");
        let Loss::Broken { by, why, .. } = &told else { panic!("{key}: {told:?}") };
        assert_eq!((by, why.as_deref()), (&whoami(), Some("stuck")), "{key}");
    }
}

/// The store keeps the last few breaks, whoever adds to them.
pub(super) async fn breaks_are_kept_up_to_a_number(store: Store) {
    const MOST: usize = 50;
    let clients = [store.client().await, store.client().await];
    for n in 0..MOST + 3 {
        let (client, operator) = (&clients[n % 2], &clients[1 - n % 2]);
        let key = format!("key {n}");
        loop {
            let _guard = take(client.mutex(&key)).await;
            match operator.break_lock_because(&key, "x".repeat(1000)).await {
                Ok(broken) => break assert_eq!(broken.len(), 1),
                // Servers in trouble may not answer in time.
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    }
    let listed = clients[0].broken("").await.unwrap();
    assert_eq!(listed.len(), MOST);
    assert_eq!(listed[0].key.as_str(), format!("key {}", MOST + 2));
    assert!(listed.iter().all(|one| one.why.as_ref().is_some_and(|why| why.len() <= 210)));
}

async fn every_kind(store: &Store, client: &Client) -> Vec<Lock> {
    let promises = store.guarantees().await;
    let mut locks = vec![client.mutex("a mutex")];
    if promises.read_write == Support::Yes {
        locks.extend([client.read("read"), client.write("written")]);
    }
    if promises.semaphore == Support::Yes {
        locks.push(client.semaphore("permits", 2));
    }
    locks
}
