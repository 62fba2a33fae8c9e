//! Every case of the test kit against one ZooKeeper server and against an ensemble of three.

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use zookeeper_client as zk;

/// Short, but long enough for a busy machine.
const SESSION: Duration = Duration::from_secs(6);

/// A separate root on servers that all cases share: a JVM for each would take minutes.
fn store(servers: &'static OnceLock<Ensemble>, start: fn() -> Ensemble) -> Store {
    let root = format!("conformance/{}", fastrand::u64(..));
    let url = servers.get_or_init(start).url(&root, SESSION);
    // A session vouches for half of its length.
    let mut store = Store::at(url).ttl(SESSION / 2).session(SESSION);
    for data in DATA {
        let (hosts, root) = (servers.get_or_init(start).hosts(), root.clone());
        let there = (hosts.clone(), root.clone());
        store = store.data(
            data.what,
            move |key| plant(hosts.clone(), format!("/{root}/{key}"), data),
            move |key| look(there.0.clone(), format!("/{}/{key}", there.1), data),
        );
    }
    store
}

/// Application data at the path of a lock.
struct Data {
    what: &'static str,
    value: &'static [u8],
    mode: zk::CreateMode,
    nodes: &'static [&'static str],
}

const DATA: &[Data] = &[
    Data {
        what: "a queue of its own",
        value: b"value",
        mode: zk::CreateMode::Persistent,
        nodes: &["block-0000000001", "clock-0000000007"],
    },
    Data {
        what: "a node that is named like the first one of a line",
        value: b"",
        mode: zk::CreateMode::Persistent,
        nodes: &["lock--000000001"],
    },
    Data {
        what: "a node that is named like a later one of a line",
        value: b"",
        mode: zk::CreateMode::Persistent,
        nodes: &["_c_53345f98-9423-4e0c-a7b5-9f819e3ec2e1-lock-0000000700"],
    },
    Data {
        what: "a writer that stays",
        value: b"",
        mode: zk::CreateMode::Persistent,
        nodes: &["__WRIT__0000000000"],
    },
    Data {
        what: "the root of other locks",
        value: b"",
        mode: zk::CreateMode::Container,
        nodes: &["lock-0000000000", "lock-0000000000/lock-0000000000"],
    },
    Data {
        what: "places before a semaphore that stay",
        value: b"",
        mode: zk::CreateMode::Persistent,
        nodes: &["locks", "locks/lock-0000000000"],
    },
    Data {
        what: "permits that stay",
        value: b"",
        mode: zk::CreateMode::Persistent,
        nodes: &[
            "locks",
            "leases",
            "leases/lease-0000000000",
            "leases/lease-0000000001",
            "leases/_c_53345f98-9423-4e0c-a7b5-9f819e3ec2e1-2.3-lease-0000000002",
        ],
    },
    Data {
        what: "32 digits",
        value: b"",
        mode: zk::CreateMode::Persistent,
        nodes: &["1f0e5b5e0a1c4e0f8d2b3c4d5e6f7a8b"],
    },
];

async fn plant(hosts: String, dir: String, data: &Data) {
    let zk = zk::Client::connect(&hosts).await.unwrap();
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let options = data.mode.with_acls(zk::Acls::anyone_all());
    zk.mkdir(&dir, &persistent).await.unwrap();
    zk.set_data(&dir, data.value, None).await.unwrap();
    for node in data.nodes {
        zk.create(&format!("{dir}/{node}"), b"value", &options).await.unwrap();
    }
}

async fn look(hosts: String, dir: String, data: &Data) -> String {
    let zk = zk::Client::connect(&hosts).await.unwrap();
    let mut seen = format!("{:?}", zk.get_data(&dir).await.unwrap().0);
    for node in data.nodes {
        seen += &format!("{:?}", zk.get_data(&format!("{dir}/{node}")).await.map(|(data, _)| data));
    }
    seen
}

static SINGLE: OnceLock<Ensemble> = OnceLock::new();
conformance!(single, store(&SINGLE, Ensemble::single));

static THREE: OnceLock<Ensemble> = OnceLock::new();
conformance!(three, store(&THREE, Ensemble::three));
