//! What programs ask: locks, details, history, blocking, metrics, events.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use lockkeeper_testkit::server::{Postgres, etcd};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::client::Page;
use crate::place::{Place, eventually};
use crate::schema::Schema;

#[test]
fn locks_of_several_engines_are_listed_and_filtered() {
    let (place, server) = (Place::new(), Server::start());
    let elsewhere = Place::at(&server.url());
    let page = Page::start(&place, &format!("{} {}", place.url(), server.url()));
    let _holder = place.start("run --note nightly team/backup -- sleep 600");
    let _other = elsewhere.start("run --fair team/deploy -- sleep 600");
    page.shows("team/backup", 1, 0);
    page.shows("team/deploy", 1, 0);
    let _waiter = place.start("run team/backup true");
    let lock = page.shows("team/backup", 1, 1);
    assert_eq!(lock["holders"][0]["note"], "nightly");
    assert_eq!(lock["trouble"], "waiting");
    assert!(
        lock["holders"][0]["pid"].is_u64() && lock["holders"][0]["since"].is_string(),
        "{lock}"
    );
    // The whole identity would be enough to enter.
    assert_eq!(lock["holders"][0]["id"].as_str().unwrap().chars().count(), 8);
    let all = page.get("/api/v1/locks").json();
    assert_eq!(all["locks"][0]["key"], "team/backup", "trouble first: {all}");
    assert_eq!((&all["strip"]["held"], &all["strip"]["waiting"]), (&2.into(), &1.into()));
    assert!(all["strip"]["smallest_slack"]["share"].as_f64().unwrap() > 0.5, "{all}");
    let host = lock["holders"][0]["host"].as_str().unwrap();
    let keys = |query: &str| {
        let answer = page.get(&format!("/api/v1/locks?{query}")).json();
        let locks = answer["locks"].as_array().unwrap().clone();
        locks.iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&format!("engine={}", place.url())), ["team/backup"]);
    assert_eq!(keys("prefix=team/d"), ["team/deploy"]);
    assert_eq!(keys(&format!("host={host}")).len(), 2);
    assert!(keys("host=nowhere").is_empty() && keys("holder=nobody-at-all").is_empty());
    assert_eq!(keys("limit=1"), ["team/backup"]);
    for (query, right) in
        [("limit=abc", "limit is a number"), ("engine=nosuch", "engine is one of ")]
    {
        let refused = page.get(&format!("/api/v1/locks?{query}"));
        assert!(refused.status == 400 && refused.body.contains(right), "{}", refused.body);
    }
}

#[test]
fn a_lock_shows_its_waiters_its_last_holders_and_who_blocked_whom() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let first = place.start("run --note one a/k -- sleep 600");
    page.shows("a/k", 1, 0);
    let second = place.start("run --note two a/k -- sleep 600");
    page.shows("a/k", 1, 1);
    let lock = page.get("/api/v1/locks/a%2Fk").json()["locks"][0].clone();
    assert_eq!(
        (&lock["holders"][0]["note"], &lock["waiters"][0]["note"]),
        (&"one".into(), &"two".into())
    );
    assert_eq!(lock["episodes"][0]["to"], Value::Null);
    let (first_pid, second_pid) = (first.pid().to_string(), second.pid().to_string());
    first.signal(Signal::SIGTERM);
    let lock = page.until("/api/v1/locks/a%2Fk", |answer| {
        let lock = answer["locks"][0].clone();
        lock["episodes"][0]["to"].is_string().then_some(lock)
    });
    assert_eq!(
        (&lock["last_holders"][0]["note"], &lock["last_holders"][0]["outcome"]),
        (&"one".into(), &"ended".into())
    );
    let timeline = lock["timeline"].as_array().unwrap();
    let span = |what: &str, outcome: &str| {
        timeline.iter().any(|span| span["what"] == what && span["outcome"] == outcome)
    };
    assert!(span("hold", "now") && span("wait", "granted") && span("hold", "ended"), "{lock}");
    let episode = &lock["episodes"][0];
    assert_eq!(episode["peak"], 1);
    assert!(episode["waiter_seconds"].as_f64().unwrap() > 0.0, "{episode}");
    let pair = &episode["blocked"][0];
    assert!(pair["holder"].as_str().unwrap().ends_with(&first_pid), "{pair}");
    assert!(pair["waiter"].as_str().unwrap().ends_with(&second_pid), "{pair}");
    second.signal(Signal::SIGTERM);
    page.until("/api/v1/history?key=a/k", |answer| {
        let of = |what: &str| {
            answer["records"].as_array().unwrap().iter().filter(|r| r["what"] == what).count()
        };
        (of("hold") == 2 && of("wait") == 1 && of("episode") == 1).then_some(())
    });
    assert_eq!(page.get("/api/v1/history?key=other").json()["records"], serde_json::json!([]));
    assert_eq!(page.get("/api/v1/history?since=yesterday").status, 400);
}

