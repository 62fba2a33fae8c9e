//! Whether the store can be reached, as far as its answers show.
//!
//! Two failed requests in a row begin an outage, and the next answer ends it. One is not enough: it may
//! have found a connection that had ended long ago. An engine that notices a broken connection reports
//! it ([`Engine::disconnected`]); then everything that is held or waited for asks at once, instead of at
//! its next turn. During an outage, one hold at a time asks whether it is over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::backoff::RETRIES;
use super::inner::Inner;
use super::renewal;
use crate::engine::{Engine, Query, Signal};
use crate::error::{Error, Result};

/// How long everything may take to be answered after a connection broke, before that is an outage.
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);

/// The cause of an outage if nothing else is known.
const NO_NEW_ONE: &str = "the connection broke, and no new one is answered";

/// A time during which the engine does not answer; see [`Client::outages`](crate::Client::outages).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Outage {
    /// The error of the first requests that failed.
    pub cause: String,
    since: Instant,
}

impl Outage {
    fn new(cause: String) -> Self {
        Self { cause, since: Instant::now() }
    }

    /// How long it has lasted until now.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

/// The outages of a client, as they begin and end; from [`Client::outages`](crate::Client::outages).
#[derive(Debug)]
pub struct Outages {
    states: watch::Receiver<State>,
    /// Since when the last one lasts that was returned.
    told: Option<Instant>,
}

impl Outages {
    /// The outage at this moment, if there is one.
    pub fn current(&self) -> Option<Outage> {
        self.states.borrow().outage().cloned()
    }

    /// Resolves with an outage when it begins, and with `None` when the engine answers again.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub async fn changed(&mut self) -> Option<Outage> {
        loop {
            let outage = self.states.borrow_and_update().outage().cloned();
            let since = outage.as_ref().map(|outage| outage.since);
            if std::mem::replace(&mut self.told, since) != since {
                return outage;
            }
            if self.states.changed().await.is_err() {
                // The client is gone.
                return std::future::pending().await;
            }
        }
    }
}

#[derive(Debug, Clone, Default)]
enum State {
    #[default]
    Reachable,
    /// A connection broke, or a request failed, and why: the next answer decides.
    InDoubt {
        failed: Option<String>,
    },
    Unreachable(Outage),
}

impl State {
    fn outage(&self) -> Option<&Outage> {
        match self {
            State::Unreachable(outage) => Some(outage),
            _ => None,
        }
    }
}

/// What a client knows about whether its store can be reached.
#[derive(Debug, Default)]
pub(crate) struct Reachability {
    state: watch::Sender<State>,
    /// Whether an answer is news. Most are not, and cost one look at this.
    in_doubt: AtomicBool,
    /// Notified when a connection broke.
    broken: Notify,
}

impl Reachability {
    /// The outages that begin from now on, and the current one.
    pub(crate) fn outages(&self) -> Outages {
        Outages { states: self.state.subscribe(), told: None }
    }

    /// A request was answered.
    pub(crate) fn answered(&self) {
        if self.in_doubt.load(Ordering::Relaxed) {
            self.change(|_| Some(State::Reachable));
        }
    }

    /// A request failed. Only those count that may succeed later.
    pub(crate) fn failed(&self, error: &Error) {
        if !error.is_retryable() {
            return;
        }
        self.change(|state| match state {
            State::Unreachable(_) => None,
            State::InDoubt { failed: Some(_) } => {
                Some(State::Unreachable(Outage::new(error.to_string())))
            }
            _ => Some(State::InDoubt { failed: Some(error.to_string()) }),
        });
    }

    /// The outcome of a request.
    pub(crate) fn outcome<T>(&self, outcome: &Result<T>) {
        match outcome {
            Ok(_) => self.answered(),
            Err(error) => self.failed(error),
        }
    }

    /// Resolves when a connection breaks after this call.
    pub(crate) fn broken(&self) -> impl Future<Output = ()> + '_ {
        self.broken.notified()
    }

    /// Something may be wrong.
    fn doubt(&self) {
        self.change(|state| {
            matches!(state, State::Reachable).then_some(State::InDoubt { failed: None })
        });
    }

    /// Nothing was answered since there is doubt.
    fn silent(&self, cause: String) {
        self.change(|state| {
            matches!(state, State::InDoubt { .. }).then(|| State::Unreachable(Outage::new(cause)))
        });
    }

    fn change(&self, next: impl FnOnce(&State) -> Option<State>) {
        self.state.send_if_modified(|state| {
            let Some(next) = next(state) else { return false };
            self.in_doubt.store(!matches!(next, State::Reachable), Ordering::Relaxed);
            *state = next;
            true
        });
    }
}

