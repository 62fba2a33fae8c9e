//! Delays between attempts.

use std::time::Duration;

/// Exponential backoff with jitter: delays that double up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Delays from `first` to `longest`; each is reduced by a random part of up to a half.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self::between(first, longest.max(first))
    }

    /// Like `new`, for constants that are already in order.
    pub(crate) const fn between(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The n-th delay, from 0.
    pub fn delay(&self, n: u32) -> Duration {
        let full = self.first.saturating_mul(1 << n.min(20)).min(self.longest);
        full.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

impl Default for Backoff {
    /// From 1 ms to 100 ms.
    fn default() -> Self {
        Self::new(Duration::from_millis(1), Duration::from_millis(100))
    }
}

/// Between calls to a failing engine.
pub(crate) const RETRIES: Backoff =
    Backoff::between(Duration::from_millis(25), Duration::from_secs(1));
