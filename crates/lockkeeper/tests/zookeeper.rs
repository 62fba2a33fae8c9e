//! Every case of the test kit against one ZooKeeper server and against an ensemble of three.

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::zookeeper::Ensemble;

/// Short, but long enough for a busy machine.
const SESSION: Duration = Duration::from_secs(6);

/// A tree of its own in servers that all cases share: a JVM for each would take minutes.
fn store(servers: &'static OnceLock<Ensemble>, start: fn() -> Ensemble) -> Store {
    let root = format!("conformance/{}", fastrand::u64(..));
    let url = servers.get_or_init(start).url(&root, SESSION);
    // A session vouches for half of its length.
    Store::at(url).ttl(SESSION / 2).session(SESSION)
}

static SINGLE: OnceLock<Ensemble> = OnceLock::new();
conformance!(single, store(&SINGLE, Ensemble::single));

static THREE: OnceLock<Ensemble> = OnceLock::new();
conformance!(three, store(&THREE, Ensemble::three));
