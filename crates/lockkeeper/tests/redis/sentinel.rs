//! What happens to locks when sentinels replace the master, as planned or after a crash.

use std::time::{Duration, Instant};

use lockkeeper::{Error, Release};
use lockkeeper_testkit::server::eventually;
use lockkeeper_testkit::server::redis::{Sentinels, Server};
use tokio::time::timeout;

use crate::load::{Load, SOON, acquire, connect, through_trouble};

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_failover_under_load_does_not_hurt_what_is_fenced() {
    let sentinels = Sentinels::start();
    let load = Load::start(&sentinels.url(), 3, 3).await;
    let client = connect(&sentinels.url()).await;
    for round in 0..3 {
        load.cycles(100, SOON).await;
        let held = client.mutex("held").ttl(Duration::from_secs(4)).acquire().await.unwrap();
        let master = sentinels.master();
        let before = master.port();
        match round {
            0 => master.kill(),
            1 => master.pause(),
            _ => drop(sentinels.sentinels[0].ask(&["SENTINEL", "FAILOVER", "main"])),
        }
        eventually("another server is the master", || {
            let now = sentinels.master().port();
            (now != before).then_some(()).ok_or(format!("still {now}"))
        });
        // Either it was taken over, or its holder is signalled; it is never silently created again.
        if let Err(error) = held.check() {
            assert!(matches!(error, Error::Lost { .. }), "{error}");
        }
        drop(held);
        load.cycles(100, SOON).await;
        let old = sentinels.servers.iter().find(|s| s.port() == before).unwrap();
        match round {
            0 => old.restart(),
            1 => old.resume(),
            _ => {}
        }
        both_follow(&sentinels);
    }
    load.judge().await;
}

/// Returns when the master has both of its replicas.
fn both_follow(sentinels: &Sentinels) {
    eventually("both replicas follow", || {
        let info = sentinels.master().ask(&["INFO", "replication"]);
        (info.matches("state=online").count() == 2).then_some(()).ok_or(info)
    });
}

