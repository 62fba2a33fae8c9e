//! Many processes, all kinds of locks, and everything that can happen to Redis at once.
#![cfg(feature = "redis")]

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::redis::{DURABLE, Server};
use lockkeeper_testkit::storm::{Fault, Kind, Plan, Storm};

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_one_server() {
    let server = Server::with(&DURABLE);
    let mut proxies = Vec::new();
    for _ in 0..4 {
        let target = ([127, 0, 0, 1], server.port()).into();
        proxies.push(Proxy::start(target).await);
    }
    let urls: Vec<_> = proxies.iter().map(|proxy| format!("redis://{}", proxy.address())).collect();
    let kinds = vec![Kind::Mutex, Kind::Fair, Kind::ReadWrite, Kind::Permits];
    let plan = Plan { kinds, ..Plan::default() };
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, plan);
    let server = &server;
    let mut faults = [
        Fault::new("scripts forgotten", move || async move {
            server.ask(&["SCRIPT", "FLUSH"]);
        }),
        Fault::new("connections killed", move || async move {
            server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }),
        Fault::new("server killed and started again", move || async move {
            server.kill();
            server.restart();
        }),
    ];
    storm.rage(&proxies, &mut faults).await;
    let judgement = storm.judge(&server.url()).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}

/// A test of the test: who forgets locks lets two in, and a storm that does not see it is none.
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
    assert!(!judgement.overlaps.is_empty(), "{judgement}");
}
