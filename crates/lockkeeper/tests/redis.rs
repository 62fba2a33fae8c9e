//! Every case of the test kit against Redis: one server, both layouts, the oldest version, Sentinel, Cluster.
#![cfg(feature = "redis")]

use std::sync::LazyLock;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::redis::{Cluster, Sentinels, Server, VOLATILE};

static ONE: LazyLock<Server> = LazyLock::new(Server::start);
static OLDEST: LazyLock<Server> = LazyLock::new(|| Server::oldest(&VOLATILE));
static SENTINELS: LazyLock<Sentinels> = LazyLock::new(Sentinels::start);
static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::start);

/// A store of its own in servers that all cases share.
fn apart(url: String, options: &str) -> Store {
    Store::at(format!("{url}?prefix={:x}:{options}", fastrand::u64(..)))
}

conformance!(standalone, {
    let server = Server::start();
    Store::at(server.url()).keep(server)
});

conformance!(string, apart(ONE.url(), "&layout=string"));

conformance!(redisson_fence, apart(ONE.url(), "&fence=redisson"));

conformance!(oldest, apart(OLDEST.url(), ""));

conformance!(sentinel, apart(SENTINELS.url(), ""));

conformance!(replicated, apart(SENTINELS.url(), "&wait_replicas=1"));

conformance!(cluster, apart(CLUSTER.url(), ""));
