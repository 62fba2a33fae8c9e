//! When a command must end so that it is dead before anyone else can hold its lock.
//!
//! L is the end of validity by the local clock. TERM at `L − grace − margin`, KILL at `L − margin`,
//! unless a renewal has moved L by then. The margin is what KILL and the reaping may take.

use std::time::Duration;

use crate::args::OnLost;
use crate::exit::Failure;
use crate::guardian::boot_time;
use crate::leash::Deadline;
use crate::say::human;

/// The longest grace after the engine said that the lock is not ours: somebody else may be in already.
const SHORT_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeline {
    /// From TERM to KILL when the lock is lost.
    grace: Duration,
    /// From TERM to KILL when the command has to end for another reason.
    patience: Duration,
    /// From KILL to the end of validity.
    margin: Duration,
    on_lost: OnLost,
    /// Whether nothing renews the lease.
    fixed: bool,
}

/// What limits a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A lease of this length, renewed.
    Renewed(Duration),
    /// A lease of this length, not renewed.
    Fixed(Duration),
    /// None: the kernel or a connection keeps the lock.
    None,
}

impl Timeline {
    /// The grace is 5 s unless set, but at most a quarter of the lease; the margin 1 s, but at most a
    /// thirtieth. A lease too short for both is refused.
    pub(crate) fn new(
        limit: Limit,
        grace: Option<Duration>,
        on_lost: OnLost,
    ) -> Result<Self, Failure> {
        let usual = Duration::from_secs(5);
        let (lease, share) = match limit {
            Limit::Renewed(ttl) => (ttl, 3),
            Limit::Fixed(lease) => (lease, 2),
            Limit::None => {
                let grace = grace.unwrap_or(usual);
                let margin = Duration::ZERO;
                return Ok(Self { grace, patience: grace, margin, on_lost, fixed: false });
            }
        };
        let margin = (lease / 30).min(Duration::from_secs(1));
        let default = usual.min(lease / 4);
        let patience = grace.unwrap_or(default);
        let grace = if on_lost == OnLost::Term { patience } else { Duration::ZERO };
        // The rest is for renewals to succeed in, or for the command to work in.
        if (grace + margin) * share > lease {
            let flag = if share == 3 { "--ttl" } else { "--lease" };
            return Err(Failure::usage(format!(
                "a grace of {} does not fit into a lease of {}: with it, {flag} must be at least {}",
                human(grace),
                human(lease),
                human((grace + Duration::from_secs(1)) * share)
            )));
        }
        let fixed = matches!(limit, Limit::Fixed(_));
        Ok(Self { grace, patience, margin, on_lost, fixed })
    }

    /// How long before the end of a lease its holder wants to be told, for the library.
    ///
    /// The library counts from the end of the lease; L comes 1 % and 2 ms before that.
    pub(crate) fn notice(&self, lease: Duration) -> Duration {
        self.grace + self.margin + lease / 100 + Duration::from_millis(2)
    }

    /// The deadline of a command whose lock is valid for `remaining`, if nothing renews it.
    pub(crate) fn deadline(&self, remaining: Duration) -> Deadline {
        if remaining == Duration::MAX || self.on_lost == OnLost::Ignore {
            return Deadline::NEVER;
        }
        let kill = remaining.saturating_sub(self.margin);
        Deadline { term: after(kill.saturating_sub(self.grace)), kill: after(kill) }
    }

    /// The deadline of a command whose lock is positively not ours any more.
    pub(crate) fn gone(&self) -> Deadline {
        match self.on_lost {
            OnLost::Ignore => Deadline::NEVER,
            OnLost::Kill => Deadline { term: 0, kill: 0 },
            OnLost::Term => Deadline { term: 0, kill: after(self.grace.min(SHORT_GRACE)) },
        }
    }

    /// The deadline of a command that has to end now for another reason, and in any case in time.
    pub(crate) fn enough(&self, remaining: Duration) -> Deadline {
        Deadline { term: 0, kill: after(self.patience).min(self.deadline(remaining).kill) }
    }

    /// Whether the end of the lease was known from the start.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Whether the command may go on without its lock.
    pub(crate) fn ignores_loss(&self) -> bool {
        self.on_lost == OnLost::Ignore
    }
}

/// That far from now, on the clock that guardians use.
fn after(time: Duration) -> u64 {
    boot_time().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_usual_lease_has_five_seconds_of_grace_and_one_of_margin() {
        let timeline = Timeline::new(Limit::Renewed(30 * SECOND), None, OnLost::Term).unwrap();
        let before = boot_time();
        let deadline = timeline.deadline(20 * SECOND);
        let nanos = |s: u64| s * 1_000_000_000;
        assert!(deadline.term >= before + nanos(14) && deadline.term < before + nanos(15));
        assert!(deadline.kill >= before + nanos(19) && deadline.kill < before + nanos(20));
    }

    #[test]
    fn a_lease_that_is_too_short_says_how_long_it_must_be() {
        let refused = Timeline::new(Limit::Renewed(10 * SECOND), Some(9 * SECOND), OnLost::Term);
        let message = refused.unwrap_err().message;
        assert!(message.ends_with("--ttl must be at least 30s"), "{message}");
        assert!(Timeline::new(Limit::Renewed(30 * SECOND), Some(9 * SECOND), OnLost::Term).is_ok());
    }

    #[test]
    fn every_lease_has_a_default_that_fits() {
        for ms in [10, 100, 1_000, 5_000, 30_000, 3_600_000] {
            let lease = Duration::from_millis(ms);
            for limit in [Limit::Renewed(lease), Limit::Fixed(lease)] {
                assert!(Timeline::new(limit, None, OnLost::Term).is_ok(), "{limit:?}");
            }
        }
    }

    #[test]
    fn without_a_lease_there_is_no_deadline_until_the_engine_speaks() {
        let timeline = Timeline::new(Limit::None, None, OnLost::Term).unwrap();
        assert_eq!(timeline.deadline(Duration::MAX), Deadline::NEVER);
        assert!(timeline.gone().kill < boot_time() + 3_000_000_000);
        let ignoring = Timeline::new(Limit::None, None, OnLost::Ignore).unwrap();
        assert_eq!(ignoring.gone(), Deadline::NEVER);
    }
}
