//! When a command must end so that it is dead before anyone else can acquire its lock.
//!
//! L is the end of validity by the local clock. TERM at `L − grace − margin`, KILL at `L − margin`,
//! unless a renewal has moved L by then. The margin covers the time that KILL and reaping may take,
//! and how late the guardian and the wrapper may both be scheduled on a busy machine.

use std::time::Duration;

use lockkeeper::engine::Death;
use lockkeeper::{Client, Guard, Lock};

use crate::args::OnLost;
use crate::exit::Failure;
use crate::output::human;
use crate::run::guardian::boot_time;
use crate::run::protocol::Deadline;

/// The longest grace after the engine reported the lock lost: another client may already hold it.
const SHORT_GRACE: Duration = Duration::from_secs(2);

/// The shortest lease that a command is run with. A sixth of it is the time to kill; with less, a
/// busy machine is late.
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeline {
    /// From TERM to KILL when the lock is lost.
    grace: Duration,
    /// From TERM to KILL if the command has to end for another reason.
    patience: Duration,
    /// From KILL to the end of validity.
    margin: Duration,
    on_lost: OnLost,
}

/// What limits a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A renewed lease: the requested length, and what the store really grants.
    Renewed { asked: Duration, granted: Duration },
    /// A fixed lease of this length; the store grants less, and is renewed until then.
    Fixed { lease: Duration, granted: Duration },
    /// None: the kernel or a connection keeps the lock.
    None,
}

impl Limit {
    /// The limit of a lock requested with this `ttl`, or this fixed lease.
    pub(crate) fn of(client: &Client, ttl: Duration, lease: Option<Duration>) -> Self {
        match lease {
            Some(lease) => Limit::Fixed { lease, granted: client.lease_of(lease) },
            None if client.guarantees().death == Death::AtOnce => Limit::None,
            None => Limit::Renewed { asked: ttl, granted: client.lease_of(ttl) },
        }
    }

    /// The same, now that the lock is held.
    fn held(self, guard: &Guard) -> Self {
        match (self, guard.lease()) {
            (Limit::Renewed { asked, .. }, Some(granted)) => Limit::Renewed { asked, granted },
            (Limit::Fixed { lease, .. }, Some(granted)) => Limit::Fixed { lease, granted },
            (limit, _) => limit,
        }
    }

    /// The lock with these terms, whose loss is signalled in time for this timeline.
    pub(crate) fn terms(self, lock: Lock, timeline: &Timeline, ttl: Duration) -> Lock {
        // We always release, but not before the command is dead.
        let lock = lock.keep_when_lost();
        match self {
            Limit::None => lock.ttl(ttl),
            Limit::Renewed { asked, granted } => lock.ttl(asked).margin(timeline.notice(granted)),
            Limit::Fixed { lease, .. } => lock.lease(lease).margin(timeline.notice(lease)),
        }
    }
}

impl Timeline {
    /// The grace is 5 s unless set, the margin 1 s, but neither more than a sixth of the lease. A
    /// lease too short for both is refused.
    pub(crate) fn new(
        limit: Limit,
        grace: Option<Duration>,
        on_lost: OnLost,
    ) -> Result<Self, Failure> {
        let usual = Duration::from_secs(5);
        let (lease, share) = match limit {
            // What is granted is renewed, however long the whole may last.
            Limit::Renewed { granted, .. } => (granted, 3),
            Limit::Fixed { lease, granted } if granted < lease => (granted, 3),
            Limit::Fixed { lease, .. } => (lease, 2),
            Limit::None => {
                let grace = grace.unwrap_or(usual);
                return Ok(Self { grace, patience: grace, margin: Duration::ZERO, on_lost });
            }
        };
        if lease < SHORTEST && on_lost != OnLost::Ignore {
            return Err(Failure::usage(format!(
                "a lease of {} is too short to end a command in time: {}",
                human(lease),
                too_short(limit, SHORTEST)
            )));
        }
        let margin = (lease / 6).min(Duration::from_secs(1));
        let default = usual.min(lease / 6);
        let patience = grace.unwrap_or(default);
        let grace = if on_lost == OnLost::Term { patience } else { Duration::ZERO };
        // The rest is for renewals to succeed in, or for the command to work in.
        if (grace + margin) * share > lease {
            return Err(Failure::usage(format!(
                "a grace of {} does not fit into a lease of {}: with it, {}",
                human(grace),
                human(lease),
                too_short(limit, (grace + Duration::from_secs(1)) * share)
            )));
        }
        Ok(Self { grace, patience, margin, on_lost })
    }

