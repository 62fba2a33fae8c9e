//! The connection from one client to its engine, with a switch for every way in which it can fail.
//!
//! Unlike `lockkeeper::layers::faults`, which is random, a [`FaultLink`] is deterministic: a case
//! decides that *this* reply is lost, and checks what follows.

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
pub struct FaultLink {
    engine: Arc<dyn Engine>,
    switches: Arc<[Switches; 3]>,
}

/// What happens to one sort of call.
#[derive(Debug, Default)]
struct Switches {
    cut: AtomicBool,
    /// Wakes in order of arrival, which a `watch` channel does not: a seed must give one history.
    joined: Notify,
    refuse: Mutex<usize>,
    swallow: Mutex<usize>,
    calls: AtomicUsize,
}

impl FaultLink {
    /// A link that works.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine, switches: Arc::default() }
    }

    /// Disconnects one sort of call, or reconnects it.
    ///
    /// Meanwhile requests do not arrive, and replies to earlier ones do not come back: both wait.
    pub fn cut(&self, call: Call, cut: bool) {
        let switches = self.switches(call);
        switches.cut.store(cut, Ordering::Relaxed);
        switches.joined.notify_waiters();
    }

    /// Disconnects everything, or reconnects it.
    pub fn cut_all(&self, cut: bool) {
        for call in [Call::Attempt, Call::Renew, Call::Release] {
            self.cut(call, cut);
        }
    }

    /// The next `n` calls of this sort fail with a transient error, without taking effect.
    pub fn refuse(&self, call: Call, n: usize) {
        *self.switches(call).refuse.lock().expect("nothing panics under this lock") = n;
    }

    /// The next `n` calls of this sort take effect, and their replies are lost.
    pub fn swallow(&self, call: Call, n: usize) {
        *self.switches(call).swallow.lock().expect("nothing panics under this lock") = n;
    }

    /// How many calls of this sort were made.
    pub fn calls(&self, call: Call) -> usize {
        self.switches(call).calls.load(Ordering::Relaxed)
    }

    fn switches(&self, call: Call) -> &Switches {
        &self.switches[call as usize]
    }
}

impl Layer for FaultLink {
    fn inner(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    async fn pass<T: Send>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let switches = self.switches(call);
        switches.calls.fetch_add(1, Ordering::Relaxed);
        switches.travel().await;
        if one_less(&switches.refuse) {
            return Err(Error::unreachable("link", format!("{call:?}"), "not now"));
        }
        let answer = work.await;
        switches.travel().await;
        if one_less(&switches.swallow) {
            return Err(Error::unreachable("link", format!("{call:?}"), "the reply was lost"));
        }
        answer
    }
}

impl Switches {
    async fn travel(&self) {
        loop {
            let mut joined = pin!(self.joined.notified());
            // Register before checking, or a change in between is missed.
            joined.as_mut().enable();
            if !self.cut.load(Ordering::Relaxed) {
                return;
            }
            joined.await;
        }
    }
}

/// Decrements a count, if it is not zero.
fn one_less(count: &Mutex<usize>) -> bool {
    let mut left = count.lock().expect("nothing panics under this lock");
    let any = *left > 0;
    *left = left.saturating_sub(1);
    any
}