#[test]
fn a_lease_that_runs_out_is_a_loss() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let page = Page::start(&place, "");
    let holder = place.start("run --ttl 2s k -- sleep 600");
    page.shows("k", 1, 0);
    // Both the wrapper and its guardian are gone at once, and nobody renews.
    holder.signal(Signal::SIGKILL);
    let outcome = page.until("/api/v1/history?key=k", |answer| {
        answer["records"].as_array().unwrap().first().map(|record| record["outcome"].clone())
    });
    assert_eq!(outcome, "expired");
    assert_eq!(page.get("/api/v1/locks").json()["strip"]["lost_last_hour"], 1);
}

#[test]
fn a_circle_of_jobs_is_a_deadlock() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let _jobs = deadlock(&place, &page);
    let blocking = page.until("/api/v1/blocking", |answer| {
        answer["deadlocks"][0]["ring"].is_array().then(|| answer.clone())
    });
    assert_eq!(blocking["deadlocks"].as_array().unwrap().len(), 1, "{blocking}");
    let ring = blocking["deadlocks"][0]["ring"].as_array().unwrap().clone();
    let keys: Vec<_> = ring.iter().filter_map(|link| link["waits"]["key"].as_str()).collect();
    assert!(keys.len() == 2 && keys.contains(&"x") && keys.contains(&"y"), "{blocking}");
    page.until("/api/v1/locks", |answer| {
        (answer["locks"][0]["trouble"] == "deadlock").then_some(())
    });
    check(&page, "GET /api/v1/blocking", "/api/v1/blocking");
}

/// Two jobs that hold one lock each and run a job that wants the other one.
pub(crate) fn deadlock(place: &Place, page: &Page) -> Vec<crate::place::Running> {
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let job = |outer: &str, inner: &str| {
        let script = format!("while [ ! -e go ]; do sleep 0.02; done; {program} run {inner} true");
        place.start(&format!("run {outer} -- {script}"))
    };
    let jobs = vec![job("x", "y"), job("y", "x")];
    page.shows("x", 1, 0);
    page.shows("y", 1, 0);
    std::fs::write(place.path("go"), "").unwrap();
    page.shows("x", 1, 1);
    page.shows("y", 1, 1);
    jobs
}

#[test]
fn answers_are_as_the_schema_says() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let page = Page::start(&place, "");
    let holder = place.start("run --fair k -- sleep 600");
    page.shows("k", 1, 0);
    let waiter = place.start("run --fair k -- sleep 600");
    page.shows("k", 1, 1);
    let _semaphore = place.start("run --limit 3 s -- sleep 600");
    page.shows("s", 1, 0);
    check(&page, "GET /api/v1/locks/{key}", "/api/v1/locks/k");
    holder.signal(Signal::SIGTERM);
    page.shows("k", 1, 0);
    waiter.signal(Signal::SIGTERM);
    page.until("/api/v1/history", |answer| answer["records"].get(2).map(|_| ()));
    for (definition, path) in [
        ("GET /api/v1/locks", "/api/v1/locks"),
        ("GET /api/v1/locks/{key}", "/api/v1/locks/k"),
        ("GET /api/v1/locks/{key}", "/api/v1/locks/s"),
        ("GET /api/v1/history", "/api/v1/history"),
        ("GET /api/v1/blocking", "/api/v1/blocking"),
        ("error", "/api/v1/nothing"),
    ] {
        check(&page, definition, path);
    }
}

#[track_caller]
fn check(page: &Page, definition: &str, path: &str) {
    let schema = Schema::new(page.get("/api/v1/schema.json").json());
    schema.check(definition, &page.get(path).json());
}

