//! What the library tells about itself: the names of its metrics, all in one place.
//!
//! Never the key: a key may be a customer's name, and there may be millions of them.

use std::future::Future;
use std::time::Duration;

use crate::backend::Mode;
use crate::error::{Loss, Result};

pub(crate) fn acquire(engine: &'static str, mode: Mode, outcome: &'static str, took: Duration) {
    metrics::histogram!("lockkeeper_acquire_seconds", "engine" => engine, "kind" => mode.kind(), "outcome" => outcome)
        .record(took);
}

pub(crate) fn waiting(engine: &'static str, mode: Mode, change: f64) {
    metrics::gauge!("lockkeeper_waiting", "engine" => engine, "kind" => mode.kind())
        .increment(change);
}

pub(crate) fn held(engine: &'static str, mode: Mode) {
    metrics::gauge!("lockkeeper_held", "engine" => engine, "kind" => mode.kind()).increment(1.0);
}

pub(crate) fn ended(engine: &'static str, mode: Mode, loss: &Loss, held: Duration) {
    let outcome = if *loss == Loss::Released { "released" } else { "lost" };
    metrics::gauge!("lockkeeper_held", "engine" => engine, "kind" => mode.kind()).decrement(1.0);
    metrics::histogram!("lockkeeper_hold_seconds", "engine" => engine, "kind" => mode.kind(), "outcome" => outcome)
        .record(held);
    let reason = match loss {
        Loss::Released => return,
        Loss::Expired => "expired",
        Loss::Ended => "ended",
        Loss::Gone => "gone",
        Loss::Disconnected(_) => "disconnected",
    };
    metrics::counter!("lockkeeper_lost_total", "engine" => engine, "kind" => mode.kind(), "reason" => reason)
        .increment(1);
}

/// `slack` is what was left before the holder would have been told to stop: the early warning.
pub(crate) fn renewed(engine: &'static str, slack: Duration) {
    renewals(engine, "renewed", 1);
    if slack == Duration::MAX {
        return;
    }
    metrics::histogram!("lockkeeper_renewal_slack_seconds", "engine" => engine).record(slack);
}

pub(crate) fn renewals(engine: &'static str, outcome: &'static str, count: usize) {
    metrics::counter!("lockkeeper_renewals_total", "engine" => engine, "outcome" => outcome)
        .increment(count as u64);
}

/// Times one call to an engine.
pub(crate) async fn call<T>(
    engine: &'static str,
    call: &'static str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let started = std::time::Instant::now();
    let result = work.await;
    let outcome = if result.is_ok() { "ok" } else { "error" };
    metrics::histogram!("lockkeeper_engine_call_seconds", "engine" => engine, "call" => call, "outcome" => outcome)
        .record(started.elapsed());
    result
}
