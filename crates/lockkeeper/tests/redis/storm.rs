//! Many processes, all kinds of locks, and everything that can happen to Redis at once.

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::storm::deployment::{
    Deployment, OneRedis, RedisCluster, RedisSentinels, Redlock,
};
use lockkeeper_testkit::storm::{Fault, Kind, Plan, Storm};

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

async fn rage(servers: &dyn Deployment, kinds: &[Kind]) {
    let plan = Plan { kinds: kinds.to_vec(), ..Plan::default() };
    let judgement = Storm::over(&Program::test(module_path!()), servers, plan).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_one_server() {
    rage(&OneRedis::start(), &Kind::ALL).await;
}

/// A test of the test: a store that forgets locks allows two holders of a lock or of a permit, and the storm
/// must see it.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_sees_that_a_server_forgets_its_locks() {
    let server = Server::start();
    let urls = [server.url()];
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, Plan::default());
    let server = &server;
    let flush = Fault::new("everything forgotten", move || async move {
        server.ask(&["FLUSHALL"]);
    });
    storm.rage(&[], &mut [flush]).await;
    let judgement = storm.judge(&server.url()).await;
    assert!(judgement.grants() > 0 && !judgement.is_clean(), "{judgement}");
}

/// A failover may lose locks; fences have to rise all the same, for readers too.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_with_sentinels() {
    rage(&RedisSentinels::start(), &Kind::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_in_a_cluster() {
    rage(&RedisCluster::start(), &Kind::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_a_majority() {
    rage(&Redlock::start(), &[Kind::Mutex, Kind::Reentrant, Kind::ReadWrite]).await;
}
