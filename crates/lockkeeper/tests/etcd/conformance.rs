//! Every case of the test kit against one etcd member and against three.

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::etcd::Servers;

use crate::PATIENT;

/// A part of a cluster that is not used otherwise. Leases are a little longer than the shortest
/// ones, so that a busy machine does not lose them.
fn fresh(servers: &'static Servers) -> Store {
    let prefix = format!("t{:x}/", fastrand::u64(..));
    let store = Store::at(servers.url(&format!("?prefix={prefix}"))).ttl(Duration::from_secs(4));
    let there = prefix.clone();
    store.data(
        "keys without a lease",
        move |key| {
            for name in ["", "/config", "/77"] {
                servers.ctl(&["put", &format!("{prefix}{key}{name}"), "value"]);
            }
            std::future::ready(())
        },
        move |key| std::future::ready(servers.ctl(&["get", "--prefix", &format!("{there}{key}")])),
    )
}

fn one() -> Store {
    static ONE: OnceLock<Servers> = OnceLock::new();
    fresh(ONE.get_or_init(|| Servers::start(1)))
}

fn three() -> Store {
    static THREE: OnceLock<Servers> = OnceLock::new();
    fresh(THREE.get_or_init(|| Servers::with(3, &PATIENT)))
}

conformance!(one_member, one());
conformance!(three_members, three());