    /// The same, now that the lock is held: what was granted counts, and may be less than expected.
    ///
    /// A grace that no longer fits is kept, at the cost of the time in which renewals may fail.
    pub(crate) fn held(self, limit: Limit, guard: &Guard, grace: Option<Duration>) -> Self {
        Self::new(limit.held(guard), grace, self.on_lost).unwrap_or(self)
    }

    /// How long before the end of a lease the library has to signal its loss.
    ///
    /// The library counts from the end of the lease; L comes 1 % and 2 ms before that.
    pub(crate) fn notice(&self, lease: Duration) -> Duration {
        self.grace + self.margin + lease / 100 + Duration::from_millis(2)
    }

    /// The deadline of a command whose lock is valid for `remaining`, unless it is renewed.
    pub(crate) fn deadline(&self, remaining: Duration) -> Deadline {
        if remaining == Duration::MAX || self.on_lost == OnLost::Ignore {
            return Deadline::NEVER;
        }
        let kill = after(remaining.saturating_sub(self.margin));
        let grace = u64::try_from(self.grace.as_nanos()).unwrap_or(u64::MAX);
        // A moment in the past means now.
        Deadline { term: kill.saturating_sub(grace), kill }
    }

    /// The deadline of a command whose lock is reported lost.
    pub(crate) fn gone(&self) -> Deadline {
        match self.on_lost {
            OnLost::Ignore => Deadline::NEVER,
            OnLost::Kill => Deadline { term: 0, kill: 0 },
            OnLost::Term => Deadline { term: 0, kill: after(self.grace.min(SHORT_GRACE)) },
        }
    }

    /// The deadline of a command that has to end now for another reason, and always in time.
    pub(crate) fn enough(&self, remaining: Duration) -> Deadline {
        Deadline { term: 0, kill: after(self.patience).min(self.deadline(remaining).kill) }
    }

    /// When a guardian counts as late with TERM, and with KILL, and the wrapper takes over.
    pub(crate) fn late(&self, deadline: Deadline) -> Deadline {
        let usual = Duration::from_millis(100);
        // All processes but the guardian are killed in time in any case; the rest of the margin is
        // for reaping.
        let kill = if self.margin.is_zero() { usual } else { self.margin / 4 };
        let add = |at: u64, by: Duration| {
            at.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX))
        };
        // The promise does not depend on TERM, and sending it twice is worse than late.
        Deadline { term: add(deadline.term, usual.max(kill)), kill: add(deadline.kill, kill) }
    }

    /// Whether the command may continue without its lock.
    pub(crate) fn ignores_loss(&self) -> bool {
        self.on_lost == OnLost::Ignore
    }
}

/// What to set so that a lease is at least `least`.
fn too_short(limit: Limit, least: Duration) -> String {
    let (flag, asked, granted) = match limit {
        Limit::Renewed { asked, granted } => ("--ttl", asked, granted),
        Limit::Fixed { lease, granted } => ("--lease", lease, granted),
        Limit::None => unreachable!("without a lease everything fits"),
    };
    let ours = format!("{flag} must be at least {}", human(least));
    if granted >= asked {
        return ours;
    }
    // A lease is half of a session.
    let ours = if asked < least { format!("{ours}, and ") } else { String::new() };
    format!(
        "{ours}the session must be at least {0}: ask for it in the URL (?session={0}), and let the servers \
         allow it (maxSessionTimeout); or set a shorter --grace",
        human(least * 2)
    )
}

