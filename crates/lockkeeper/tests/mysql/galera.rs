//! Three members of a Galera cluster of MariaDB, with clients at each. MySQL has no Galera.

use lockkeeper::Client;
use lockkeeper::engine::Severity;
use lockkeeper_testkit::load::Load;
use lockkeeper_testkit::server::{Galera, Member};
use tokio::task::JoinSet;

use super::{LEASE, strategy};

/// Members certify each other's commits: of two commits that would grant one lock twice, one is
/// rolled back and retried. All members are killed in turn and come back, so that every client
/// loses its own once.
#[tokio::test(flavor = "multi_thread")]
async fn locks_taken_through_different_members_exclude_each_other_while_members_are_killed() {
    let cluster = Galera::three();
    let urls = cluster.urls("load_of_members");
    load_while_members_are_killed(&cluster, &urls, |n| cluster[n].restart()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_member_granted_all_of_them_know() {
    let cluster = Galera::three();
    let clients = members_know_of_each_other(&cluster.urls("known"), "Galera").await;
    // A member without a quorum grants nothing, and answers nothing that it may not know.
    cluster[0].kill();
    cluster[1].kill();
    let error = clients[2].mutex("free").acquire_within(LEASE * 2).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let error = clients[2].inspect("key").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

pub(super) async fn load_while_members_are_killed(
    members: &[Member],
    urls: &[String],
    restart: impl Fn(usize),
) {
    let mut connecting = JoinSet::new();
    for url in urls.iter().cycle().take(6).cloned() {
        connecting.spawn(async move { Client::connect(url).await });
    }
    let clients = connecting.join_all().await.into_iter().collect::<Result<_, _>>().unwrap();
    // The others suspect a member that is silent for five seconds.
    let load = Load::start(clients, 2, 2, 4 * LEASE);
    load.goes_on(50).await;
    for (n, member) in members.iter().enumerate() {
        member.kill();
        println!("member {n} is dead");
        load.goes_on(20).await;
        restart(n);
        println!("member {n} is back");
        load.goes_on(20).await;
    }
    let judged = load.judge().await;
    println!("{} grants, {} errors", judged.grants, judged.errors.len());
    assert!(judged.violations.is_empty(), "{:#?}", judged.violations);
    assert_eq!(judged.overlaps, 0);
}

/// Returns a client of each.
pub(super) async fn members_know_of_each_other(urls: &[String], cluster: &str) -> Vec<Client> {
    let mut clients = Vec::new();
    for url in urls {
        clients.push(Client::connect(url).await.unwrap());
        for way in ["named", "row"] {
            let error = Client::connect(strategy(url, way)).await.unwrap_err().to_string();
            assert!(error.contains(cluster) && error.contains("strategy=lease"), "{error}");
        }
    }
    let mut last = 0;
    for turn in 0..30 {
        let guard = clients[turn % 3].mutex("key").ttl(LEASE).acquire().await.unwrap();
        assert!(guard.fence().get() > last, "fences rise over members");
        last = guard.fence().get();
        for other in [(turn + 1) % 3, (turn + 2) % 3] {
            assert!(clients[other].mutex("key").try_acquire().await.unwrap().is_none());
        }
        guard.release().await.unwrap();
    }
    let findings = clients[1].doctor().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity < Severity::Problem), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.advice.contains("clock")), "{findings:?}");
    clients
}