/// Promotes another server, although nothing is wrong; returns when the sentinel that does it names
/// the new one.
fn fail_over(sentinels: &Sentinels) {
    both_follow(sentinels);
    let before = sentinels.master().port();
    eventually("the failover begins", || {
        let answer = sentinels.sentinels[0].ask(&["SENTINEL", "FAILOVER", "main"]);
        (answer == "OK").then_some(()).ok_or(answer)
    });
    eventually("another server is the master", || {
        let now = sentinels.master().port();
        (now != before).then_some(()).ok_or(format!("still {now}"))
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_leaves_no_client_at_the_old_master() {
    let sentinels = Sentinels::start();
    let old = connect(&sentinels.url()).await;
    let ttl = Duration::from_secs(6);
    let held = old.mutex("held").ttl(ttl).acquire().await.unwrap();
    let master = sentinels.master();
    fail_over(&sentinels);
    let new = connect(&sentinels.url()).await;
    for n in 0..20 {
        let (first, second) = if n % 2 == 0 { (&old, &new) } else { (&new, &old) };
        let guard = first.mutex("key").acquire().await.unwrap();
        let other = second.mutex("key").try_acquire().await.unwrap();
        assert!(other.is_none(), "two holders in round {n}");
        let fence = guard.fence();
        guard.release().await.unwrap();
        let next = second.mutex("key").acquire().await.unwrap();
        assert!(next.fence() > fence, "{} after {fence} in round {n}", next.fence());
        next.release().await.unwrap();
    }
    assert!(new.mutex("held").try_acquire().await.unwrap().is_none(), "it was carried over");
    assert!(timeout(ttl, held.lost()).await.is_err(), "it is renewed where it is now");
    // All this happened while the old master still considered itself the master.
    eventually("the old master is a replica", || {
        let role = master.ask(&["ROLE"]);
        role.starts_with("slave").then_some(()).ok_or(role)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn planned_failovers_under_load_make_no_two_holders() {
    let sentinels = Sentinels::start();
    let mut load = Load::start(&sentinels.url(), 2, 3).await;
    for _ in 0..3 {
        load.cycles(100, SOON).await;
        fail_over(&sentinels);
        load.join(&sentinels.url(), 1, 3).await;
        load.cycles(100, SOON).await;
    }
    assert_eq!(load.judge().await, 0);
}

/// From now on the replicas receive nothing from their master, and what it accepts is lost with it.
fn cut_off(sentinels: &Sentinels) -> &Server {
    let master = sentinels.master();
    let replicas = sentinels.servers.iter().filter(|server| server.port() != master.port());
    replicas.for_each(|server| server.pause());
    master.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    master
}

/// Kills a master whose replicas were cut off; returns when one of them is the master.
fn crash(sentinels: &Sentinels, master: &Server) {
    master.kill();
    sentinels.servers.iter().for_each(|server| server.resume());
    eventually("another server is the master", || {
        let now = sentinels.master().port();
        (now != master.port()).then_some(()).ok_or(format!("still {now}"))
    });
}

/// Readers carry the fence of the last writer. If a failover lost that writer, they get a later
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn readers_are_not_behind_a_writer_that_a_failover_lost() {
    let sentinels = Sentinels::start();
    let (client, other) = (connect(&sentinels.url()).await, connect(&sentinels.url()).await);
    for key in ["free", "read"] {
        client.write(key).acquire().await.unwrap().release().await.unwrap();
    }
    // The replicas do not learn of its release.
    let reader = client.read("read").acquire().await.unwrap();
    eventually("the replicas have it", || {
        let behind = sentinels.master().ask(&["WAIT", "2", "100"]);
        (behind == "2").then_some(()).ok_or(behind)
    });
    let master = cut_off(&sentinels);
    reader.release().await.unwrap();
    let mut lost = Vec::new();
    for key in ["free", "read"] {
        let writer = client.write(key).acquire().await.unwrap();
        lost.push((key, writer.fence()));
        writer.release().await.unwrap();
    }
    crash(&sentinels, master);
    for (key, fence) in lost {
        let first = through_trouble(client.read(key)).await;
        let second = through_trouble(other.read(key)).await;
        assert!(first.fence() > fence, "{key}: {} after {fence}", first.fence());
        assert_eq!(first.fence(), second.fence(), "{key}: they read together");
    }
}

/// A release that is lost with the master leaves the lock until its lease ends, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_crash_swallowed_costs_no_more_than_the_lease() {
    let sentinels = Sentinels::start();
    let (client, other) = (connect(&sentinels.url()).await, connect(&sentinels.url()).await);
    let ttl = Duration::from_secs(12);
    let mut guards = vec![
        ("mutex", client.mutex("mutex").ttl(ttl).acquire().await.unwrap()),
        ("fair", client.mutex("fair").fair().ttl(ttl).acquire().await.unwrap()),
        ("write", client.write("write").ttl(ttl).acquire().await.unwrap()),
        ("permits", client.semaphore("permits", 1).ttl(ttl).acquire().await.unwrap()),
    ];
    eventually("the replicas have them", || {
        let behind = sentinels.master().ask(&["WAIT", "2", "100"]);
        (behind == "2").then_some(()).ok_or(behind)
    });
    let master = cut_off(&sentinels);
    let released = Instant::now();
    for (key, guard) in guards.drain(..) {
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{key}");
    }
    crash(&sentinels, master);
    let held = other.mutex("mutex").try_acquire().await.unwrap();
    assert!(held.is_none(), "the new master does not know that it was released");
    let limit = ttl + Duration::from_secs(5);
    for lock in [
        other.mutex("mutex"),
        other.mutex("fair").fair(),
        other.write("write"),
        other.semaphore("permits", 1),
    ] {
        let left = limit.saturating_sub(released.elapsed());
        lock.acquire_within(left).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_do_not_answer_do_not_matter_while_one_does() {
    let sentinels = Sentinels::start();
    let url = sentinels.url();
    let holder = connect(&url).await;
    let ttl = Duration::from_secs(6);
    let held = holder.mutex("held").ttl(ttl).acquire().await.unwrap();
    for stopped in 0..2 {
        sentinels.sentinels[stopped].pause();
        let started = Instant::now();
        let client = connect(&url).await;
        client.mutex("key").acquire().await.unwrap().release().await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        sentinels.servers[0].ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert!(timeout(ttl, held.lost()).await.is_err(), "with {stopped} and one more stopped");
    }
    sentinels.sentinels.iter().for_each(|sentinel| sentinel.resume());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_replicas_waited_for_a_crash_makes_no_two_holders() {
    let sentinels = Sentinels::start();
    let load = Load::start(&(sentinels.url() + "?wait_replicas=2"), 2, 2).await;
    load.cycles(50, SOON).await;
    let master = sentinels.master();
    let before = master.port();
    master.kill();
    eventually("another server is the master", || {
        let now = sentinels.master().port();
        (now != before).then_some(()).ok_or(format!("still {now}"))
    });
    // With one replica left, nothing can be acquired; a second one ends that.
    sentinels.servers.iter().find(|s| s.port() == before).unwrap().restart();
    both_follow(&sentinels);
    load.cycles(50, SOON).await;
    assert_eq!(load.judge().await, 0);
}

/// Sentinels that name a replica, as after failovers in quick succession, correct themselves when
/// the named server has called itself a replica for `down-after-milliseconds` and two of their
/// `INFO` periods of 10 s. Nothing may be granted meanwhile: what a replica grants is lost.
#[tokio::test(flavor = "multi_thread")]
async fn while_sentinels_name_a_replica_acquires_wait() {
    let sentinels = Sentinels::start();
    let client = connect(&sentinels.url()).await;
    acquire(&client, "key").await.release().await.unwrap();
    let (named, other) = (sentinels.master(), &sentinels.servers[1]);
    assert_ne!(named.port(), other.port());
    assert_eq!(named.ask(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]), "OK");
    let refused = client.mutex("key").try_acquire().await;
    assert!(refused.as_ref().is_err_and(Error::is_retryable), "{refused:?}");
    let limit = Instant::now() + Duration::from_secs(60);
    let guard = loop {
        match client.mutex("key").acquire_within(SOON).await {
            Ok(guard) => break guard,
            Err(error) => assert!(Instant::now() < limit, "{error}"),
        }
    };
    assert_ne!(sentinels.master().port(), named.port());
    guard.release().await.unwrap();
}
