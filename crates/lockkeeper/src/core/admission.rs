//! The admission rule as a pure function: given the queue, is entry *i* granted, and if not, which
//! entry is it waiting for?
//!
//! The queue is in order of arrival. An entry is granted if no entry ahead of it and no holder
//! conflicts with it. So a waiting writer holds back readers that arrive after it, and a stream of
//! readers cannot starve a writer. The Lua and SQL versions in other engines are tested against
//! this one.

use crate::engine::Mode;

/// An entry of the queue. `O` is the type by which the engine compares owners.
#[derive(Debug, Clone, Copy)]
pub struct Queued<O> {
    /// The owner of the entry.
    pub owner: O,
    /// How it holds or wants to hold.
    pub mode: Mode,
    /// Whether it was granted already.
    ///
    /// Engines where being first *is* holding may leave it unset: then the order alone decides.
    pub granted: bool,
}

/// The result for one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Granted.
    In,
    /// Waiting for this entry: nothing changes before it is gone (or, for a semaphore, granted).
    Behind(usize),
    /// First in the queue for a semaphore whose permits are all taken: the release of any holder
    /// may admit it.
    Full,
}

/// Is entry `i` granted, and if not, which entry is it waiting for?
///
/// All entries must be of one family; see [`mixes`].
pub fn turn<O: PartialEq>(queue: &[Queued<O>], i: usize) -> Turn {
    let me = &queue[i];
    if me.granted {
        return Turn::In;
    }
    if let Mode::Permits { take, limit } = me.mode {
        return permits_turn(queue, i, take, limit);
    }
    // An owner that is already in does not queue behind waiters that wait for it.
    let mine = |other: &Queued<O>| other.owner == me.owner;
    let inside = queue.iter().any(|other| other.granted && mine(other));
    queue
        .iter()
        .enumerate()
        .filter(|(j, other)| *j != i && (other.granted || (*j < i && !inside)))
        .filter(|(_, other)| !mine(other) && conflict(me.mode, other.mode))
        .map(|(j, _)| j)
        // The nearest entry ahead, so that each waiter watches a different one; otherwise a holder
        // that overtook it.
        .max_by_key(|j| (*j < i, *j))
        .map_or(Turn::In, Turn::Behind)
}

fn permits_turn<O>(queue: &[Queued<O>], i: usize, take: u32, limit: u32) -> Turn {
    let takes = |place: &Queued<O>| match place.mode {
        Mode::Permits { take, .. } => u64::from(take),
        _ => u64::from(limit),
    };
    let limit = u64::from(limit);
    // Holders that overtook this entry count too.
    let mut taken: u64 = queue[i..].iter().filter(|other| other.granted).map(takes).sum();
    let mut waiter = None;
    for (j, other) in queue[..i].iter().enumerate() {
        taken += takes(other);
        if !other.granted && taken > limit {
            waiter = Some(j);
        }
    }
    match waiter {
        _ if taken + u64::from(take) <= limit => Turn::In,
        Some(j) => Turn::Behind(j),
        None => Turn::Full,
    }
}

/// Whether two different owners cannot hold these modes at the same time.
pub fn conflict(a: Mode, b: Mode) -> bool {
    !matches!((a, b), (Mode::Read, Mode::Read) | (Mode::Permits { .. }, Mode::Permits { .. }))
}

/// Whether two modes may be used on one key at the same time at all.
///
/// Mutex, read and write are one family; a semaphore is one family per limit. An engine whose
/// layout distinguishes a mutex from a read-write lock refuses that mix as well.
pub fn mixes(a: Mode, b: Mode) -> bool {
    match (a, b) {
        (Mode::Permits { limit: a, .. }, Mode::Permits { limit: b, .. }) => a == b,
        (Mode::Permits { .. }, _) | (_, Mode::Permits { .. }) => false,
        _ => true,
    }
}

/// The lowest free slot numbers for a grant of `take` permits, next to those already `taken`.
pub fn free_slots(taken: impl IntoIterator<Item = u32>, take: u32) -> Vec<u32> {
    let taken: std::collections::BTreeSet<u32> = taken.into_iter().collect();
    (0..).filter(|slot| !taken.contains(slot)).take(take as usize).collect()
}

