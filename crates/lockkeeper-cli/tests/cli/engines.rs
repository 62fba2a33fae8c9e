//! The command with real servers: their settings, their users, and foreign data.

use std::time::{Duration, Instant};

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::{Mariadb, Pgbouncer, Postgres};
use serde_json::Value;

use crate::place::{Place, eventually};

#[test]
fn a_lock_that_redisson_made_is_listed() {
    let server = Server::start();
    let place = Place::at(&server.url());
    server.ask(&["HSET", "job", "4f9b8d3e-7a55-4c0e-9f43-0d1b2c3a4e5f:42", "1"]);
    server.ask(&["PEXPIRE", "job", "60000"]);
    place.run("show job").exits(0);
    let listed = place.run("ls").exits(0).stdout;
    assert!(listed.lines().any(|line| line.starts_with("job ")), "{listed}");
}

#[test]
fn a_fair_waiter_is_as_old_as_its_wait() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let _holder = place.start("run --fair k -- sleep 60");
    place.until("k", 1, 0);
    let _waiter = place.start("run --fair k true");
    place.until("k", 1, 1);
    let queued = Instant::now();
    // It polls meanwhile, which does not make it younger.
    eventually("an age of more than three seconds", || {
        let waited = queued.elapsed().as_secs_f64();
        let shown = place.run("show --json k").exits(0).stdout;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let age = shown["waiters"][0]["age"].as_f64().unwrap();
        assert!(age >= waited - 0.1, "{age} s after {waited} s");
        (age > 3.2).then_some(())
    });
}

/// It assigns a connection to a session by default, and refuses unknown parameters.
#[test]
fn a_pooler_is_used_as_it_is_installed() {
    let server = Postgres::start();
    let pooler = Pgbouncer::start(&server, "");
    let place = Place::at(&pooler.through(&server, &server.url()));
    place.run("run k true").exits(0);
    place.run("doctor").exits(0);
}

#[test]
fn the_doctor_tells_a_replica_once() {
    let master = Server::start();
    let url = master.url();
    let port = url.rsplit(':').next().unwrap().trim_end_matches('/');
    let replica = Server::with(&["--replicaof", "127.0.0.1", port]);
    let place = Place::at(&replica.url());
    let told = place.run("doctor").exits(1).stdout;
    let problems: Vec<_> = told.lines().filter(|line| line.starts_with("problem: ")).collect();
    assert_eq!(problems.len(), 1, "{told}");
    assert!(told.contains("this is a replica, which takes no writes: name the master"), "{told}");
}

#[test]
fn the_doctor_warns_of_the_second_that_everysec_may_lose() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let told = Place::at(&server.url()).run("doctor").exits(0).stdout;
    let warned = told.lines().any(|l| l.starts_with("warning: ") && l.contains("everysec"));
    assert!(warned && told.contains("locks of the last second"), "{told}");
}

#[test]
fn limits_of_a_database_end_neither_a_wait_nor_a_release() {
    let server = Mariadb::with(&["max-statement-time=1", "wait-timeout=2"]);
    let url = server.url();
    for strategy in ["lease", "named", "row"] {
        let place = Place::at(&format!("{url}?strategy={strategy}"));
        let holder = place.start("run k -- echo > started; sleep 4");
        place.content("started");
        let waiter = place.start("run -w 20 k true");
        assert_eq!(holder.end().exits(0).stderr, "", "{strategy}");
        let waited = waiter.end().exits(0).says("waiting for lock \"k\"");
        assert_eq!(waited.stderr.lines().count(), 1, "{strategy}: {}", waited.stderr);
    }
}

/// A command inside has the password from the same variable, and needs the user that belongs to it.
#[test]
fn a_command_inside_reaches_the_engine_as_the_same_user() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "app", "on", ">canary", "~*", "&*", "+@all"]);
    server.ask(&["ACL", "SETUSER", "default", "off"]);
    let place = Place::at(&server.url().replace("://", "://app@"));
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let run = |password: &str| {
        let words = format!("run k -- echo $LOCKKEEPER_URL; {lockkeeper} show --json k");
        let done = place.lockkeeper(&words).env("LOCKKEEPER_PASSWORD", password).output().unwrap();
        let said = [done.stdout, done.stderr].map(|said| String::from_utf8(said).unwrap());
        (done.status.code(), said)
    };
    let (code, [printed, said]) = run("canary");
    assert_eq!((code, &*said), (Some(0), ""), "{printed}");
    let (url, shown) = printed.split_once('\n').unwrap();
    assert_eq!(url, place.url(), "its password stays out");
    let shown: Value = serde_json::from_str(shown).unwrap();
    assert_eq!(shown["holders"].as_array().unwrap().len(), 1);
    let (code, [_, said]) = run("wrong-canary");
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("refuses user \"app\"") && !said.contains("canary"), "{said}");
}

/// Time to live goes on while a mark waits for its slot to be over, and an operator wants to see it.
#[test]
fn the_mark_of_a_slot_shows_what_is_left_of_it() {
    let servers = lockkeeper_testkit::server::etcd::Servers::start(1);
    let place = Place::at(&servers.url(""));
    place.run("run --once-per 1h k true").exits(0);
    let listed: Value = serde_json::from_str(&place.run("ls --json").exits(0).stdout).unwrap();
    let mark = &listed[0];
    assert!(mark["key"].as_str().unwrap().starts_with("k#once-per/"), "{listed}");
    let left = Duration::from_secs_f64(mark["holders"][0]["lease_left"].as_f64().unwrap());
    assert!(left <= Duration::from_secs(3660), "{left:?}");
}

/// A mistyped name of a database leaves no debris.
#[test]
fn looking_at_a_database_creates_no_tables() {
    let server = Postgres::start();
    let url = server.url();
    let place = Place::at(&url);
    let tables = || {
        let count = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
        server.sql(url.rsplit('/').next().unwrap(), count)
    };
    place.run("ls").exits(0).says("no locks in use");
    place.run("show k").exits(1).prints("nobody holds it");
    place.run("break -y --why test k").exits(0);
    let told = place.run("doctor").exits(0).stdout;
    assert!(told.contains("this database has no tables") && !told.contains("later"), "{told}");
    assert_eq!(tables(), "0");
    place.run("run k true").exits(0);
    assert_ne!(tables(), "0");
    assert!(!place.run("doctor").exits(0).stdout.contains("no tables"));
}