/// The moment this far from now, on the clock that guardians use.
fn after(time: Duration) -> u64 {
    boot_time().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn renewed(lease: Duration) -> Limit {
        Limit::Renewed { asked: lease, granted: lease }
    }

    #[test]
    fn the_usual_lease_has_five_seconds_of_grace_and_one_of_margin() {
        let timeline = Timeline::new(renewed(30 * SECOND), None, OnLost::Term).unwrap();
        let before = boot_time();
        let deadline = timeline.deadline(20 * SECOND);
        let nanos = |s: u64| s * 1_000_000_000;
        assert!(deadline.term >= before + nanos(14) && deadline.term < before + nanos(15));
        assert!(deadline.kill >= before + nanos(19) && deadline.kill < before + nanos(20));
    }

    #[test]
    fn a_lease_that_is_too_short_says_how_long_it_must_be() {
        let refused = Timeline::new(renewed(10 * SECOND), Some(9 * SECOND), OnLost::Term);
        let message = refused.unwrap_err().message;
        assert!(message.ends_with("--ttl must be at least 30s"), "{message}");
        assert!(Timeline::new(renewed(30 * SECOND), Some(9 * SECOND), OnLost::Term).is_ok());
    }

    #[test]
    fn a_store_that_grants_less_says_what_to_set() {
        let refuse = |asked: u32, granted: u32| {
            let limit = Limit::Renewed { asked: asked * SECOND, granted: granted * SECOND };
            Timeline::new(limit, Some(4 * SECOND), OnLost::Term).unwrap_err().message
        };
        let message = refuse(30, 5);
        assert!(message.contains("with it, the session must be at least 30s"), "{message}");
        assert!(message.contains("?session=30s") && message.contains("--grace"), "{message}");
        let message = refuse(6, 5);
        assert!(message.contains("--ttl must be at least 15s, and the session"), "{message}");
        let limit = Limit::Renewed { asked: 3600 * SECOND, granted: 15 * SECOND };
        assert!(Timeline::new(limit, Some(4 * SECOND), OnLost::Term).is_ok());
    }

    #[test]
    fn every_lease_has_a_default_that_fits() {
        for ms in [2_000, 3_000, 5_000, 10_000, 30_000, 3_600_000] {
            let lease = Duration::from_millis(ms);
            let granted = lease / 2;
            for limit in [
                renewed(lease),
                Limit::Renewed { asked: lease, granted },
                Limit::Fixed { lease, granted: lease },
                Limit::Fixed { lease, granted },
            ] {
                assert!(Timeline::new(limit, None, OnLost::Term).is_ok(), "{limit:?}");
            }
        }
    }

    #[test]
    fn a_short_lease_leaves_a_sixth_of_it_to_kill_in() {
        let timeline = Timeline::new(renewed(3 * SECOND), None, OnLost::Term).unwrap();
        let (before, deadline) = (boot_time(), timeline.deadline(3 * SECOND));
        assert!(deadline.kill - before >= 2_500_000_000 && deadline.kill - before < 2_600_000_000);
        assert_eq!(deadline.kill - deadline.term, 500_000_000);
        // The guardian has an eighth of a second to end by itself, then the wrapper takes over.
        assert_eq!(timeline.late(deadline).kill - deadline.kill, 125_000_000);
    }

    #[test]
    fn a_lease_without_time_to_kill_in_is_refused() {
        let short = SECOND - Duration::from_millis(1);
        let message = Timeline::new(renewed(short), None, OnLost::Term).unwrap_err().message;
        assert!(message.ends_with("--ttl must be at least 1s"), "{message}");
        let session = Limit::Renewed { asked: 30 * SECOND, granted: short };
        let message = Timeline::new(session, None, OnLost::Kill).unwrap_err().message;
        assert!(message.contains("the session must be at least 2s"), "{message}");
        assert!(Timeline::new(renewed(short), None, OnLost::Ignore).is_ok());
        assert!(Timeline::new(renewed(SECOND), None, OnLost::Term).is_ok());
    }

    #[test]
    fn without_a_lease_there_is_no_deadline_until_the_engine_reports_a_loss() {
        let timeline = Timeline::new(Limit::None, None, OnLost::Term).unwrap();
        assert_eq!(timeline.deadline(Duration::MAX), Deadline::NEVER);
        assert!(timeline.gone().kill < boot_time() + 3_000_000_000);
        let ignoring = Timeline::new(Limit::None, None, OnLost::Ignore).unwrap();
        assert_eq!(ignoring.gone(), Deadline::NEVER);
    }
}
