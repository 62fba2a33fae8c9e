//! Records who held what and when.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper::Guard;
use tokio::time::Instant;

use super::{Acquisition, Eviction, History, Resource};

/// Records acquisitions and evictions, by the runtime's clock.
#[derive(Debug)]
pub struct Recorder {
    started: Instant,
    history: Mutex<History>,
}

impl Recorder {
    /// Starts now.
    pub fn start() -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), history: Mutex::default() })
    }

    /// The time since the start.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// A caller that asked at `called` has a guard now.
    pub fn granted(
        self: &Arc<Self>,
        guard: &Guard,
        owner: &str,
        ttl: Duration,
        called: Duration,
        admitted: Option<Duration>,
    ) -> Mark {
        let acquisition = Acquisition {
            key: guard.key().to_string(),
            mode: guard.mode(),
            owner: owner.to_owned(),
            called,
            admitted,
            returned: self.now(),
            fence: guard.fence().get(),
            slots: guard.slots().to_vec(),
            ttl,
            last_use: None,
            release: None,
            released: None,
            lost: None,
            deadline: None,
        };
        let mut history = self.lock();
        history.acquisitions.push(acquisition);
        let at = history.acquisitions.len() - 1;
        drop(history);
        Mark { recorder: self.clone(), at }
    }

    /// A lock was broken that was granted with these fences, the first and the last.
    pub fn evicted(&self, key: &str, fence: u64, last: u64) {
        let eviction = Eviction { key: key.to_owned(), fence, last, at: self.now() };
        self.lock().evictions.push(eviction);
    }

    /// The history so far, with what the resource saw and what was left in the store.
    pub fn history(&self, resource: &Resource, left: Vec<String>) -> History {
        History { accesses: resource.log(), left, ..self.lock().clone() }
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("nothing panics under this lock")
    }
}

/// One acquisition in the record.
///
/// Easy to get wrong: record that the release begins *before* it does.
#[derive(Debug, Clone)]
pub struct Mark {
    recorder: Arc<Recorder>,
    at: usize,
}

impl Mark {
    /// The holder accesses what the lock protects.
    pub fn used(&self) {
        self.note(|acquisition, now| acquisition.last_use = Some(now));
    }

    /// The holder is about to release or drop its guard.
    pub fn releasing(&self) {
        self.note(|acquisition, now| _ = acquisition.release.get_or_insert(now));
    }

    /// The release returned.
    pub fn released(&self) {
        self.note(|acquisition, now| acquisition.released = Some(now));
    }

    /// The holder was signalled the loss.
    pub fn lost(&self) {
        self.note(|acquisition, now| _ = acquisition.lost.get_or_insert(now));
    }

    /// The lock was valid at this moment; nothing is known about later ones.
    pub fn vouched(&self) {
        self.note(|acquisition, now| acquisition.deadline = Some(now));
    }

    fn note(&self, note: impl FnOnce(&mut Acquisition, Duration)) {
        let now = self.recorder.now();
        note(&mut self.recorder.lock().acquisitions[self.at], now);
    }
}
