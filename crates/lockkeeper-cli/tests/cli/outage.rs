//! What holders and waiters say while a server is dead, and when it is back.
//!
//! The leases are long enough that no renewal is due during these tests: every report is there because
//! the connection broke.

use std::time::Duration;

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use lockkeeper_testkit::server::{Mariadb, Postgres, etcd};

use crate::heard::Heard;
use crate::place::Place;

/// One holder whose lease is renewed, one whose lease is fixed, and those that wait for them.
fn an_outage_and_its_end_are_told(url: &str, terms: &str, kill: impl Fn(), restart: impl Fn()) {
    let place = Place::at(url);
    let start = |words: &str| Heard::start(&place, words);
    let script = "echo started >>started; exec sleep 600";
    let renewed = start(&format!("run {terms} renewed -- {script}"));
    let fixed = start(&format!("run --lease 10m fixed -- {script}"));
    place.until("renewed", 1, 0);
    place.until("fixed", 1, 0);
    let waiters = [
        start("run -w 10m renewed -- true"),
        start("elect -w 10m fixed -- true"),
        start("acquire -w 10m --pid 1 fixed"),
    ];
    place.until("renewed", 1, 1);
    place.until("fixed", 1, 2);
    kill();
    // The request fails, or waits for a connection.
    let told = renewed.says_any(&["cannot renew the lock, trying again: ", "does not answer: "]);
    let causes = ["refused", "reset", "broken pipe", "closed", "eof", "terminated", "tls", "lost"];
    let told = told.to_lowercase();
    assert!(causes.iter().any(|cause| told.contains(cause)), "no cause in {told}");
    fixed.says("does not answer: ");
    for waiter in &waiters {
        waiter.says(" to answer: ");
    }
    restart();
    renewed.says_any(&["the lock is renewed again", "answers again"]);
    fixed.says("answers again");
    for waiter in &waiters {
        waiter.says("answers again");
    }
    place.until("renewed", 1, 1);
}

#[test]
fn an_outage_of_redis_and_its_end_are_told() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (kill, restart) = (|| server.kill(), || server.restart());
    an_outage_and_its_end_are_told(&server.url(), "--ttl 10m", kill, restart);
}

#[test]
fn an_outage_of_etcd_and_its_end_are_told() {
    let servers = etcd::Servers::start(1);
    let (kill, restart) = (|| servers[0].kill(), || servers[0].restart());
    an_outage_and_its_end_are_told(&servers.url(""), "--ttl 10m", kill, restart);
}

#[test]
fn an_outage_of_postgres_and_its_end_are_told() {
    let server = Postgres::start();
    let (kill, restart) = (|| server.kill(), || server.restart());
    an_outage_and_its_end_are_told(&server.url(), "--ttl 10m", kill, restart);
}

#[test]
fn an_outage_of_mariadb_and_its_end_are_told() {
    let server = Mariadb::start();
    let (kill, restart) = (|| server.kill(), || server.restart());
    an_outage_and_its_end_are_told(&server.url(), "--ttl 10m", kill, restart);
}

/// Its sessions are shorter than that, but long enough for a restart.
#[test]
fn an_outage_of_zookeeper_and_its_end_are_told() {
    let servers = Ensemble::single();
    let url = servers.url("outage", Duration::from_secs(40));
    let (kill, restart) = (|| servers[0].kill(), || servers[0].restart());
    an_outage_and_its_end_are_told(&url, "", kill, restart);
}

/// A lock that the server holds for a connection ends with it.
#[test]
fn a_lock_that_ends_with_the_connection_is_told_at_once() {
    let server = Postgres::start();
    let url = format!("{}?strategy=advisory", server.url());
    let place = Place::at(&url);
    let holder = Heard::start(&place, "run --ttl 10m k -- exec sleep 600");
    place.until("k", 1, 0);
    server.kill();
    holder.says("the lock is lost: ");
}
