//! Requests that wait for the same connection, and are sent together.
//!
//! Every request waits for its connection as if it were alone. The first one that gets it sends all
//! that wait by then in one statement: they share a round trip, and a commit.

use std::collections::HashMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::lease_engine::LeaseAsk;

/// The requests of one kind that wait for one connection, each for an answer `A`.
#[derive(Debug)]
pub(super) struct Batch<A>(Mutex<Vec<Waiting<A>>>);

#[derive(Debug)]
struct Waiting<A> {
    ask: Arc<LeaseAsk>,
    answer: oneshot::Sender<Option<A>>,
}

/// What is sent together. Whoever waits for an answer gets an error if this is dropped.
#[derive(Debug)]
pub(super) struct Together<A> {
    pub(super) asks: Vec<Arc<LeaseAsk>>,
    answers: Vec<oneshot::Sender<Option<A>>>,
}

impl<A> Batch<A> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Waits to be sent. A request whose receiver is dropped before that is not sent.
    pub(super) fn enter(&self, ask: &Arc<LeaseAsk>) -> oneshot::Receiver<Option<A>> {
        let (answer, receiver) = oneshot::channel();
        self.lock().push(Waiting { ask: ask.clone(), answer });
        receiver
    }

    /// All that wait.
    pub(super) fn leave(&self) -> Together<A> {
        let waiting = take(&mut *self.lock());
        let waiting = waiting.into_iter().filter(|waiting| !waiting.answer.is_closed());
        let (asks, answers) = waiting.map(|waiting| (waiting.ask, waiting.answer)).unzip();
        Together { asks, answers }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiting<A>>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl<A> Together<A> {
    /// Passes on what the server answered, by token; the others could not be served this way.
    pub(super) fn answer(self, mut answers: HashMap<String, A>) {
        for (ask, waiting) in self.asks.iter().zip(self.answers) {
            // One that no longer waits asks again, or has given up.
            let _ = waiting.send(answers.remove(&ask.token));
        }
    }
}
