//! What every engine must do, as one list of cases, each a separate test for every engine.
//!
//! ```
//! use lockkeeper::engines::memory::Memory;
//! use lockkeeper_testkit::conformance::Store;
//!
//! lockkeeper_testkit::conformance!(memory, Store::of(Memory::new()));
//! # fn main() {}
//! ```
//!
//! Cases select themselves by [`Guarantees`](lockkeeper::Guarantees). An engine must refuse what it
//! does not support, and the case asserts that. An engine whose clock is the runtime's runs in
//! paused time; the others run in real time, with leases as short as they allow.

mod api;
mod broken;
mod cancel;
mod check;
mod election;
mod exclusion;
mod faults;
mod fences;
mod hand_over;
mod inspect;
mod keep;
mod leases;
mod multi;
mod names;
mod permits;
mod processes;
mod readwrite;
mod reentrance;
mod store;
mod waiting;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use store::Store;

use crate::holder::Program;

/// Generates one test per case for an engine: `conformance!(name, store)`.
///
/// `store` is an expression that creates a fresh [`Store`] for each test.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $store:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::__cases! { { test ($store) } }

            #[test]
            fn helper_process() {
                $crate::holder::main_of_test();
            }
        }
    };
}

/// The list of cases. A new case adds a row here.
#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($how:tt) => {
        $crate::__each_case! { $how
            exclusion::tasks_exclude_each_other
            exclusion::processes_exclude_each_other
            exclusion::processes_share_permits_and_never_a_slot

            waiting::a_free_lock_is_taken_at_once_and_a_busy_one_is_an_answer
            waiting::waiting_ends_with_the_time_or_with_the_lock
            waiting::clients_are_served_in_order_where_promised
            waiting::tasks_of_one_client_are_served_in_order
            waiting::a_thousand_tasks_are_one_waiter
            waiting::spinning_gets_the_lock_too
            waiting::waits_that_time_out_leave_no_threads_and_no_open_files
            waiting::a_client_that_is_never_idle_lets_others_in

            readwrite::readers_are_together_and_writers_alone
            readwrite::a_stream_of_readers_does_not_starve_a_writer

            permits::permits_are_never_exceeded
            permits::several_permits_are_taken_at_once
            permits::every_slot_has_fences_of_its_own_that_rise
            permits::limits_that_differ_are_refused_naming_both
            permits::a_semaphore_is_not_a_mutex
            permits::many_permits_are_taken_or_refused_with_the_number

            reentrance::an_owner_enters_again_and_others_do_not
            reentrance::the_last_guard_releases
            reentrance::a_writer_may_read
            reentrance::a_reader_may_not_write
            reentrance::an_owner_enters_through_another_client_where_promised
            reentrance::a_short_hold_does_not_end_a_long_one_of_its_owner

            multi::all_or_nothing
            multi::any_order_of_arguments_ends
            multi::a_foreign_order_does_not_deadlock
            multi::a_multi_lock_is_not_starved_by_contention_on_one_lock
            multi::a_key_named_twice_is_refused

            election::terms_rise_and_observers_see_them
            election::leading_goes_on_after_a_loss

            cancel::dropped_at_any_poll_a_free_lock_leaves_nothing
            cancel::dropped_at_any_poll_a_busy_lock_leaves_nothing
            cancel::a_dropped_guard_is_released
            cancel::a_guard_dropped_in_a_long_poll_is_released
            cancel::a_release_dropped_at_any_poll_is_finished
            cancel::close_waits_for_releases
            cancel::an_abandoned_acquire_does_not_make_a_try_busy
            cancel::a_shutdown_leaves_nothing

            fences::fences_rise_over_clients
            fences::fences_rise_after_the_store_was_opened_again
            fences::readers_carry_the_last_writers_fence

            hand_over::fences_rise_over_tasks_that_hand_a_lock_over
            hand_over::a_lock_is_not_handed_over_against_the_wish_of_its_holder
            hand_over::tasks_that_hand_a_lock_over_let_other_clients_in
            hand_over::a_loss_reaches_the_task_that_a_lock_was_handed_over_to

            keep::a_kept_lock_is_taken_again_without_the_store
            keep::a_kept_lock_goes_to_whoever_wants_it
            keep::a_kept_lock_is_shown_as_kept
            keep::a_kept_lock_is_released_when_its_time_is_over
            keep::a_kept_lock_that_is_broken_or_asked_for_is_let_go
            keep::a_client_that_ends_releases_what_it_keeps
            keep::a_kept_lock_of_other_terms_is_asked_for_again
            keep::what_cannot_be_kept_is_refused
            keep::a_killed_keeper_costs_its_lease

            leases::a_fixed_lease_ends_by_itself
            leases::a_fixed_lease_lasts_as_long_as_asked_whatever_was_before
            leases::the_watchdog_keeps_a_lock_past_its_ttl
            leases::a_hung_renewal_cannot_hide_a_loss
            leases::a_release_after_the_loss_reports_it
            leases::a_broken_lock_is_free_and_its_holder_learns
            leases::a_requested_renewal_reports_a_loss_at_once
            leases::a_holder_is_asked_to_give_way
            leases::readers_are_asked_to_give_way
            leases::a_request_to_give_way_ends_with_its_hold

            broken::a_break_is_recorded_and_its_victim_is_told
            broken::a_break_that_only_the_release_notices_is_named
            broken::breaks_are_kept_up_to_a_number

            processes::a_stopped_holder_knows_when_it_resumes
            processes::a_stopped_holder_of_a_fixed_lease_knows_when_it_resumes
            processes::a_killed_holder_frees_its_lock
            processes::killed_waiters_do_not_jam_the_queue
            processes::a_program_that_ends_releases_its_lock
            processes::forked_workers_exclude_each_other

            faults::a_lost_reply_to_an_acquire_is_one_grant
            faults::a_lost_reply_to_a_try_is_one_grant
            faults::a_lost_reply_to_a_renewal_keeps_the_lock
            faults::an_outage_is_told_from_its_beginning_to_its_end
            faults::a_lost_reply_to_a_release_frees_the_lock
            faults::a_release_that_is_refused_for_a_while_is_repeated
            faults::an_acquire_abandoned_without_a_reply_leaves_nothing

            inspect::holders_and_waiters_are_seen
            inspect::a_lock_that_changes_hands_can_be_looked_at
            inspect::a_list_is_in_order_and_by_prefix
            inspect::the_age_of_a_waiter_counts_from_when_it_began_to_wait
            inspect::data_that_is_no_lock_is_left_alone

            names::different_names_never_share_a_lock
            names::bad_names_are_refused

            api::bad_settings_are_refused_with_what_is_accepted
            api::the_blocking_front_does_the_same
            api::the_last_blocking_handle_waits_for_its_release
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __each_case {
    ({ test $store:tt } $($module:ident :: $case:ident)*) => {$(
        #[test]
        fn $case() {
            $crate::conformance::run(stringify!($case), module_path!(), $store);
        }
    )*};
    ({ table } $($module:ident :: $case:ident)*) => {
        &[$((stringify!($case), |store| Box::pin($module::$case(store)))),*]
    };
}

type Case = fn(Store) -> Pin<Box<dyn Future<Output = ()>>>;

const CASES: &[(&str, Case)] = __cases! { { table } };

/// The longest a case may take, on its own clock.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs one case against a fresh store. Called by the tests that [`conformance!`] generates.
///
/// # Panics
/// When the case fails, or does not end.
pub fn run(case: &str, module: &str, store: Store) {
    let store = store.helper(Program::test(module));
    let (_, body) = CASES.iter().find(|(name, _)| *name == case).expect("made from the same list");
    let mut runtime = match store.is_paused() {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().start_paused(store.is_paused()).build();
    let ended = runtime
        .expect("a runtime can be started")
        .block_on(async { tokio::time::timeout(LIMIT, body(store)).await });
    assert!(ended.is_ok(), "{case} did not end within {LIMIT:?}");
}
