//! How much time has passed, told so that a missed loss is impossible and a false one only safe.
//!
//! Elapsed time is the largest of: the runtime's clock (which tests can pause), boot time
//! (which counts suspend; [`std::time::Instant`] does not), and wall-clock time if it went forward
//! (a guest whose kernel slept with the host sees only that one jump).

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

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
    /// This moment on every clock that counts.
    pub fn now(self) -> Moment {
        let (boot, wall) = match self {
            Clock::System => (read(ClockId::CLOCK_BOOTTIME), read(ClockId::CLOCK_REALTIME)),
            Clock::Runtime => Default::default(),
        };
        Moment { runtime: Instant::now(), boot, wall }
    }

    /// How much time has certainly not *less* than passed since `then`.
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
    /// The time from `then` to this moment, by the clock that went furthest.
    pub fn since(&self, then: &Moment) -> Duration {
        self.runtime
            .saturating_duration_since(then.runtime)
            .max(self.boot.saturating_sub(then.boot))
            .max(self.wall.saturating_sub(then.wall))
    }

    /// How far the other clocks ran ahead of the runtime's since `then`: a suspend, or a step.
    pub(crate) fn jump_since(&self, then: &Moment) -> Duration {
        self.since(then).saturating_sub(self.runtime.saturating_duration_since(then.runtime))
    }

    pub(crate) fn runtime(&self) -> Instant {
        self.runtime
    }

    /// That long ago, by every clock.
    #[cfg(all(test, feature = "zookeeper"))]
    pub(crate) fn before(&self, ago: Duration) -> Self {
        Self { runtime: self.runtime - ago, boot: self.boot - ago, wall: self.wall - ago }
    }
}

/// The part of a lease that a holder may rely on, counted from before its request left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    from: Moment,
    /// When the holder is told to stop, after `from`.
    signal: Duration,
    /// When nobody vouches for the lock any more, after `from`.
    end: Duration,
}

impl Validity {
    /// `from` must be read before the request was sent; `margin` is the notice given to the holder.
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

    pub(crate) fn until_end(&self, now: &Moment) -> Duration {
        self.end.saturating_sub(now.since(&self.from))
    }
}

/// A lease less what two clocks may disagree by over its length: 1 % and 2 ms.
pub(crate) fn usable(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

fn read(id: ClockId) -> Duration {
    // A clock before 1970 reads as negative: it counts as zero, and the other clocks decide.
    clock_gettime(id).map_or(Duration::ZERO, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec()).unwrap_or(0);
        Duration::new(seconds, nanos)
    })
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
