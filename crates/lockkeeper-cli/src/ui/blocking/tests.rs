use super::super::model::tests::{at, entry, lock, snapshot};
use super::*;

/// As if the previous poll had seen the same.
fn seen_twice(mut lock: Lock) -> Lock {
    lock.looked = at(2);
    lock
}

fn look(locks: &[Lock]) -> Blocking {
    Blocking::of(locks.iter(), |_, _| Vec::new())
}

fn rings(blocking: &Blocking) -> Vec<Vec<&str>> {
    blocking
        .deadlocks
        .iter()
        .map(|deadlock| deadlock.ring.iter().map(|link| link.process.as_str()).collect())
        .collect()
}

#[test]
fn a_chain_over_keys_is_one_tree() {
    let locks = [lock("x", &["a@h 1"], &["b@h 2"]), lock("y", &["b@h 2"], &["c@h 3"])];
    let blocking = look(&locks);
    assert!(blocking.deadlocks.is_empty());
    let [tree] = &blocking.trees[..] else { panic!("{blocking:?}") };
    assert_eq!((&*tree.process, &*tree.blocks[0].process), ("a@h 1", "b@h 2"));
    assert_eq!(tree.blocks[0].blocks[0].process, "c@h 3");
}

#[test]
fn a_circle_is_a_deadlock_once_it_was_seen_twice() {
    let locks = [lock("x", &["a@h 1"], &["b@h 2"]), lock("y", &["b@h 2"], &["a@h 1", "c@h 3"])];
    assert!(look(&locks).deadlocks.is_empty());
    let locks = locks.map(seen_twice);
    let blocking = look(&locks);
    assert_eq!(rings(&blocking), [["a@h 1", "b@h 2"]]);
    assert_eq!(blocking.deadlocked(), HashSet::from([("e", "x"), ("e", "y")]));
}

#[test]
fn a_job_that_runs_below_another_one_is_part_of_its_circle() {
    let locks =
        [lock("x", &["a@h 1"], &["d@h 4"]), lock("y", &["b@h 2"], &["c@h 3"])].map(seen_twice);
    let parents = |party: &Party, holders: &Holders| {
        let parent = match party.pid {
            Some(3) => 1,
            Some(4) => 2,
            _ => return Vec::new(),
        };
        vec![holders[&("h".to_owned(), parent)].clone()]
    };
    let blocking = Blocking::of(locks.iter(), parents);
    assert_eq!(rings(&blocking), [["a@h 1", "c@h 3", "b@h 2", "d@h 4"]]);
    assert!(look(&locks).deadlocks.is_empty());
}

#[test]
fn a_semaphore_with_a_holder_that_goes_on_is_no_deadlock() {
    let permits = |who: &str| entry(who, Mode::Permits { take: 1, limit: 2 }, None);
    let semaphore = |holders: &[&str], waiters: &[&str]| {
        let mut snapshot = snapshot("s", &[], &[]);
        snapshot.holders = holders.iter().map(|who| permits(who)).collect();
        snapshot.waiters = Some(waiters.iter().map(|who| permits(who)).collect());
        seen_twice(Lock::seen(&EngineName::from("e".to_owned()), snapshot, None, at(0)))
    };
    let x = || seen_twice(lock("x", &["c@h 3"], &["a@h 1"]));
    assert!(look(&[semaphore(&["a@h 1", "b@h 2"], &["c@h 3"]), x()]).deadlocks.is_empty());
    let y = seen_twice(lock("y", &["a@h 1"], &["b@h 2"]));
    let all = [semaphore(&["a@h 1", "b@h 2"], &["c@h 3"]), x(), y];
    let expected: [&[&str]; 2] = [&["a@h 1", "c@h 3"], &["b@h 2", "a@h 1", "c@h 3"]];
    assert_eq!(rings(&look(&all)), expected);
}

#[test]
fn readers_do_not_block_each_other_but_a_waiting_writer_does() {
    let mut snapshot = snapshot("k", &[], &[]);
    snapshot.holders = vec![entry("a@h 1", Mode::Read, None)];
    snapshot.waiters =
        Some(vec![entry("w@h 2", Mode::Write, None), entry("r@h 3", Mode::Read, None)]);
    let blocking = look(&[Lock::seen(&EngineName::from("e".to_owned()), snapshot, None, at(0))]);
    let [tree] = &blocking.trees[..] else { panic!("{blocking:?}") };
    assert_eq!(tree.process, "a@h 1");
    assert_eq!(tree.blocks.len(), 1, "{tree:?}");
    assert_eq!(tree.blocks[0].blocks[0].process, "r@h 3");
}

#[test]
fn another_task_of_the_same_process_is_no_deadlock() {
    let blocking = look(&[seen_twice(lock("k", &["a@h 1"], &["a@h 1"]))]);
    assert!(blocking.deadlocks.is_empty() && blocking.trees.is_empty());
}

#[test]
fn what_is_shown_is_bounded() {
    let names: Vec<_> = (0..MOST_NODES + 10).map(|n| format!("w@h {n}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let blocking = look(&[lock("k", &["a@h 0x"], &names)]);
    assert!(blocking.truncated);
    assert_eq!(blocking.trees[0].blocks.len(), MOST_NODES - 1);
}
