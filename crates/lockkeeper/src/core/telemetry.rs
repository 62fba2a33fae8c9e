//! The metrics of the library, with all their names in one place.
//!
//! The key is never a label: it may be a customer's name, and there may be millions of keys.
//! Handles are looked up once per client and kind, when they are first needed, so install a
//! recorder before the first lock is acquired.

use std::future::Future;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::engine::Mode;
use crate::error::{Loss, Result};
use crate::layers::Call;

/// The outcome of an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acquired,
    Busy,
    Timeout,
    Cancelled,
    Error,
}

/// The metrics of one client.
pub(crate) struct Meters {
    engine: &'static str,
    kinds: [OnceLock<Kind>; 4],
    calls: OnceLock<[[Histogram; 2]; 3]>,
    renewals: OnceLock<[Counter; 3]>,
    slack: OnceLock<Histogram>,
}

/// The metrics of one kind of lock.
struct Kind {
    waiting: Gauge,
    held: Gauge,
    acquire: [Histogram; 5],
    released: Histogram,
    lost: Histogram,
}

impl Meters {
    pub(crate) fn new(engine: &'static str) -> Self {
        Self {
            engine,
            kinds: Default::default(),
            calls: OnceLock::new(),
            renewals: OnceLock::new(),
            slack: OnceLock::new(),
        }
    }

    pub(crate) fn waiting(&self, mode: Mode) {
        self.kind(mode).waiting.increment(1.0);
    }

    pub(crate) fn acquire(&self, mode: Mode, outcome: Outcome, took: Duration) {
        let kind = self.kind(mode);
        kind.waiting.decrement(1.0);
        kind.acquire[outcome as usize].record(took);
    }

    pub(crate) fn held(&self, mode: Mode) {
        self.kind(mode).held.increment(1.0);
    }

    pub(crate) fn ended(&self, mode: Mode, loss: &Loss, held: Duration) {
        let kind = self.kind(mode);
        kind.held.decrement(1.0);
        let reason = match loss {
            Loss::Released => return kind.released.record(held),
            Loss::Expired => "expired",
            Loss::Ended => "ended",
            // Who broke it is only learned later.
            Loss::Gone | Loss::Broken { .. } => "gone",
            Loss::Disconnected(_) => "disconnected",
            Loss::Shutdown => "shutdown",
        };
        kind.lost.record(held);
        counter!("lockkeeper_lost_total", "engine" => self.engine, "kind" => mode.kind(), "reason" => reason)
            .increment(1);
    }

    /// A renewal was confirmed. `slack` is the time that was left before the holder would have been
    /// signalled to stop, an early warning; `None` if the engine holds without a time limit.
    pub(crate) fn renewed(&self, slack: Option<Duration>) {
        self.renewals()[0].increment(1);
        if let Some(slack) = slack {
            self.slack
                .get_or_init(
                    || histogram!("lockkeeper_renewal_slack_seconds", "engine" => self.engine),
                )
                .record(slack);
        }
    }

    pub(crate) fn renewal_gone(&self) {
        self.renewals()[1].increment(1);
    }

    pub(crate) fn renewals_unknown(&self, count: usize) {
        self.renewals()[2].increment(count as u64);
    }

    /// Times one call to an engine.
    pub(crate) async fn call<T>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let started = Instant::now();
        let result = work.await;
        self.called(call, started.elapsed(), result.is_ok());
        result
    }

    /// A call to an engine was answered.
    pub(crate) fn called(&self, call: Call, took: Duration, ok: bool) {
        let calls = self.calls.get_or_init(|| {
            ["attempt", "renew", "release"].map(|call| {
                ["ok", "error"].map(|outcome| {
                    histogram!("lockkeeper_engine_call_seconds", "engine" => self.engine, "call" => call, "outcome" => outcome)
                })
            })
        });
        calls[call as usize][usize::from(!ok)].record(took);
    }

    fn kind(&self, mode: Mode) -> &Kind {
        let at = match mode {
            Mode::Mutex => 0,
            Mode::Write => 1,
            Mode::Read => 2,
            Mode::Permits { .. } => 3,
        };
        let (engine, kind) = (self.engine, mode.kind());
        let hold = |outcome: &'static str| histogram!("lockkeeper_hold_seconds", "engine" => engine, "kind" => kind, "outcome" => outcome);
        self.kinds[at].get_or_init(|| Kind {
            waiting: gauge!("lockkeeper_waiting", "engine" => engine, "kind" => kind),
            held: gauge!("lockkeeper_held", "engine" => engine, "kind" => kind),
            acquire: ["acquired", "busy", "timeout", "cancelled", "error"].map(|outcome| {
                histogram!("lockkeeper_acquire_seconds", "engine" => engine, "kind" => kind, "outcome" => outcome)
            }),
            released: hold("released"),
            lost: hold("lost"),
        })
    }

    fn renewals(&self) -> &[Counter; 3] {
        self.renewals.get_or_init(|| {
            ["renewed", "gone", "unknown"].map(|outcome| {
                counter!("lockkeeper_renewals_total", "engine" => self.engine, "outcome" => outcome)
            })
        })
    }
}
