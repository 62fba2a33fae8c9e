use super::super::model::tests::{at, entry, lock, snapshot};
use super::*;
use lockkeeper::Key;
use lockkeeper::engine::{Breaker, Mode};

fn locks(locks: Vec<Lock>) -> Locks {
    locks.into_iter().map(|lock| (lock.key.clone(), lock)).collect()
}

fn engine() -> EngineName {
    EngineName::from("e".to_owned())
}

fn between(from: u64, to: u64) -> Interval {
    Interval { from: Some(at(from)), to: at(to), blind: false }
}

fn ends(history: &History) -> Vec<(&str, Outcome)> {
    let end = |record: &Arc<Record>| match &**record {
        Record::Hold(_) | Record::Begun(_) => "hold",
        Record::Wait(_) => "wait",
        Record::Episode(_) => "episode",
    };
    let outcome = |record: &Arc<Record>| match &**record {
        Record::Hold(span) | Record::Wait(span) | Record::Begun(span) => span.outcome,
        Record::Episode(_) => Outcome::Now,
    };
    history.records.iter().map(|record| (end(record), outcome(record))).collect()
}

#[test]
fn a_waiter_that_holds_now_was_granted_and_one_that_is_gone_left() {
    let mut history = History::new(Vec::new(), 0);
    let before = locks(vec![lock("k", &["a@h 1"], &["b@h 2", "c@h 3"])]);
    let after = locks(vec![lock("k", &["b@h 2"], &[])]);
    history.observe(&engine(), &before, &after, &[], between(0, 2));
    assert_eq!(
        ends(&history),
        [("hold", Outcome::Ended), ("wait", Outcome::Granted), ("wait", Outcome::Left)]
    );
}

#[test]
fn a_hold_whose_lease_ran_out_expired_unless_nobody_could_look() {
    let mut snapshot = snapshot("k", &[], &[]);
    snapshot.holders = vec![entry("a@h 1", Mode::Mutex, Some(1))];
    let before = locks(vec![Lock::seen(&EngineName::from("e".to_owned()), snapshot, None, at(0))]);
    let mut history = History::new(Vec::new(), 0);
    history.observe(&engine(), &before, &Locks::new(), &[], between(0, 2));
    assert_eq!(history.lost(at(10)), 1);
    assert_eq!(history.records[0].end(), at(1));
    assert_eq!(history.lost(at(4_000)), 0);
    history.observe(
        &engine(),
        &before,
        &Locks::new(),
        &[],
        Interval { blind: true, ..between(0, 60) },
    );
    assert_eq!(ends(&history), [("hold", Outcome::Expired), ("hold", Outcome::Unknown)]);
}

/// Its lease says that it was released, but nobody saw that.
#[test]
fn what_ends_during_an_outage_is_unknown() {
    let mut history = History::new(Vec::new(), 0);
    let before = locks(vec![lock("k", &["a@h 1"], &[])]);
    let blind = Interval { blind: true, ..between(0, 5) };
    history.observe(&engine(), &before, &Locks::new(), &[], blind);
    assert_eq!(ends(&history), [("hold", Outcome::Unknown)]);
}

#[test]
fn what_ends_between_two_servers_is_unknown_and_what_lasts_goes_on() {
    let mut history = History::new(Vec::new(), 0);
    let both = locks(vec![lock("k", &["a@h 1"], &[]), lock("l", &["b@h 2"], &[])]);
    history.observe(&engine(), &Locks::new(), &both, &[], Interval { from: None, ..between(0, 2) });
    history.observe(&engine(), &both, &both, &[], between(2, 4));
    let file: Vec<_> = history.take_unsaved().iter().map(|record| (**record).clone()).collect();
    assert_eq!(file.len(), 2, "one line for each beginning: {file:?}");
    assert!(ends(&history).is_empty());
    // Another server reads what the first has written, also into a new file.
    for file in [file, history.saved().map(|record| (*record).clone()).collect()] {
        let mut history = History::new(file, 0);
        let left = locks(vec![lock("l", &["b@h 2"], &[])]);
        let first = Interval { from: None, ..between(0, 6) };
        history.observe(&engine(), &Locks::new(), &left, &[], first);
        assert_eq!(ends(&history), [("hold", Outcome::Unknown)]);
        assert_eq!(history.records[0].key(), "k");
        history.observe(&engine(), &left, &Locks::new(), &[], between(6, 8));
        assert_eq!(ends(&history).last(), Some(&("hold", Outcome::Ended)));
        assert_eq!(history.saved().count(), 2, "nothing lasts");
    }
}

#[test]
fn a_hold_that_was_broken_is_called_so_with_who_and_why() {
    let mut history = History::new(Vec::new(), 0);
    let mut broken = entry("a@h 1", Mode::Mutex, None);
    broken.fence = Some(Fence::new(7));
    let mut seen = snapshot("k", &[], &[]);
    seen.holders = vec![broken.clone()];
    let before = locks(vec![Lock::seen(&EngineName::from("e".to_owned()), seen, None, at(0))]);
    let by = Breaker::new("ops@hq 2".into(), Some("deploy stuck"));
    let it = by.breaks(&Key::new("k").unwrap(), &[broken.clone()]);
    broken.fence = Some(Fence::new(6));
    let earlier = by.breaks(&Key::new("k").unwrap(), &[broken]);
    for breaks in [vec![earlier.clone(), it], vec![earlier]] {
        history.observe(&engine(), &before, &Locks::new(), &breaks, between(0, 2));
    }
    assert_eq!(ends(&history), [("hold", Outcome::Broken), ("hold", Outcome::Ended)]);
    let Record::Hold(span) = &*history.records[0] else { panic!("it is a hold") };
    let told = (span.broken_by.as_deref(), span.why.as_deref());
    assert_eq!(told, (Some("ops@hq 2"), Some("deploy stuck")));
}

#[test]
fn the_oldest_records_go_first_and_no_more_are_kept_than_the_bound() {
    let mut history = History::new(Vec::new(), 0);
    for n in 0..MOST_RECORDS + 10 {
        let held = lock("k", &["a@h 1"], &[]);
        let span = Span::new(&held, &held.holders[0], Some(at(n as u64)), Outcome::Ended);
        history.push(Record::Hold(span));
    }
    assert_eq!(history.records.len(), MOST_RECORDS);
    assert_eq!(history.records[0].end(), at(10));
    assert_eq!(history.take_unsaved().len(), MOST_RECORDS + 10);
    assert!(history.take_unsaved().is_empty());
}

#[test]
fn an_episode_is_recorded_once_nobody_waits_any_more() {
    let mut history = History::new(Vec::new(), 0);
    let contended = locks(vec![lock("k", &["a@h 1"], &["b@h 2"])]);
    let calm = locks(vec![lock("k", &["a@h 1"], &[])]);
    history.observe(&engine(), &calm, &contended, &[], between(0, 2));
    assert!(history.episode(&contended["k"]).is_some());
    history.observe(&engine(), &contended, &calm, &[], between(2, 4));
    assert!(history.episode(&contended["k"]).is_none());
    assert_eq!(ends(&history).last(), Some(&("episode", Outcome::Now)));
}

#[test]
fn records_survive_the_way_through_a_file() {
    let held = lock("k", &["a@h 1"], &["b@h 2"]);
    let span = Span::new(&held, &held.holders[0], Some(at(3)), Outcome::Expired);
    let interval = Interval { from: None, to: at(2), blind: false };
    for record in [Record::Hold(span), Record::Episode(Episode::begin(&held, None, interval))] {
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record, "{text}");
    }
}
