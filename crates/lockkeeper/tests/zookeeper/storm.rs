//! Many processes, all kinds of locks, and everything that can happen to an ensemble at once.

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::storm::deployment::Zookeeper;
use lockkeeper_testkit::storm::{Plan, Storm};
use tokio::task::spawn_blocking;

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_three_servers() {
    let servers = spawn_blocking(Zookeeper::start).await.expect("servers can be started");
    let judgement = Storm::over(&Program::test(module_path!()), &servers, Plan::default()).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}
