//! MySQL Group Replication: groups with one primary, and with several.
//!
//! MariaDB has none, so these tests run only where they are asked for.

use std::time::{Duration, Instant};

use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::Severity;
use lockkeeper::{Client, Loss, Release, engines};
use lockkeeper_testkit::server::Group;

use super::galera::{load_while_members_are_killed, members_know_of_each_other};
use super::{LEASE, database, strategy};

/// How long a group may take to notice that its primary is dead, and to elect another.
const FAILOVER: Duration = Duration::from_secs(120);

/// Creates the tables as an administrator does.
fn migrate(group: &Group, url: &str) {
    let schema = engines::schema(&Endpoint::parse(url).unwrap()).unwrap();
    group[0].sql(database(url), schema);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL with Group Replication: scripts/test-versions mysql"]
async fn a_group_with_one_primary_is_used_there() {
    let group = Group::single_primary(2);
    let urls = group.urls("locks");
    for way in ["lease", "named", "row"] {
        let (primary, secondary) = (strategy(&urls[0], way), strategy(&urls[1], way));
        let (one, other) =
            (Client::connect(&primary).await.unwrap(), Client::connect(&primary).await.unwrap());
        let guard = one.mutex("key").ttl(LEASE).acquire().await.unwrap();
        assert!(other.mutex("key").try_acquire().await.unwrap().is_none(), "{way}");
        let fence = guard.fence();
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{way}");
        let broken = other.mutex("key").ttl(LEASE).acquire().await.unwrap();
        assert!(broken.fence() > fence, "{way}");
        assert_eq!(one.break_lock("key").await.unwrap().len(), 1, "{way}");
        assert!(matches!(broken.lost().await, Loss::Broken { .. }), "{way}");
        let findings = one.doctor().await.unwrap();
        assert!(findings.iter().all(|f| f.severity < Severity::Problem), "{way}: {findings:?}");
        assert!(findings.iter().any(|f| f.what.contains("primary of a group")), "{findings:?}");
        let error = Client::connect(secondary).await.unwrap_err().to_string();
        assert!(error.contains("read-only") && error.contains("primary"), "{way}: {error}");
    }
    // As if it had been made before the server was a member of a group.
    group[0].sql(database(&urls[0]), "ALTER TABLE lockkeeper_freed ENGINE = MEMORY");
    let error = Client::connect(&urls[0]).await.unwrap_err().to_string();
    assert!(error.contains("in memory") && error.contains("explain --schema"), "{error}");
    migrate(&group, &urls[0]);
    Client::connect(&urls[0]).await.unwrap();
    // A server that has left its group, and is made writable again.
    group[1].sql(
        "mysql",
        "STOP GROUP_REPLICATION; SET GLOBAL super_read_only = OFF; SET GLOBAL read_only = OFF",
    );
    for way in ["lease", "named", "row"] {
        let error = Client::connect(strategy(&urls[1], way)).await.unwrap_err();
        let said = error.to_string();
        assert!(error.is_retryable() && said.contains("not a member of it now"), "{way}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL with Group Replication: scripts/test-versions mysql"]
async fn a_lease_survives_the_failover_of_a_group() {
    let group = Group::single_primary(3);
    let urls = group.urls("locks");
    let client = Client::connect(&urls[0]).await.unwrap();
    let guard = client.mutex("key").ttl(FAILOVER * 2).acquire().await.unwrap();
    group[0].kill();
    // The others are read-only until they have elected one of them.
    let started = Instant::now();
    let next = loop {
        if let Ok(client) = Client::connect(&urls[1]).await {
            break client;
        } else if let Ok(client) = Client::connect(&urls[2]).await {
            break client;
        }
        assert!(started.elapsed() < FAILOVER, "there is no primary");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(next.mutex("key").try_acquire().await.unwrap().is_none());
    assert_eq!(next.break_lock("key").await.unwrap().len(), 1);
    let again = next.mutex("key").ttl(LEASE).acquire().await.unwrap();
    assert!(again.fence() > guard.fence());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL with Group Replication: scripts/test-versions mysql"]
async fn what_one_member_of_a_group_granted_all_of_them_know() {
    let group = Group::multi_primary(3);
    let urls = group.urls("known");
    // Members that make tables at the same time would leave the group.
    let error = Client::connect(&urls[0]).await.unwrap_err().to_string();
    assert!(error.contains("multi-primary") && error.contains("explain --schema"), "{error}");
    migrate(&group, &urls[0]);
    members_know_of_each_other(&urls, "multi-primary group").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL with Group Replication: scripts/test-versions mysql"]
async fn locks_taken_through_members_of_a_group_exclude_each_other_while_members_are_killed() {
    let group = Group::multi_primary(3);
    let urls = group.urls("load_of_members");
    migrate(&group, &urls[0]);
    load_while_members_are_killed(&group, &urls, |n| group.restart(n)).await;
}
