//! Which locks of a Cluster are listed while its slots move.

use lockkeeper::Client;
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Cluster, Server, VOLATILE};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_migrated_to_a_server_without_slots_is_listed() {
    let cluster = Cluster::with_replicas(0);
    let client = Client::connect(cluster.url()).await.unwrap();
    let guard = client.mutex("key").acquire().await.unwrap();
    let from = cluster.master_of("key");
    let new = Server::with(&[&VOLATILE[..], &["--cluster-enabled", "yes"]].concat());
    new.ask(&["CLUSTER", "MEET", "127.0.0.1", &from.port().to_string()]);
    let new_id = new.ask(&["CLUSTER", "MYID"]);
    eventually("they know each other", || {
        let (state, nodes) = (new.ask(&["CLUSTER", "INFO"]), from.ask(&["CLUSTER", "NODES"]));
        let met = state.contains("cluster_state:ok") && nodes.contains(&new_id);
        met.then_some(()).ok_or(state + &nodes)
    });
    let slot = from.ask(&["CLUSTER", "KEYSLOT", "key"]);
    let from_id = from.ask(&["CLUSTER", "MYID"]);
    assert_eq!(new.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]), "OK");
    assert_eq!(from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new_id]), "OK");
    let listed = async || {
        let locks = client.list("").await.unwrap();
        locks.iter().map(|lock| lock.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, ["key"]);
    let port = new.port().to_string();
    for key in from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "9"]).lines() {
        assert_eq!(from.ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]), "OK");
    }
    assert_eq!(listed().await, ["key"]);
    guard.release().await.unwrap();
}
