//! The helper process itself: it must report what happened, or the cases built on it show nothing.

use std::time::Duration;

use lockkeeper_testkit::holder::{Holder, Program, main_of_test};

#[test]
fn helper_process() {
    main_of_test();
}

fn programs() -> [Program; 2] {
    [Program::test(module_path!()), Program::Binary(env!("CARGO_BIN_EXE_lockkeeper-holder").into())]
}

#[tokio::test]
async fn it_holds_answers_and_releases() {
    for program in programs() {
        let mut holder = Holder::start(&program, "memory:", "key", &["--ttl", "5s"]);
        assert_eq!(holder.granted().await, 1);
        assert_eq!(holder.ask("check").await, "ok");
        assert!(holder.ask("remaining").await.parse::<u64>().unwrap() <= 5_000);
        assert_eq!(holder.ask("release").await, "Released");
        holder.tell("acquire");
        assert_eq!(holder.granted().await, 2);
        holder.finish();
        assert_eq!(holder.said("release").await, "Released");
    }
}

#[tokio::test]
async fn stopped_for_longer_than_its_lease_it_knows() {
    for program in programs() {
        let mut holder = Holder::start(&program, "memory:", "key", &["--ttl", "300ms"]);
        holder.granted().await;
        holder.stop();
        tokio::time::sleep(Duration::from_millis(310)).await;
        holder.resume();
        let check = holder.ask("check").await;
        assert!(check.contains("its lease ran out"), "{check}");
        assert_eq!(holder.ask("release").await, "AlreadyLost");
    }
}

#[tokio::test]
async fn permits_and_timeouts_are_reported() {
    let program = Program::test(module_path!());
    let permits = ["--kind", "semaphore", "--limit", "3", "--take", "2"];
    let mut holder = Holder::start(&program, "memory:", "key", &permits);
    assert_eq!(holder.said("granted").await, "1 0,1");
    let mut holder = Holder::start(&program, "memory:", "key", &["--kind", "spoon"]);
    assert!(holder.said("failed").await.contains("mutex, read, write or semaphore"));
    let mut holder = Holder::start(&program, "gopher:", "key", &[]);
    assert!(holder.said("failed").await.contains("gopher"));
}

#[tokio::test]
async fn the_arbiter_counts_and_catches_a_second_one() {
    let arbiter = tempfile::tempdir().unwrap();
    let place = arbiter.path().to_str().unwrap();
    let arguments = ["--cycles", "20", "--arbiter", place];
    let program = Program::test(module_path!());
    let mut holder = Holder::start(&program, "memory:", "key", &arguments);
    assert_eq!(holder.said("").await, "done 20");
    assert_eq!(std::fs::read_to_string(arbiter.path().join("count-0")).unwrap(), "20");
    // The slot is occupied forever: every cycle must detect it.
    std::fs::write(arbiter.path().join("inside-0"), "").unwrap();
    let mut holder = Holder::start(&program, "memory:", "key", &arguments);
    assert!(holder.said("violation").await.contains("slot 0"));
}
