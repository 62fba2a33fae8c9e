//! Many processes, all kinds of locks, and everything that can happen to an ensemble at once.

use std::time::Duration;

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use lockkeeper_testkit::storm::{Fault, Plan, Storm};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Twice the leases of the storm: a session vouches for half of its length.
const SESSION: Duration = Duration::from_secs(4);

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_three_servers() {
    let servers = spawn_blocking(Ensemble::three).await.expect("servers can be started");
    let direct = servers.url("storm", SESSION);
    // Every process has its own connections to all servers.
    let (mut proxies, mut urls) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let mut hosts = Vec::new();
        for server in servers.iter() {
            let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).await;
            hosts.push(proxy.address().to_string());
            proxies.push(proxy);
        }
        let (hosts, session) = (hosts.join(","), SESSION.as_millis());
        urls.push(format!("zookeeper://{hosts}/storm?session={session}ms"));
    }
    let plan = Plan { ttl: SESSION / 2, ..Plan::default() };
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, plan);
    let servers = &servers;
    let restarted = move |victim: usize| {
        servers[victim].kill();
        servers.serving(2);
        servers[victim].restart();
        servers.serving(3);
    };
    let mut faults = [
        Fault::new("leader killed and started again", move || async move {
            let leader = servers.leader();
            restarted(leader);
        }),
        Fault::new("follower killed and started again", move || async move {
            let follower = (servers.leader() + 1) % 3;
            restarted(follower);
        }),
        Fault::new("server stopped", move || async move {
            let (victim, length) = (fastrand::usize(..3), SESSION.mul_f64(fastrand::f64()));
            servers[victim].pause();
            sleep(length).await;
            servers[victim].resume();
            servers.serving(3);
        }),
        Fault::new("session closed", move || async move {
            servers.close_a_session();
        }),
        Fault::new("session closed", move || async move {
            servers.close_a_session();
        }),
    ];
    storm.rage(&proxies, &mut faults).await;
    let judgement = storm.judge(&direct).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}
