//! Yield and break from the page, and what is written down of them.

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use serde_json::{Value, json};

use crate::client::{Page, Reply};
use crate::place::Place;

/// What the audit file has, line by line.
pub(crate) fn audit(place: &Place) -> Vec<Value> {
    let text = std::fs::read_to_string(place.path("audit")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn post(page: &Page, path: &str, body: Value) -> Reply {
    let bearer = page.bearer();
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    page.send("POST", path, &headers, &body.to_string())
}

#[test]
fn nothing_is_changed_unless_it_is_allowed() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let _holder = place.start("run k -- sleep 600");
    page.shows("k", 1, 0);
    let order = json!({"engine": place.url(), "key": "k", "confirm": "k", "why": "x"}).to_string();
    for path in ["/api/v1/break", "/api/v1/yield"] {
        let reply = page.send("POST", path, &[("Content-Type", "application/json")], &order);
        assert_eq!(reply.status, 403);
        assert!(reply.body.contains("--allow-changes"), "{}", reply.body);
        assert_eq!(page.get(path).status, 405);
    }
    page.shows("k", 1, 0);
    place.run("ui --audit audit").exits(64).says("--allow-changes");
}

#[test]
fn a_break_needs_the_key_and_a_reason_and_is_written_down() {
    let place = Place::new();
    let page = Page::start(&place, "--allow-changes --audit audit");
    let holder = place.start("run k -- sleep 600");
    place.until("k", 1, 0);
    let engine = place.url();
    for (order, right) in [
        (json!({"engine": engine, "key": "k", "confirm": "K", "why": "x"}), "type the key"),
        (json!({"engine": engine, "key": "k", "why": "x"}), "type the key"),
        (json!({"engine": engine, "key": "k", "confirm": "k", "why": "  "}), "give a reason"),
        (json!({"engine": "other", "key": "k", "confirm": "k", "why": "x"}), "no such engine"),
        (json!({"key": "k"}), "missing field"),
        (
            json!({"engine": engine, "key": "k", "confirm": "k", "why": "x", "z": 1}),
            "unknown field",
        ),
    ] {
        let reply = post(&page, "/api/v1/break", order);
        assert_eq!(reply.status, 400);
        assert!(reply.body.contains(right), "no {right:?} in {}", reply.body);
    }
    assert!(audit(&place).is_empty());
    place.until("k", 1, 0);
    let order = json!({
        "engine": engine, "key": "k", "confirm": "k", "who": "ann", "why": "host backup-3 is gone",
    });
    // Seen by the page before, so that its end can be told from a release.
    page.shows("k", 1, 0);
    let reply = post(&page, "/api/v1/break", order);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["holders"].as_array().unwrap().len(), 1);
    holder.end().exits(79);
    let lines = audit(&place);
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!(
            (&line["who"], &line["what"], &line["key"]),
            (&"ann".into(), &"break".into(), &"k".into())
        );
        assert_eq!(line["why"], "host backup-3 is gone");
        assert!(
            line["when"].is_string() && line["from"].as_str().unwrap().starts_with("127.0.0.1:")
        );
    }
    assert_eq!(lines[0]["outcome"], "begun");
    assert_eq!(lines[1]["outcome"]["holders"][0]["kind"], "mutex");
    page.until("/api/v1/history", |answer| {
        let records = answer["records"].as_array().unwrap();
        let broken = records.iter().find(|record| record["outcome"] == "broken")?;
        assert_eq!(broken["why"], "host backup-3 is gone (ann)");
        Some(())
    });
}

#[test]
fn nothing_is_broken_that_cannot_be_written_down() {
    let place = Place::new();
    let page = Page::start(&place, "--allow-changes --audit /dev/full");
    let _holder = place.start("run k -- sleep 600");
    place.until("k", 1, 0);
    let order = json!({"engine": place.url(), "key": "k", "confirm": "k", "why": "x"});
    let reply = post(&page, "/api/v1/break", order);
    assert_eq!(reply.status, 500);
    assert!(reply.body.contains("audit file cannot be written"), "{}", reply.body);
    place.until("k", 1, 0);
    place.run("ui --allow-changes --audit /proc/none/x").exits(125).says("open the audit file");
}

#[test]
fn a_holder_is_asked_to_yield_where_the_engine_can() {
    let servers = Ensemble::single();
    let place = Place::at(&servers.url("page", std::time::Duration::from_secs(20)));
    let page = Page::start(&place, "--allow-changes --audit audit");
    let holder = place.start("run k -- sleep 600");
    place.until("k", 1, 0);
    let engine = engine_name(&page);
    let reply = post(&page, "/api/v1/yield", json!({"engine": engine, "key": "k", "who": "ann"}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    holder.end().exits(143);
    assert_eq!(audit(&place)[1]["outcome"]["holders"].as_array().unwrap().len(), 1);
}

#[test]
fn a_holder_that_does_not_listen_is_not_asked() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let page = Page::start(&place, "--allow-changes --audit audit");
    // As Redisson writes it.
    server.ask(&["HSET", "k", "0d1c0000-0000-4000-8000-000000000000:57", "1"]);
    server.ask(&["PEXPIRE", "k", "600000"]);
    let engine = engine_name(&page);
    let reply = post(&page, "/api/v1/yield", json!({"engine": engine, "key": "k"}));
    assert_eq!(reply.status, 501);
    assert!(reply.body.contains("break the lock instead"), "{}", reply.body);
    assert!(audit(&place)[1]["outcome"]["error"].is_string());
}

/// The name of the only engine.
fn engine_name(page: &Page) -> String {
    page.get("/api/v1/locks").json()["engines"][0]["name"].as_str().unwrap().to_owned()
}
