//! A count of unfinished things that tasks and threads can wait on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

/// How many things are unfinished.
#[derive(Debug, Default)]
pub(crate) struct Count {
    open: AtomicUsize,
    changed: Notify,
    /// How many threads wait. Without one, notifying would be a useless system call.
    threads: Mutex<usize>,
    none: Condvar,
}

impl Count {
    pub(crate) fn is_zero(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    pub(crate) async fn none_left(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before checking, or a change in between is missed.
            changed.as_mut().enable();
            if self.is_zero() {
                return;
            }
            changed.await;
        }
    }

    /// Blocks this thread until the count is zero, for at most `limit`. Returns whether it is zero.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let mut threads = self.threads();
        *threads += 1;
        let waited = self.none.wait_timeout_while(threads, limit, |_| !self.is_zero());
        let (mut threads, outcome) = waited.expect("nothing panics under this lock");
        *threads -= 1;
        !outcome.timed_out()
    }

    fn threads(&self) -> MutexGuard<'_, usize> {
        self.threads.lock().expect("nothing panics under this lock")
    }
}

/// Counts as one until it is dropped.
pub(crate) struct Counted(Arc<Count>);

impl Counted {
    pub(crate) fn new(count: &Arc<Count>) -> Self {
        count.open.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.changed.notify_waiters();
            // A thread that saw the old count is waiting by now.
            if *self.0.threads() > 0 {
                self.0.none.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_until_none_is_left() {
        let count = Arc::new(Count::default());
        assert!(count.wait(Duration::ZERO));
        let (one, other) = (Counted::new(&count), Counted::new(&count));
        assert!(!count.wait(Duration::from_millis(1)));
        let waiting = {
            let count = count.clone();
            std::thread::spawn(move || count.wait(Duration::from_secs(60)))
        };
        while *count.threads() == 0 {
            std::thread::yield_now();
        }
        drop(one);
        assert!(!waiting.is_finished());
        drop(other);
        assert!(waiting.join().expect("it does not panic"));
    }
}