#[test]
fn metrics_have_keys_only_on_request() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let _holder = place.start("run secret-project -- sleep 600");
    page.shows("secret-project", 1, 0);
    let plain = page.get("/metrics");
    let held = format!("lockkeeper_locks_held{{engine=\"{}\"}} 1\n", place.url());
    assert!(plain.body.contains(&held), "{}", plain.body);
    assert!(plain.body.contains("# TYPE lockkeeper_looks_total counter\n"), "{}", plain.body);
    assert!(!plain.body.contains("secret-project"), "{}", plain.body);
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let keys = page.get("/metrics?keys=1").body;
    assert!(keys.contains("key=\"secret-project\"} 1\n"), "{keys}");
    for line in keys.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn the_history_survives_a_restart() {
    let place = Place::new();
    let page = Page::start(&place, "--record history.jsonl");
    place
        .start("ui --listen 127.0.0.1:0 --record history.jsonl")
        .end()
        .exits(64)
        .says("name another");
    let holder = place.start("run --note before k -- sleep 600");
    page.shows("k", 1, 0);
    holder.signal(Signal::SIGTERM);
    page.until("/api/v1/history", |answer| answer["records"].get(0).map(|_| ()));
    drop(page);
    let page = Page::start(&place, "--record history.jsonl");
    let records = page.get("/api/v1/history").json()["records"].clone();
    assert_eq!(records[0]["note"], "before");
    let lock = page.get("/api/v1/locks/k").json()["locks"][0].clone();
    assert_eq!(lock["last_holders"][0]["note"], "before");
}

#[test]
fn an_engine_that_is_down_does_not_hide_the_others() {
    let (place, server) = (Place::new(), Server::start());
    server.kill();
    let page = Page::start(&place, &format!("{} {}", place.url(), server.url()));
    let _holder = place.start("run k -- sleep 600");
    page.shows("k", 1, 0);
    let error = |answer: &Value| answer["engines"][1]["error"].as_str().map(str::to_owned);
    page.until("/api/v1/locks", error);
    let metrics = page.get("/metrics").body;
    assert!(metrics.contains("lockkeeper_engine_up") && metrics.contains("\"} 0\n"), "{metrics}");
    server.restart();
    page.until("/api/v1/locks", |answer| error(answer).is_none().then_some(()));
}

/// A poll that fails slowly does not put off the next one.
#[test]
fn an_engine_that_hung_is_back_soon() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let page = Page::start(&place, "");
    let error = |answer: &Value| answer["engines"][0]["error"].as_str().map(str::to_owned);
    page.until("/api/v1/locks", |answer| answer["engines"][0]["looked"].is_string().then_some(()));
    server.pause();
    page.until("/api/v1/locks", error);
    server.resume();
    let resumed = Instant::now();
    page.until("/api/v1/locks", |answer| error(answer).is_none().then_some(()));
    assert!(resumed.elapsed() < Duration::from_secs(15), "{:?}", resumed.elapsed());
}

/// What was seen last of an engine that does not answer is marked, and no figure is made of it.
#[test]
fn locks_of_an_engine_that_fell_silent_are_stale() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let page = Page::start(&place, "");
    let _holder = place.start("run k -- sleep 600");
    let lock = page.shows("k", 1, 0);
    assert_eq!(lock["stale"], false);
    assert!(page.get("/metrics?keys=1").body.contains("lockkeeper_smallest_slack"));
    server.kill();
    let all = page.until("/api/v1/locks", |answer| {
        answer["engines"][0]["error"].is_string().then(|| answer.clone())
    });
    assert_eq!(all["locks"][0]["stale"], true, "{all}");
    let strip = &all["strip"];
    assert_eq!((&strip["held"], &strip["silent"]), (&0.into(), &1.into()), "{all}");
    assert_eq!(strip["smallest_slack"], Value::Null, "{all}");
    let metrics = page.get("/metrics?keys=1").body;
    for absent in ["lockkeeper_smallest_slack ", "key=\"k\""] {
        assert!(!metrics.contains(absent), "{metrics}");
    }
    check(&page, "GET /api/v1/locks", "/api/v1/locks");
}

