//! How long a lock takes from one holder to the next: for benchmarks, in one process.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What contenders for one lock record. Clones share it.
#[derive(Debug, Clone)]
pub struct HandOffs {
    until: Instant,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    released: Option<(usize, Instant)>,
    took: Vec<Duration>,
}

impl HandOffs {
    /// Records for this long, from now on.
    pub fn during(time: Duration) -> Self {
        Self { until: Instant::now() + time, state: Arc::default() }
    }

    /// Whether the contenders have to stop.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// This contender was granted the lock, and releases it now.
    pub fn pass(&self, contender: usize) {
        let mut state = self.state.lock().expect("nothing panics under this lock");
        if let Some((by, released)) = state.released
            && by != contender
            && !self.is_over()
        {
            state.took.push(released.elapsed());
        }
        state.released = Some((contender, Instant::now()));
    }

    /// How long each took, from the call of the release to the grant.
    pub fn took(&self) -> Vec<Duration> {
        self.state.lock().expect("nothing panics under this lock").took.clone()
    }
}

/// The middle one of several durations; zero if there are none.
pub fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all.get(all.len() / 2).copied().unwrap_or_default()
}
