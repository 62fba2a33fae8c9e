//! Ten thousand simulated systems without a violation, and every injected bug is found.
//!
//! A simulation that fails prints its seed; `LOCKKEEPER_SEED=n` runs only that one.

use lockkeeper_testkit::bugs::Bug;
use lockkeeper_testkit::history::Violation;
use lockkeeper_testkit::simulation::Simulation;

/// Runs simulations on all processors, and returns the first failure of each.
fn run_all(seeds: std::ops::Range<u64>) -> Vec<String> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let work = || {
        let mut failures = Vec::new();
        loop {
            let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if seed >= seeds.end {
                return failures;
            }
            let outcome = Simulation::new(seed).run();
            if let Some(first) = outcome.violations.first() {
                let more = outcome.violations.len() - 1;
                failures.push(format!("LOCKKEEPER_SEED={seed}: {first} (and {more} more)"));
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no world panics")).collect()
    })
}

#[test]
fn ten_thousand_worlds_show_no_violation() {
    let failures = run_all(Simulation::seeds(0..10_000));
    let shown: Vec<_> = failures.iter().take(20).cloned().collect();
    assert!(failures.is_empty(), "{} worlds failed:\n{}", failures.len(), shown.join("\n"));
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    for seed in 0..50 {
        let (first, second) = (Simulation::new(seed).run(), Simulation::new(seed).run());
        assert_eq!(first.history, second.history, "LOCKKEEPER_SEED={seed}");
    }
}

#[test]
fn worlds_are_worth_looking_at() {
    let mut kinds = std::collections::BTreeMap::new();
    let (mut lost, mut refused, mut evicted) = (0, 0, 0);
    for seed in 0..300 {
        let history = Simulation::new(seed).run().history;
        for acquisition in &history.acquisitions {
            *kinds.entry(acquisition.mode.kind()).or_insert(0) += 1;
            lost += usize::from(acquisition.lost.is_some());
        }
        refused += history.accesses.iter().filter(|access| !access.accepted).count();
        evicted += history.evictions.len();
    }
    println!("{kinds:?}, {lost} lost, {refused} accesses refused, {evicted} evicted");
    assert!(kinds.values().all(|count| *count > 300) && kinds.len() == 4, "{kinds:?}");
    assert!(lost > 300 && refused > 30 && evicted > 30, "{lost} {refused} {evicted}");
}

#[test]
fn without_fences_updates_are_lost() {
    let (mut lost, mut writes) = (0, 0);
    for seed in 0..300 {
        let outcome = Simulation { fenced: false, ..Simulation::new(seed) }.run();
        writes += outcome.history.accesses.iter().filter(|a| a.write.is_some()).count();
        let is_lost = |violation: &&Violation| matches!(violation, Violation::LostUpdate { .. });
        lost += outcome.violations.iter().filter(is_lost).count();
    }
    println!("{lost} of {writes} updates lost without fences");
    // A test that loses none does not try hard enough.
    assert!(lost * 200 > writes, "only {lost} of {writes} updates were lost");
}

/// In how many simulations a bug has to be found.
const WORLDS: u64 = 1_000;

/// The same simulations show nothing without the bug, as the test above shows.
fn check_found(bug: Bug) {
    let found = (0..WORLDS).find_map(|seed| {
        let outcome = Simulation { bug: Some(bug), ..Simulation::new(seed) }.run();
        Some((seed, outcome.violations.into_iter().next()?))
    });
    let (seed, violation) = found.unwrap_or_else(|| panic!("not found in {WORLDS} worlds"));
    println!("in world {seed}: {violation}");
}

macro_rules! found {
    ($($name:ident: $bug:ident,)*) => {$(
        #[test]
        fn $name() {
            check_found(Bug::$bug);
        }
    )*};
}

found! {
    a_release_without_owner_check_is_found: ReleaseWithoutOwnerCheck,
    a_renewal_without_owner_check_is_found: RenewWithoutOwnerCheck,
    a_renewal_that_recreates_is_found: RenewRecreates,
    a_renewal_that_takes_silence_for_a_yes_is_found: UnknownIsYes,
    validity_counted_from_the_reply_is_found: ValidityFromReply,
    a_missing_allowance_for_clocks_is_found: NoDriftAllowance,
    a_loss_told_by_a_flag_is_found: LostByFlag,
    a_missing_compensation_is_found: NoCompensation,
    a_new_token_on_retry_is_found: NewTokenOnRetry,
    a_missing_recheck_after_the_wait_is_found: NoRecheckAfterWait,
    a_fence_that_is_not_raised_is_found: FenceNotRaised,
    fences_of_each_client_are_found: FencePerClient,
    one_slot_for_all_permits_is_found: OneSlotForAll,
    a_writer_let_in_as_a_reader_is_found: WriterAsReader,
    a_reader_let_in_beside_a_writer_is_found: ReaderBesideWriter,
    a_release_that_is_repeated_by_key_is_found: RepeatedReleaseByKey,
    a_dropped_wake_up_is_found: WakeUpDropped,
    a_leaked_permit_is_found: PermitLeaked,
    fences_from_a_lost_counter_are_found: FenceFromLostCounter,
    reserved_fences_that_are_granted_twice_are_found: ReservedFencesNotKept,
    a_fence_that_is_passed_on_is_found: FencePassedOn,
    a_wish_that_is_ignored_is_found: WishIgnored,
}
