//! Every case of the test kit against Redis: one server, both layouts, the oldest version, Sentinel, Cluster.

use std::sync::{Arc, LazyLock};

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::redis::{Cluster, Sentinels, Server, VOLATILE, with_data};

static ONE: LazyLock<Server> = LazyLock::new(Server::start);
static OLDEST: LazyLock<Server> = LazyLock::new(|| Server::oldest(&VOLATILE));
static SENTINELS: LazyLock<Sentinels> = LazyLock::new(Sentinels::start);
static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::start);

/// A separate store on servers that all cases share.
fn apart(url: String, options: &str) -> Store {
    Store::at(format!("{url}?prefix={:x}:{options}", fastrand::u64(..)))
}

conformance!(standalone, {
    let server = Arc::new(Server::start());
    let asked = server.clone();
    let store = Store::at(server.url()).keep(server);
    with_data(store, "", true, move |command| asked.ask(command))
});

conformance!(string, {
    let prefix = format!("{:x}:", fastrand::u64(..));
    let store = Store::at(format!("{}?prefix={prefix}&layout=string", ONE.url()));
    with_data(store, &prefix, false, |command| ONE.ask(command))
});

conformance!(redisson_fence, apart(ONE.url(), "&fence=redisson"));

conformance!(oldest, apart(OLDEST.url(), ""));

conformance!(sentinel, apart(SENTINELS.url(), ""));

conformance!(replicated, apart(SENTINELS.url(), "&wait_replicas=1"));

conformance!(cluster, apart(CLUSTER.url(), ""));
