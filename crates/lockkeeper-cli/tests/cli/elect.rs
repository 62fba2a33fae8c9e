//! Elections as the command holds them.

use std::fs;

use lockkeeper_testkit::server::etcd;
use lockkeeper_testkit::server::redis::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::heard::{Heard, lines};
use crate::place::{Place, eventually};

/// The leader loses its lease and stands again, the other candidate goes on waiting, and the
/// observer sees both ends of the outage.
fn an_outage_ends_no_candidacy(url: &str, stop: impl Fn(), start: impl Fn()) {
    let place = Place::at(url);
    let candidate = |name: &str| {
        let script = format!("echo $LOCKKEEPER_FENCE >> {name}; exec sleep 600");
        Heard::start(&place, &format!("elect --ttl 2s lead -- {script}"))
    };
    let mut candidates = vec![candidate("a")];
    place.content("a");
    candidates.push(candidate("b"));
    place.until("lead", 1, 1);
    let mut observer = Heard::start(&place, "elect lead --observe --interval 100ms");
    let seen = lines(observer.child.stdout.take().unwrap());
    assert!(seen.recv().unwrap().contains("leads, term"));

    stop();
    observer.says("; trying again");
    for candidate in &candidates {
        candidate.says("to answer: ");
    }
    start();
    observer.says("the engine answers again");
    for candidate in &candidates {
        candidate.says("answers again");
    }
    eventually("another term", || {
        let terms = |name| fs::read_to_string(place.path(name)).unwrap_or_default();
        ((terms("a") + &terms("b")).lines().count() > 1).then_some(())
    });
    place.until("lead", 1, 1);
    for mut candidate in candidates {
        assert_eq!(candidate.child.try_wait().unwrap(), None);
        kill(Pid::from_raw(candidate.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert_eq!(candidate.child.wait().unwrap().code(), Some(143));
    }
}

#[test]
fn an_outage_of_redis_ends_no_candidacy() {
    let server = Server::start();
    an_outage_ends_no_candidacy(&server.url(), || server.kill(), || server.restart());
}

#[test]
fn an_outage_of_etcd_ends_no_candidacy() {
    let servers = etcd::Servers::start(1);
    let (stop, start) = (|| servers[0].kill(), || servers[0].restart());
    an_outage_ends_no_candidacy(&servers.url(""), stop, start);
}

#[test]
fn a_candidacy_ends_with_its_wait() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let leader = place.start("elect lead -- sleep 600");
    place.until("lead", 1, 0);
    place.run("elect -w 0 lead true").exits(75).says("is busy; held by ");
    place.run("elect -w 1 lead true").exits(75).says("was still busy after 1s");
    server.kill();
    place.run("elect -w 1 lead true").exits(69).says("the wait is over (--wait)");
    drop(leader);
}

/// A wrong URL or missing rights are not cured by time.
#[test]
fn a_candidate_does_not_wait_for_what_does_not_change() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "default", "off"]);
    Place::at(&server.url()).run("elect lead true").exits(69);
}