/// Parses ranges of slot numbers, such as `0-3,7`; `None` if the text is malformed.
#[cfg(any(all(feature = "file", target_os = "linux"), feature = "mysql"))]
pub(crate) fn slots_in(ranges: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in ranges.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(owner: u8, mode: Mode, granted: bool) -> Queued<u8> {
        Queued { owner, mode, granted }
    }

    fn permits(take: u32) -> Mode {
        Mode::Permits { take, limit: 3 }
    }

    #[test]
    fn mutexes_wait_for_the_one_before() {
        let queue = [
            place(1, Mode::Mutex, true),
            place(2, Mode::Mutex, false),
            place(3, Mode::Mutex, false),
        ];
        assert_eq!(turn(&queue, 0), Turn::In);
        assert_eq!(turn(&queue, 1), Turn::Behind(0));
        assert_eq!(turn(&queue, 2), Turn::Behind(1));
    }

    #[test]
    fn a_waiting_writer_holds_back_later_readers() {
        let queue =
            [place(1, Mode::Read, true), place(2, Mode::Write, false), place(3, Mode::Read, false)];
        assert_eq!(turn(&queue, 1), Turn::Behind(0));
        assert_eq!(turn(&queue, 2), Turn::Behind(1));
    }

    #[test]
    fn an_owner_inside_enters_again_past_a_waiting_writer() {
        let queue =
            [place(1, Mode::Read, true), place(2, Mode::Write, false), place(1, Mode::Read, false)];
        assert_eq!(turn(&queue, 2), Turn::In);
    }

    #[test]
    fn an_overtaken_entry_waits_for_the_one_that_overtook_it() {
        let queue = [place(1, Mode::Mutex, false), place(2, Mode::Mutex, true)];
        assert_eq!(turn(&queue, 0), Turn::Behind(1));
    }

    #[test]
    fn a_large_request_for_permits_is_not_starved_by_small_ones() {
        let queue =
            [place(1, permits(2), true), place(2, permits(2), false), place(3, permits(1), false)];
        assert_eq!(turn(&queue, 1), Turn::Full);
        assert_eq!(turn(&queue, 2), Turn::Behind(1));
    }

    #[test]
    fn slots_are_the_lowest_free_numbers() {
        assert_eq!(free_slots([0, 2], 2), [1, 3]);
        assert_eq!(free_slots([], 1), [0]);
    }

    fn family() -> impl Strategy<Value = Vec<Mode>> {
        let locks = prop::collection::vec(
            prop_oneof![Just(Mode::Mutex), Just(Mode::Write), Just(Mode::Read)],
            1..12,
        );
        let permits = prop::collection::vec((1u32..=3).prop_map(permits), 1..12);
        prop_oneof![locks, permits]
    }

    /// Plays arrivals, grants and departures in a random order, and checks every state.
    fn play(modes: Vec<Mode>, owners: Vec<u8>, moves: Vec<u16>) -> Result<(), TestCaseError> {
        let mut queue: Vec<Queued<u8>> = Vec::new();
        let mut coming =
            modes.into_iter().zip(owners).map(|(mode, owner)| place(owner, mode, false));
        for step in moves {
            let i = step as usize / 3 % queue.len().max(1);
            match step % 3 {
                0 => queue.extend(coming.next()),
                1 if !queue.is_empty() => queue[i].granted |= turn(&queue, i) == Turn::In,
                2 if !queue.is_empty() && queue[i].granted => drop(queue.remove(i)),
                _ => {}
            }
            check_holders(&queue)?;
            check_progress(&queue)?;
        }
        Ok(())
    }

    fn check_holders(queue: &[Queued<u8>]) -> Result<(), TestCaseError> {
        let holders: Vec<_> = queue.iter().filter(|place| place.granted).collect();
        let mut permits = 0;
        for (n, a) in holders.iter().enumerate() {
            if let Mode::Permits { take, .. } = a.mode {
                permits += take;
            }
            for b in &holders[n + 1..] {
                prop_assert!(a.owner == b.owner || !conflict(a.mode, b.mode), "{queue:?}");
            }
        }
        prop_assert!(permits <= 3, "{queue:?}");
        Ok(())
    }

    /// Some entry is always granted or can be, and every waiter waits for an entry that exists.
    fn check_progress(queue: &[Queued<u8>]) -> Result<(), TestCaseError> {
        if queue.is_empty() {
            return Ok(());
        }
        prop_assert!(
            (0..queue.len()).any(|i| turn(queue, i) == Turn::In),
            "no entry can proceed: {queue:?}"
        );
        for i in 0..queue.len() {
            match turn(queue, i) {
                Turn::In => {}
                Turn::Behind(j) => {
                    prop_assert!(j != i);
                    prop_assert!(j < i || queue[j].granted, "waits for a later waiter: {queue:?}");
                }
                Turn::Full => prop_assert!(queue.len() > 1, "waits for no entry: {queue:?}"),
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn holders_never_conflict_and_some_entry_can_always_proceed(
            modes in family(),
            owners in prop::collection::vec(0u8..4, 12),
            moves in prop::collection::vec(any::<u16>(), 0..80),
        ) {
            play(modes, owners, moves)?;
        }

        #[test]
        fn later_arrivals_never_delay_a_waiting_writer(
            readers in 1usize..6,
            later in 1usize..20,
        ) {
            let mut queue: Vec<_> = (0..readers).map(|n| place(n as u8, Mode::Read, true)).collect();
            queue.push(place(100, Mode::Write, false));
            queue.extend((0..later).map(|n| place(150 + n as u8, Mode::Read, false)));
            for i in readers + 1..queue.len() {
                prop_assert_ne!(turn(&queue, i), Turn::In);
            }
            queue.drain(..readers);
            prop_assert_eq!(turn(&queue, 0), Turn::In);
        }
    }
}
