//! Many processes, all kinds of locks, and everything that can happen to a cluster at once.

use std::time::Duration;

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::etcd::Servers;
use lockkeeper_testkit::storm::{Fault, Plan, Storm};
use tokio::time::sleep;

/// Longer than a healthy cluster needs to elect a leader, shorter than processes are stopped for.
const TTL: Duration = Duration::from_secs(4);

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_three_members() {
    let servers = &Servers::start(3);
    let mut proxies = Vec::new();
    for n in 0..3 {
        proxies.push(Proxy::start(servers[n].address()).await);
    }
    let address = |n: usize| proxies[n % 3].address().to_string();
    // Each uses another member at first.
    let url = |n: usize| format!("etcd://{},{},{}", address(n), address(n + 1), address(n + 2));
    let urls: Vec<_> = (0..3).map(url).collect();
    let plan = Plan { ttl: TTL, ..Plan::default() };
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, plan);
    let restart = move |n: usize| {
        servers[n].kill();
        servers[n].restart();
    };
    let mut faults = [
        Fault::new("leader killed and started again", move || async move {
            restart(servers.leader());
        }),
        Fault::new("member killed and started again", move || async move {
            restart(fastrand::usize(..3));
        }),
        Fault::new("leader stopped", move || async move {
            stop(servers, servers.leader()).await;
        }),
        Fault::new("member stopped", move || async move {
            stop(servers, fastrand::usize(..3)).await;
        }),
        Fault::new("history compacted", move || async move {
            let status = servers.ctl(&["get", "none", "-w", "fields"]);
            let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
            // Nothing to compact is refused.
            let _ = servers.ctl_command(&["compact", revision.unwrap()]).output();
        }),
    ];
    storm.rage(&proxies, &mut faults).await;
    let judgement = storm.judge(&servers.url("")).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}

/// Stops a member for up to a lease and a half.
async fn stop(servers: &Servers, member: usize) {
    servers[member].pause();
    sleep(TTL.mul_f64(1.5 * fastrand::f64())).await;
    servers[member].resume();
}
