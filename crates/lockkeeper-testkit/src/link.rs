//! The way from one client to its engine, with a switch for every way in which it can fail.
//!
//! Unlike `lockkeeper::layers::faults`, which throws dice, a [`Link`] does exactly what it is told:
//! a case says *this* reply is lost, and looks at what follows.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lockkeeper::engine::Engine;
pub use lockkeeper::layers::Call;
use lockkeeper::layers::Layer;
use lockkeeper::{Error, Result};
use tokio::sync::Notify;

/// An engine as one client reaches it. Clones share the switches.
#[derive(Debug, Clone)]
pub struct Link {
    engine: Arc<dyn Engine>,
    lines: Arc<[Line; 3]>,
}

/// What happens to one sort of call.
#[derive(Debug, Default)]
struct Line {
    cut: AtomicBool,
    /// Wakes in order of arrival, which a `watch` channel does not: a seed must give one history.
    joined: Notify,
    refuse: Mutex<usize>,
    swallow: Mutex<usize>,
    calls: AtomicUsize,
}

impl Link {
    /// A link that works.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine, lines: Arc::default() }
    }

    /// Cuts one sort of call, or joins it again.
    ///
    /// Meanwhile requests do not arrive, and replies of those that did do not come back: both wait.
    pub fn cut(&self, call: Call, cut: bool) {
        let line = self.line(call);
        line.cut.store(cut, Ordering::Relaxed);
        line.joined.notify_waiters();
    }

    /// Cuts everything, or joins it again.
    pub fn cut_all(&self, cut: bool) {
        for call in [Call::Attempt, Call::Renew, Call::Release] {
            self.cut(call, cut);
        }
    }

    /// The next `n` calls of this sort are refused for a reason that passes, and have no effect.
    pub fn refuse(&self, call: Call, n: usize) {
        *self.line(call).refuse.lock().expect("nothing panics under this lock") = n;
    }

    /// The next `n` calls of this sort have their effect, and their replies are lost.
    pub fn swallow(&self, call: Call, n: usize) {
        *self.line(call).swallow.lock().expect("nothing panics under this lock") = n;
    }

    /// How many calls of this sort were made.
    pub fn calls(&self, call: Call) -> usize {
        self.line(call).calls.load(Ordering::Relaxed)
    }

    fn line(&self, call: Call) -> &Line {
        &self.lines[call as usize]
    }
}

impl Layer for Link {
    fn inner(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    async fn pass<T: Send>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let line = self.line(call);
        line.calls.fetch_add(1, Ordering::Relaxed);
        line.travel().await;
        if one_less(&line.refuse) {
            return Err(Error::unreachable("link", format!("{call:?}"), "not now"));
        }
        let answer = work.await;
        line.travel().await;
        if one_less(&line.swallow) {
            return Err(Error::unreachable("link", format!("{call:?}"), "the reply was lost"));
        }
        answer
    }
}

impl Line {
    async fn travel(&self) {
        loop {
            let mut joined = pin!(self.joined.notified());
            // Listen before looking, or a change in between is missed.
            joined.as_mut().enable();
            if !self.cut.load(Ordering::Relaxed) {
                return;
            }
            joined.await;
        }
    }
}

/// Counts one off, if there is any left.
fn one_less(count: &Mutex<usize>) -> bool {
    let mut left = count.lock().expect("nothing panics under this lock");
    let any = *left > 0;
    *left = left.saturating_sub(1);
    any
}
