//! Hand-made histories, good and bad, for every rule.

use std::time::Duration;

use super::*;
use crate::history::Resource;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A holder that asked at `from - 1` and held from `from` to `to`.
fn held(owner: &str, mode: Mode, fence: u64, from: u64, to: u64) -> Acquisition {
    Acquisition {
        key: "key".to_owned(),
        mode,
        owner: owner.to_owned(),
        called: ms(from - 1),
        admitted: None,
        returned: ms(from),
        fence,
        slots: Vec::new(),
        ttl: ms(100),
        last_use: None,
        release: Some(ms(to)),
        released: None,
        lost: None,
        deadline: None,
    }
}

fn permit(owner: &str, fence: u64, slots: &[u32], from: u64, to: u64) -> Acquisition {
    let mode = Mode::Permits { take: slots.len() as u32, limit: 2 };
    Acquisition { slots: slots.to_vec(), ..held(owner, mode, fence, from, to) }
}

fn judge(acquisitions: impl Into<Vec<Acquisition>>) -> Vec<Violation> {
    check(&History { acquisitions: acquisitions.into(), ..History::default() })
}

fn judge_log(resource: &Resource) -> Vec<Violation> {
    check(&History { accesses: resource.log(), ..History::default() })
}

macro_rules! assert_found {
    ($found:expr, $pattern:pat) => {
        let found = $found;
        assert!(matches!(&found[..], [$pattern]), "{found:#?}");
        // Every violation has a readable message.
        assert!(found[0].to_string().len() > 20);
    };
}

#[test]
fn holders_one_after_the_other_are_right() {
    assert_eq!(
        judge([
            held("a", Mode::Mutex, 1, 10, 20),
            held("b", Mode::Mutex, 2, 20, 30),
            held("a", Mode::Mutex, 3, 31, 40),
        ]),
        []
    );
}

#[test]
fn two_at_the_same_time_are_found() {
    assert_found!(
        judge([held("a", Mode::Mutex, 1, 10, 20), held("b", Mode::Mutex, 2, 19, 30)]),
        Violation::Overlap(_)
    );
}

#[test]
fn a_holder_that_never_releases_overlaps_all_others() {
    let forever = Acquisition { release: None, ..held("a", Mode::Mutex, 1, 10, 20) };
    let later = held("b", Mode::Mutex, 2, 1_000_000, 1_000_001);
    assert_found!(judge([forever, later]), Violation::Overlap(_));
}

#[test]
fn the_first_of_release_signal_and_deadline_ends_a_claim() {
    let mut a = held("a", Mode::Mutex, 1, 10, 40);
    assert_eq!(a.claimed(), ms(10)..ms(40));
    a.lost = Some(ms(30));
    assert_eq!(a.claimed(), ms(10)..ms(30));
    a.deadline = Some(ms(20));
    assert_eq!(a.claimed(), ms(10)..ms(20));
    assert_eq!(judge([a, held("b", Mode::Mutex, 2, 21, 30)]), []);
}

#[test]
fn readers_share_and_a_writer_does_not() {
    let readers = [held("a", Mode::Read, 1, 10, 30), held("b", Mode::Read, 1, 12, 25)];
    assert_eq!(judge(readers.clone()), []);
    let [a, b] = readers;
    assert_found!(
        judge([a.clone(), b.clone(), held("c", Mode::Write, 2, 28, 40)]),
        Violation::Overlap(_)
    );
    assert_found!(judge([held("c", Mode::Write, 1, 5, 11), a, b]), Violation::Overlap(_));
}

#[test]
fn an_owner_may_overlap_itself_but_no_other() {
    let outer = held("a", Mode::Write, 1, 10, 30);
    let inner = held("a", Mode::Write, 1, 15, 20);
    assert_eq!(judge([outer.clone(), inner.clone()]), []);
    assert_found!(judge([outer, inner, held("b", Mode::Read, 1, 25, 40)]), Violation::Overlap(_));
}

#[test]
fn permits_are_counted() {
    assert_eq!(
        judge([
            permit("a", 1, &[0], 10, 20),
            permit("b", 2, &[1], 12, 30),
            permit("c", 3, &[0], 20, 30),
        ]),
        []
    );
    let found = judge([
        permit("a", 1, &[0], 10, 20),
        permit("b", 2, &[1], 12, 30),
        permit("c", 3, &[2], 19, 30),
    ]);
    assert_found!(found, Violation::TooManyPermits { held: 3, .. });
}

#[test]
fn a_permit_has_one_holder() {
    assert_found!(
        judge([permit("a", 1, &[1], 10, 20), permit("b", 2, &[1], 12, 30)]),
        Violation::SharedSlot(_)
    );
}