/// The task that asks when there is doubt. It is only for engines that report broken connections.
pub(super) async fn watch(inner: Weak<Inner>, engine: Arc<dyn Engine>, mut broken: Signal) {
    let Some(mut states) = inner.upgrade().map(|inner| inner.reachability.state.subscribe()) else {
        return;
    };
    loop {
        let has_broken = tokio::select! {
            () = &mut broken => true,
            _ = states.wait_for(|state| !matches!(state, State::Reachable)) => false,
        };
        {
            let Some(inner) = inner.upgrade() else { return };
            if has_broken {
                let Some(next) = engine.disconnected() else { return };
                broken = next;
                if inner.guards.is_zero() {
                    continue;
                }
                inner.reachability.doubt();
                inner.renewals.renew_all_now();
                inner.reachability.broken.notify_waiters();
            }
        }
        if !settle(&inner, &engine, &mut states).await {
            return;
        }
    }
}

/// Asks until the store answers. False if the client is gone.
async fn settle(
    inner: &Weak<Inner>,
    engine: &Arc<dyn Engine>,
    states: &mut watch::Receiver<State>,
) -> bool {
    let began = Instant::now();
    let mut out = false;
    for tries in 0.. {
        let pause = RETRIES.delay(tries);
        match timeout(pause, states.wait_for(|state| matches!(state, State::Reachable))).await {
            Ok(Ok(_)) => break,
            Ok(Err(_)) => return false,
            Err(_) => {}
        }
        let state = states.borrow().clone();
        let Some(inner) = inner.upgrade() else { return false };
        if inner.guards.is_zero() {
            // Nobody asks, and nobody wants to know.
            inner.reachability.answered();
            break;
        }
        match state {
            State::Unreachable(_) => out = true,
            State::InDoubt { failed } if began.elapsed() >= ANSWERED_WITHIN => {
                let why = engine.why_silent().await.or(failed);
                inner.reachability.silent(why.unwrap_or_else(|| NO_NEW_ONE.to_owned()));
            }
            _ => {}
        }
        probe(&inner);
    }
    if out && let Some(inner) = inner.upgrade() {
        // They were retried at their own pace; now there is somebody to answer.
        inner.renewals.renew_all_now();
    }
    true
}

/// Asks for one of the holds, unless an answer is still missing. Those who wait ask by themselves.
fn probe(inner: &Arc<Inner>) {
    let holds = inner.local.holds();
    let Some(hold) = holds.iter().find(|hold| !hold.is_fixed()).or_else(|| holds.first()) else {
        return;
    };
    if hold.state().answers.are_missing() {
        return;
    }
    let (inner, hold) = (inner.clone(), hold.clone());
    let runtime = inner.runtime.clone();
    runtime.spawn(async move {
        if hold.is_fixed() {
            // Its lease is not renewed, so a look has to do.
            let looked = inner.engine.inspect(&Query::Key(hold.key().clone())).await;
            inner.reachability.outcome(&looked);
        } else {
            renewal::renew_now(&hold).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    fn refused() -> Error {
        Error::unreachable("test", "ask", "refused")
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_failure_begins_an_outage_and_an_answer_ends_it() {
        let reachability = Reachability::default();
        let mut outages = reachability.outages();
        reachability.failed(&refused());
        assert!(outages.current().is_none());
        reachability.answered();
        reachability.failed(&refused());
        reachability.failed(&Error::broken("test", "ask", "no permission"));
        assert!(outages.current().is_none(), "time does not cure that one");
        reachability.failed(&refused());
        let outage = outages.changed().await.unwrap();
        assert!(outage.cause.ends_with("refused"), "{}", outage.cause);
        sleep(Duration::from_secs(3)).await;
        reachability.failed(&Error::unreachable("test", "ask", "reset"));
        assert_eq!(outage.elapsed(), Duration::from_secs(3));
        let unchanged = timeout(Duration::from_secs(1), outages.changed()).await;
        assert!(unchanged.is_err(), "it is the same outage: {unchanged:?}");
        reachability.answered();
        assert!(outages.changed().await.is_none());
        assert!(reachability.outages().current().is_none());
    }

    #[tokio::test]
    async fn an_observer_that_missed_an_outage_sees_no_change() {
        let reachability = Reachability::default();
        let mut outages = reachability.outages();
        reachability.doubt();
        reachability.silent("no answer".to_owned());
        reachability.answered();
        let missed = timeout(Duration::ZERO, outages.changed()).await;
        assert!(missed.is_err(), "{missed:?}");
    }
}
