//! Elapsed time, measured so that no loss is missed; a loss that is reported too early is safe.
//!
//! Elapsed time is the largest of: the runtime's clock (which tests can pause), boot time (which
//! counts suspend; [`std::time::Instant`] does not), and wall-clock time if it went forward (in a
//! guest whose kernel slept with the host, only the wall clock jumps).

use std::time::Duration;

use tokio::time::Instant;

use super::platform;

/// Which clocks count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Clock {
    /// Runtime, boot time and forward wall clock: for stores that keep their own time.
    #[default]
    System,
    /// The runtime's clock alone: for engines inside this process, which stop when it stops.
    Runtime,
}

impl Clock {
    /// Reads every clock that counts.
    pub fn now(self) -> Moment {
        let (boot, wall) = match self {
            // If there is no clock that counts suspend, the others decide.
            Clock::System => (platform::boot().unwrap_or_default(), platform::wall()),
            Clock::Runtime => Default::default(),
        };
        Moment { runtime: Instant::now(), boot, wall }
    }

    /// An upper bound of the time that has passed since `then`.
    pub fn since(self, then: &Moment) -> Duration {
        self.now().since(then)
    }
}

/// One reading of the clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    runtime: Instant,
    boot: Duration,
    wall: Duration,
}

impl Moment {
    /// The time from `then` to this moment, by the clock that advanced furthest.
    pub fn since(&self, then: &Moment) -> Duration {
        self.runtime
            .saturating_duration_since(then.runtime)
            .max(self.boot.saturating_sub(then.boot))
            .max(self.wall.saturating_sub(then.wall))
    }

    /// How far the other clocks advanced beyond the runtime's since `then`: a suspend or a clock
    /// step.
    pub(crate) fn jump_since(&self, then: &Moment) -> Duration {
        self.since(then).saturating_sub(self.runtime.saturating_duration_since(then.runtime))
    }

    pub(crate) fn runtime(&self) -> Instant {
        self.runtime
    }

    /// The moment this long ago, on every clock.
    #[cfg(all(test, feature = "zookeeper"))]
    pub(crate) fn before(&self, ago: Duration) -> Self {
        Self { runtime: self.runtime - ago, boot: self.boot - ago, wall: self.wall - ago }
    }
}

/// The part of a lease that a holder may rely on, counted from before its request was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    from: Moment,
    /// When the holder is signalled to stop, after `from`.
    signal: Duration,
    /// When the lock no longer counts as held, after `from`.
    end: Duration,
}

impl Validity {
    /// `from` must be read before the request was sent; `margin` is the time the holder gets to
    /// stop.
    pub(crate) fn new(from: Moment, ttl: Duration, margin: Duration) -> Self {
        let end = usable(ttl);
        Self { from, signal: ttl.saturating_sub(margin).min(end), end }
    }

    pub(crate) fn from(&self) -> &Moment {
        &self.from
    }

    pub(crate) fn until_signal(&self, now: &Moment) -> Duration {
        self.signal.saturating_sub(now.since(&self.from))
    }

    /// Whether at least half of the time before the signal is left.
    pub(crate) fn is_half_left(&self, now: &Moment) -> bool {
        self.until_signal(now) * 2 >= self.signal
    }

    pub(crate) fn until_end(&self, now: &Moment) -> Duration {
        self.end.saturating_sub(now.since(&self.from))
    }
}

/// A lease minus the possible drift of two clocks over its length: 1 % and 2 ms.
pub(crate) fn usable(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(runtime: Instant, boot: u64, wall: u64) -> Moment {
        Moment { runtime, boot: Duration::from_secs(boot), wall: Duration::from_secs(wall) }
    }

    #[test]
    fn the_clock_that_went_furthest_decides() {
        let t = Instant::now();
        let then = moment(t, 100, 1_000);
        let suspended = moment(t, 160, 1_000);
        assert_eq!(suspended.since(&then), Duration::from_secs(60));
        assert_eq!(suspended.jump_since(&then), Duration::from_secs(60));
        let restored = moment(t, 100, 1_090);
        assert_eq!(restored.since(&then), Duration::from_secs(90));
    }

    #[test]
    fn without_a_clock_that_counts_suspend_the_others_decide() {
        let t = Instant::now();
        let then = moment(t, 0, 1_000);
        let suspended = moment(t, 0, 1_060);
        assert_eq!(suspended.since(&then), Duration::from_secs(60));
        assert_eq!(suspended.jump_since(&then), Duration::from_secs(60));
        let set_back = moment(t + Duration::from_secs(5), 0, 0);
        assert_eq!(set_back.since(&then), Duration::from_secs(5));
    }

    #[test]
    fn a_wall_clock_set_back_changes_nothing() {
        let t = Instant::now();
        let then = moment(t, 100, 1_000);
        let back = moment(t + Duration::from_secs(5), 105, 0);
        assert_eq!(back.since(&then), Duration::from_secs(5));
        assert_eq!(back.jump_since(&then), Duration::ZERO);
    }

    #[test]
    fn validity_ends_before_the_lease_and_the_signal_before_that() {
        let t = Instant::now();
        let ttl = Duration::from_secs(30);
        let validity = Validity::new(moment(t, 0, 0), ttl, ttl / 3);
        let at = |s: u64| moment(t + Duration::from_secs(s), s, s);
        assert_eq!(validity.until_signal(&at(0)), Duration::from_secs(20));
        assert_eq!(validity.until_end(&at(0)), Duration::from_millis(29_698));
        assert_eq!(validity.until_signal(&at(21)), Duration::ZERO);
        assert_eq!(validity.until_end(&at(31)), Duration::ZERO);
    }

    #[test]
    fn a_margin_longer_than_the_lease_signals_at_once_and_does_not_underflow() {
        let now = Clock::System.now();
        let validity = Validity::new(now, Duration::from_millis(1), Duration::from_secs(1));
        assert_eq!(validity.until_signal(&now), Duration::ZERO);
        assert_eq!(validity.until_end(&now), Duration::ZERO);
    }
}
