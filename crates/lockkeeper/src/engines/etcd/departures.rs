//! Releases on their way, by key.
//!
//! Servers handle the requests of one connection side by side. A claim that followed a release of the
//! same key too closely could find the place that is just being given up, and a single try would call
//! that busy. So it waits until the release was answered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::key::Key;

/// How many releases are on their way, by key.
#[derive(Debug, Default)]
pub(super) struct Departures {
    leaving: Mutex<HashMap<Key, usize>>,
    one_left: Notify,
}

/// A release on its way, until dropped.
#[derive(Debug)]
pub(super) struct Departure<'a> {
    departures: &'a Departures,
    key: Key,
}

impl Departures {
    pub(super) fn begin(&self, key: &Key) -> Departure<'_> {
        *self.lock().entry(key.clone()).or_default() += 1;
        Departure { departures: self, key: key.clone() }
    }

    /// Until nobody of this client is on the way out of a key.
    pub(super) async fn over(&self, key: &Key) {
        loop {
            let one_left = self.one_left.notified();
            tokio::pin!(one_left);
            // Listen before looking, or a departure in between is missed.
            one_left.as_mut().enable();
            if !self.lock().contains_key(key) {
                return;
            }
            one_left.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, usize>> {
        self.leaving.lock().expect("nothing panics under this lock")
    }
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        let mut leaving = self.departures.lock();
        if let Some(count) = leaving.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                leaving.remove(&self.key);
            }
        }
        drop(leaving);
        self.departures.one_left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_claim_waits_for_all_departures_of_its_own_key() {
        let departures = Departures::default();
        let (a, b) = (Key::new("a").unwrap(), Key::new("b").unwrap());
        let (first, second) = (departures.begin(&a), departures.begin(&a));
        departures.over(&b).await;
        let mut over = tokio_test_poll(departures.over(&a));
        assert!(!over().await);
        drop(first);
        assert!(!over().await);
        drop(second);
        assert!(over().await);
    }

    /// Whether a future is done, asked again and again.
    fn tokio_test_poll<F: Future>(future: F) -> impl AsyncFnMut() -> bool {
        let mut future = Box::pin(future);
        async move || {
            std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_ready()))
                .await
        }
    }
}