#[test]
fn a_signal_after_the_next_grant_is_late() {
    let mut a = held("a", Mode::Mutex, 1, 10, 40);
    a.lost = Some(ms(21));
    let b = Acquisition { admitted: Some(ms(20)), ..held("b", Mode::Mutex, 2, 22, 30) };
    assert_found!(judge([a.clone(), b.clone()]), Violation::LateSignal(_));
    a.lost = Some(ms(20));
    assert_eq!(judge([a, b]), []);
}

#[test]
fn fences_must_differ_and_rise() {
    assert_found!(
        judge([held("a", Mode::Mutex, 7, 10, 20), held("b", Mode::Mutex, 6, 30, 40)]),
        Violation::FenceOrder(_)
    );
    // Requested before the other was granted: either order is right, but not the same fence for
    // both.
    let early = |fence| Acquisition { called: ms(1), ..held("b", Mode::Mutex, fence, 30, 40) };
    assert_eq!(judge([held("a", Mode::Mutex, 7, 10, 20), early(6)]), []);
    assert_found!(
        judge([held("a", Mode::Mutex, 7, 10, 20), early(7)]),
        Violation::RepeatedFence(_)
    );
}

#[test]
fn a_reader_may_repeat_a_writers_fence_and_a_writer_may_not_repeat_a_readers() {
    let writer = held("a", Mode::Write, 5, 10, 20);
    let reader = held("b", Mode::Read, 5, 30, 40);
    assert_eq!(judge([writer.clone(), reader.clone()]), []);
    assert_found!(
        judge([writer.clone(), held("b", Mode::Read, 4, 30, 40)]),
        Violation::FenceOrder(_)
    );
    assert_found!(judge([reader, held("c", Mode::Write, 5, 50, 60)]), Violation::FenceOrder(_));
}

#[test]
fn an_evicted_holder_has_until_the_end_of_its_lease() {
    let evictions = vec![Eviction { key: "key".to_owned(), fence: 1, last: 1, at: ms(50) }];
    let judge = |end| {
        let acquisitions =
            vec![held("a", Mode::Mutex, 1, 10, end), held("b", Mode::Mutex, 2, 60, 500)];
        check(&History { acquisitions, evictions: evictions.clone(), ..History::default() })
    };
    assert_eq!(judge(150), []);
    assert_found!(judge(151), Violation::NotTold { .. });
}

#[test]
fn what_is_left_is_a_leak() {
    let history =
        History { left: vec!["a claim on the key \"k\"".to_owned()], ..History::default() };
    assert_found!(check(&history), Violation::Leak(_));
}

#[test]
fn a_fenced_resource_never_shows_anything() {
    let resource = Resource::fenced();
    let x = ("x".to_owned(), 0);
    let a = resource.read(&x, 33, "a", false).unwrap();
    let b = resource.read(&x, 34, "b", false).unwrap();
    assert!(!resource.write(&x, 33, "a", a), "stale");
    assert!(!resource.write(&x, 34, "c", b), "not the owner of this fence");
    assert!(resource.write(&x, 34, "b", b));
    assert!(resource.read(&x, 34, "reader", true).is_some(), "readers carry the writer's");
    assert_eq!(judge_log(&resource), []);
}

#[test]
fn an_unfenced_resource_loses_updates() {
    let resource = Resource::unfenced();
    let x = ("x".to_owned(), 0);
    let b = resource.read(&x, 34, "b", false).unwrap();
    assert!(resource.write(&x, 34, "b", b));
    assert!(resource.write(&x, 34, "b", b));
    assert_found!(judge_log(&resource), Violation::LostUpdate { lost: 1, .. });
}

#[test]
fn stale_and_shared_fences_at_the_resource_are_found() {
    let x = ("x".to_owned(), 0);
    let resource = Resource::unfenced();
    resource.read(&x, 34, "b", false);
    resource.read(&x, 33, "a", false);
    assert_found!(judge_log(&resource), Violation::StaleAccess { highest: 34, .. });
    let resource = Resource::unfenced();
    resource.read(&x, 34, "b", false);
    resource.read(&x, 34, "a", false);
    assert_found!(judge_log(&resource), Violation::SharedFence { .. });
}

#[test]
fn a_long_history_is_judged_in_no_time() {
    let acquisitions: Vec<_> = (0..200_000)
        .map(|n| {
            held(["a", "b", "c"][n % 3], Mode::Mutex, n as u64, n as u64 * 2 + 1, n as u64 * 2 + 3)
        })
        .collect();
    let started = std::time::Instant::now();
    assert_eq!(judge(acquisitions), []);
    // A check that compares all pairs would take hours.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}
