//! Every case of the test kit against Redlock: three servers, five, and five of which two are in trouble.

use std::sync::LazyLock;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::redis::with_data;

use crate::servers::{Flapping, Servers};

static THREE: LazyLock<Servers> = LazyLock::new(|| Servers::start(3));
static FIVE: LazyLock<Servers> = LazyLock::new(|| Servers::start(5));

/// One is dead, one is stopped and keeps its connections.
static DEAD_AND_STOPPED: LazyLock<Servers> = LazyLock::new(|| {
    let servers = Servers::start(5);
    servers[1].kill();
    servers[3].pause();
    servers
});

/// One takes 200 ms each way, one is stopped and resumed all the time.
static SLOW_AND_FLAPPING: LazyLock<(Servers, String, Flapping)> = LazyLock::new(|| {
    let servers = Servers::start(5);
    let url = servers.url_with_slow(0, std::time::Duration::from_millis(200));
    let flapping = Flapping::start(servers[4].pid().expect("it runs"));
    (servers, url, flapping)
});

/// A separate store on servers that all cases share.
fn apart(url: &str, options: &str) -> Store {
    Store::at(format!("{url}?prefix={:x}:{options}", fastrand::u64(..)))
}

/// The same, with foreign data at all servers.
fn beside_data(options: &str, strings: bool) -> Store {
    let prefix = format!("{:x}:", fastrand::u64(..));
    let store = Store::at(format!("{}?prefix={prefix}{options}", THREE.url()));
    with_data(store, &prefix, strings, |command| {
        THREE.iter().map(|server| server.ask(command) + "\n").collect()
    })
}

conformance!(three, beside_data("", false));

conformance!(hash, beside_data("&layout=hash", true));

conformance!(five, apart(&FIVE.url(), ""));

conformance!(dead_and_stopped, apart(&DEAD_AND_STOPPED.url(), ""));

conformance!(slow_and_flapping, apart(&SLOW_AND_FLAPPING.1, ""));