#[test]
fn a_hold_that_ends_while_nobody_records_is_unknown() {
    let place = Place::new();
    let page = Page::start(&place, "--record history.jsonl");
    let ends = place.start("run --note ends k -- sleep 600");
    let _lasts = place.start("run --note lasts l -- sleep 600");
    page.shows("k", 1, 0);
    page.shows("l", 1, 0);
    drop(page);
    ends.signal(Signal::SIGTERM);
    ends.end().exits(143);
    let page = Page::start(&place, "--record history.jsonl");
    let records = page.until("/api/v1/history", |answer| {
        answer["records"].get(0).map(|_| answer["records"].clone())
    });
    assert_eq!(records.as_array().unwrap().len(), 1, "{records}");
    let told = (&records[0]["note"], &records[0]["outcome"]);
    assert_eq!(told, (&"ends".into(), &"unknown".into()));
}

/// Redis by its channels, etcd and ZooKeeper by watches, PostgreSQL by `LISTEN`; and however many
/// browsers there are.
#[test]
fn an_engine_that_pushes_is_looked_at_every_two_seconds_at_most() {
    let (place, redis, postgres) = (Place::new(), Server::start(), Postgres::start());
    let (etcd, zookeeper) =
        (etcd::Servers::start(1), Ensemble::ticking(Duration::from_millis(500)));
    let pushing = [
        redis.url(),
        postgres.url(),
        etcd.url(""),
        zookeeper.url("locks", Duration::from_secs(10)),
    ];
    let started = Instant::now();
    let page = Page::start(&place, &format!("{} {}", place.url(), pushing.join(" ")));
    let _browsers: Vec<_> = (0..20).map(|_| events(&page)).collect();
    // The counts come first, so that they are not of a later time than the clock.
    let (looks, elapsed) = eventually("several looks at every engine", || {
        // Requests are limited, too.
        std::thread::sleep(Duration::from_millis(100));
        let metrics = page.get("/metrics").body;
        let counts = metrics.lines().filter_map(|line| {
            let count = line.strip_prefix("lockkeeper_looks_total{")?.rsplit(' ').next()?;
            count.parse::<u64>().ok()
        });
        let looks: Vec<_> = counts.collect();
        let enough = looks.len() == 5 && looks.iter().all(|looks| *looks >= 3);
        enough.then(|| (looks, started.elapsed()))
    });
    let most = elapsed.as_secs() / 2 + 1;
    assert!(looks[1..].iter().all(|looks| *looks <= most), "{looks:?} in {elapsed:?}");
    assert!(looks[0] > most, "a file is looked at as often as was asked for: {looks:?}");
}

#[test]
fn engines_are_named_in_the_configuration() {
    let place = Place::new();
    let config = format!(
        "[engines]\nmain = \"{}\"\nother = \"file://{}\"\n",
        place.url(),
        place.path("other").display()
    );
    std::fs::write(place.path("config.toml"), config).unwrap();
    let start = |words: &str| {
        let mut command = place.lockkeeper(&format!("ui --listen 127.0.0.1:0 {words}"));
        command.env("LOCKKEEPER_CONFIG", place.path("config.toml"));
        Page::from(command)
    };
    let names = |page: &Page| {
        let engines = page.get("/api/v1/locks").json()["engines"].as_array().unwrap().clone();
        engines.iter().map(|engine| engine["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&start("")), ["main", "other"]);
    assert_eq!(names(&start("other")), ["other"]);
}

#[test]
fn events_tell_everything_first_and_then_what_changes() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let _holder = place.start("run k -- sleep 600");
    page.shows("k", 1, 0);
    let lines = BufReader::new(events(&page)).lines();
    let mut messages = lines
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let first = messages.next().unwrap();
    assert_eq!((&first["all"], &first["locks"][0]["key"]), (&true.into(), &"k".into()));
    let _other = place.start("run other -- sleep 600");
    let change = messages.find(|message| message["locks"].get(0).is_some()).unwrap();
    assert_eq!(change["all"], false);
    let keys: Vec<_> =
        change["locks"].as_array().unwrap().iter().map(|lock| lock["key"].clone()).collect();
    assert_eq!(keys, ["other"], "what did not change is not sent again");
    let browsers = page.get("/metrics").body;
    assert!(browsers.contains("lockkeeper_ui_browsers 1\n"), "{browsers}");
}

/// What a browser listens to.
fn events(page: &Page) -> TcpStream {
    let mut stream = TcpStream::connect(page.address).unwrap();
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", page.address).unwrap();
    stream
}
