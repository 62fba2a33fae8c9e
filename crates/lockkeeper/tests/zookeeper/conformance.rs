//! Every case of the test kit against one ZooKeeper server and against an ensemble of three.

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use zookeeper_client as zk;

/// Short, but long enough for a busy machine.
const SESSION: Duration = Duration::from_secs(6);

/// A tree of its own in servers that all cases share: a JVM for each would take minutes.
fn store(servers: &'static OnceLock<Ensemble>, start: fn() -> Ensemble) -> Store {
    let root = format!("conformance/{}", fastrand::u64(..));
    let url = servers.get_or_init(start).url(&root, SESSION);
    let hosts = servers.get_or_init(start).hosts();
    let there = (hosts.clone(), root.clone());
    // A session vouches for half of its length.
    Store::at(url).ttl(SESSION / 2).session(SESSION).data(
        "nodes that stay",
        move |key| plant(hosts.clone(), format!("/{root}/{key}")),
        move |key| look(there.0.clone(), format!("/{}/{key}", there.1)),
    )
}

/// Nodes of an application's own queue.
const NODES: [&str; 2] = ["block-0000000001", "clock-0000000007"];

async fn plant(hosts: String, dir: String) {
    let zk = zk::Client::connect(&hosts).await.unwrap();
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    zk.mkdir(&dir, &persistent).await.unwrap();
    zk.set_data(&dir, b"value", None).await.unwrap();
    for node in NODES {
        zk.create(&format!("{dir}/{node}"), b"value", &persistent).await.unwrap();
    }
}

async fn look(hosts: String, dir: String) -> String {
    let zk = zk::Client::connect(&hosts).await.unwrap();
    let mut seen = format!("{:?}", zk.get_data(&dir).await.unwrap().0);
    for node in NODES {
        seen += &format!("{:?}", zk.get_data(&format!("{dir}/{node}")).await.map(|(data, _)| data));
    }
    seen
}

static SINGLE: OnceLock<Ensemble> = OnceLock::new();
conformance!(single, store(&SINGLE, Ensemble::single));

static THREE: OnceLock<Ensemble> = OnceLock::new();
conformance!(three, store(&THREE, Ensemble::three));
