//! Leader election.

use std::time::Duration;

use lockkeeper::Error;

use super::Store;
use super::check::eventually;

const EVERY: Duration = Duration::from_millis(5);

pub(super) async fn terms_rise_and_observers_see_them(store: Store) {
    let (a, b) = (store.client().await, store.client().await);
    let mut observer = store.client().await.election("chair").observe(EVERY);
    assert_eq!(observer.next().await.unwrap(), None);

    let (first, second) = (a.election("chair").note("first"), b.election("chair").note("second"));
    let term = first.campaign().await.unwrap();
    assert!(second.try_campaign().await.unwrap().is_none());
    let leader = observer.next().await.unwrap().expect("somebody leads");
    assert_eq!(leader.note.as_deref(), Some("first"));
    assert!(leader.term.is_none_or(|number| number == term.number()), "{leader:?}");

    let standing = tokio::spawn(async move { second.campaign().await.unwrap() });
    let before = term.number();
    term.check().unwrap();
    term.step_down().await.unwrap();
    let next = standing.await.unwrap();
    assert!(next.number() > before, "{} after {before}", next.number());
    let seen = async {
        while observer.next().await.unwrap().and_then(|l| l.note).as_deref() != Some("second") {}
    };
    tokio::time::timeout(super::check::SOON, seen).await.expect("the second leader is seen");
    drop(next);
    eventually("nobody leads", async || observer.next().await.unwrap().is_none()).await;
}

pub(super) async fn leading_goes_on_after_a_loss(store: Store) {
    let (client, operator) = (store.client().await, store.client().await);
    let (send, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let ttl = store.lease();
    let election = client.election("chair").ttl(ttl);
    let leading = election.lead(async |term| {
        send.send(term.number()).expect("the test listens");
        // Only the loss of the lock interrupts it.
        std::future::pending::<()>().await;
    });
    let watching = async {
        let first = terms.recv().await.expect("it leads");
        match operator.break_lock("chair").await {
            Err(Error::Unsupported { .. }) => return first,
            broken => assert_eq!(broken.unwrap().len(), 1),
        }
        let second = terms.recv().await.expect("it leads again");
        assert!(second > first, "{second} after {first}");
        second
    };
    // Dropping the future that leads steps down.
    let second = tokio::select! {
        left = leading => panic!("it does not end by itself: {left:?}"),
        second = watching => second,
    };
    let free = operator.election("chair").campaign().await.unwrap();
    assert!(free.number() > second, "{} after {second}", free.number());
}
