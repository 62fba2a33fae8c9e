//! Many processes, all kinds of locks, and everything that can happen to a cluster at once.

use std::time::Duration;

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::storm::deployment::Etcd;
use lockkeeper_testkit::storm::{Plan, Storm};

/// Longer than a healthy cluster needs to elect a leader, shorter than processes are stopped for.
const TTL: Duration = Duration::from_secs(4);

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_three_members() {
    let plan = Plan { ttl: TTL, ..Plan::default() };
    let judgement = Storm::over(&Program::test(module_path!()), &Etcd::start(), plan).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}
