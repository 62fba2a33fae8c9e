//! How long before the next grant the holders of lost locks were signalled.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper::engine::Mode;

use crate::history::{Acquisition, Violation};

/// A holder that recorded nothing for longer than this before it was signalled may not have been
/// running; and for longer than half of what a margin must be.
const RUNNING: Duration = Duration::from_millis(100);

/// The margin that every loss by the clock must have, as a part of the lease. It is signalled a third
/// of the lease before its end.
const LEAST: u32 = 6;

/// How long before the next grant each of these losses was signalled, and when that grant was made; and
/// the signals that came too late for it. Only holders that were running count, because no other can be signalled; and
/// only locks that were not released before the next grant.
pub(super) fn margins(
    all: &[Acquisition],
    expired: &[usize],
) -> (Vec<(Duration, Duration)>, Vec<Violation>) {
    let mut keys: HashMap<&str, Vec<&Acquisition>> = HashMap::new();
    for acquisition in all {
        keys.entry(&acquisition.key).or_default().push(acquisition);
    }
    keys.values_mut().for_each(|grants| grants.sort_by_key(|grant| grant.returned));
    let (mut margins, mut late) = (Vec::new(), Vec::new());
    for lost in expired.iter().map(|n| &all[*n]) {
        let (Some(signal), Some(last)) = (lost.lost, lost.deadline) else { continue };
        let least = lost.ttl / LEAST;
        if signal.saturating_sub(last) > RUNNING.min(least / 2) {
            continue;
        }
        let conflicts = |next: &&&Acquisition| {
            let permits = matches!(next.mode, Mode::Permits { .. });
            let readers = next.mode == Mode::Read && lost.mode == Mode::Read;
            next.owner != lost.owner && !permits && !readers
        };
        let grants = &keys[lost.key.as_str()];
        let after = grants.partition_point(|grant| grant.returned <= lost.returned);
        let Some(next) = grants[after..].iter().find(conflicts) else { continue };
        let pair = || Box::new([lost.clone(), (*next).clone()]);
        match next.returned.checked_sub(signal) {
            Some(_) if lost.release.is_some_and(|release| release < next.returned) => {}
            Some(margin) => {
                margins.push((margin, next.returned));
                if margin < least {
                    late.push(Violation::ThinMargin { pair: pair(), margin });
                }
            }
            None => late.push(Violation::LateSignal(pair())),
        }
    }
    (margins, late)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A holder that checked at `last` and was signalled at `signal`, and the next grant.
    fn judged(last: u64, signal: u64, release: Option<u64>, next: u64) -> (Vec<u128>, usize) {
        let ms = Duration::from_millis;
        let first = Acquisition {
            deadline: Some(ms(last)),
            lost: Some(ms(signal)),
            release: release.map(ms),
            ..Acquisition::of_test("first", 100)
        };
        let (margins, late) = margins(&[first, Acquisition::of_test("next", next)], &[0]);
        (margins.iter().map(|(margin, _)| margin.as_millis()).collect(), late.len())
    }

    #[test]
    fn a_margin_counts_from_the_signal_to_the_next_grant() {
        assert_eq!(judged(1320, 1333, None, 2100), (vec![767], 0));
        assert_eq!(judged(1320, 1333, Some(3000), 2100), (vec![767], 0));
        // It had released the lock: then the next grant may come at any time.
        assert_eq!(judged(1320, 1333, Some(1400), 1401), (vec![], 0));
        // It may not have been running.
        assert_eq!(judged(1000, 2333, None, 2100), (vec![], 0));
    }

    #[test]
    fn a_signal_after_the_next_grant_is_late() {
        assert_eq!(judged(2090, 2110, None, 2100), (vec![], 1));
    }

    #[test]
    fn a_signal_that_leaves_less_than_a_sixth_of_the_lease_is_late() {
        assert_eq!(judged(1760, 1766, None, 2100), (vec![334], 0));
        assert_eq!(judged(1770, 1767, None, 2100), (vec![333], 1));
    }
}
