//! Who may ask, and how much: attacks that a page on loopback is open to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::client::{Page, read};
use crate::place::Place;

const TOKEN: &str = "a-token-of-the-operators";

/// Everything that has data or changes something.
const PATHS: [&str; 6] = [
    "/api/v1/locks",
    "/api/v1/locks/k",
    "/api/v1/history",
    "/api/v1/blocking",
    "/api/v1/about",
    "/metrics",
];

#[test]
fn a_name_that_was_pointed_at_loopback_is_refused() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let port = page.address.port();
    for path in PATHS.iter().chain(&["/", "/app.js", "/api/v1/events"]) {
        for host in ["evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example"] {
            let reply = page.send("GET", path, &[("Host", host)], "");
            assert_eq!(reply.status, 421, "{path} {host}");
            assert!(!reply.body.contains("locks\""), "{}", reply.body);
        }
    }
    for host in ["localhost", &format!("localhost:{port}"), "127.0.0.1:9", "[::1]:7717"] {
        assert_eq!(page.send("GET", "/", &[("Host", host)], "").status, 200, "{host}");
    }
    let mut stream = TcpStream::connect(page.address).unwrap();
    write!(stream, "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(read(stream).status, 421);
    let named = Page::start(&place, "--host Locks.example");
    assert_eq!(named.send("GET", "/", &[("Host", "locks.example")], "").status, 200);
}

#[test]
fn another_page_can_neither_read_nor_change() {
    let place = Place::new();
    let page = Page::start(&place, "--allow-changes --audit audit");
    let _holder = place.start("run k -- sleep 600");
    let bearer = page.bearer();
    let token = ("Authorization", bearer.as_str());
    let json = ("Content-Type", "application/json");
    let order = format!(r#"{{"engine":"{}","key":"k","confirm":"k","why":"evil"}}"#, place.url());
    place.until("k", 1, 0);
    let post =
        |headers: &[(&str, &str)]| page.send("POST", "/api/v1/break", headers, &order).status;
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        assert_eq!(post(&[token, json, ("Origin", origin)]), 403, "{origin}");
        let read = page.send("GET", "/api/v1/locks", &[token, ("Origin", origin)], "");
        assert_eq!(read.status, 403);
        assert_eq!(read.header("access-control-allow-origin"), None);
        let preflight = page.send("OPTIONS", "/api/v1/break", &[("Origin", origin)], "");
        assert!(
            preflight.status >= 400 && preflight.header("access-control-allow-origin").is_none()
        );
    }
    assert_eq!(post(&[token, json, ("Sec-Fetch-Site", "cross-site")]), 403);
    // What a form can send: no JSON, no header of ours.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        assert_eq!(post(&[token, ("Content-Type", kind)]), 415, "{kind}");
    }
    assert_eq!(post(&[json]), 401);
    place.until("k", 1, 0);
    assert_eq!(std::fs::read_to_string(place.path("audit")).unwrap(), "");
    let ours = format!("http://{}", page.address);
    assert_eq!(post(&[token, json, ("Origin", &ours), ("Sec-Fetch-Site", "same-origin")]), 200);
}

#[test]
fn without_the_token_there_is_no_data() {
    let place = Place::new();
    std::fs::write(place.path("token"), format!("{TOKEN}\n")).unwrap();
    let page = Page::start(&place, "--token-file token");
    assert!(!page.link.contains(TOKEN));
    for path in PATHS.iter().chain(&["/api/v1/events", "/api/v1/schema.json"]) {
        for given in ["", "Bearer", "Bearer wrong", &format!("Bearer {TOKEN}x"), &TOKEN[1..]] {
            let reply = page.send("GET", path, &[("Authorization", given)], "");
            assert_eq!(reply.status, 401, "{path} {given}");
        }
        if *path != "/api/v1/events" {
            let bearer = format!("Bearer {TOKEN}");
            assert_eq!(page.send("GET", path, &[("Authorization", &bearer)], "").status, 200);
        }
    }
    // The page itself is no secret; it asks for the token.
    assert_eq!(page.get("/").status, 200);
    assert_eq!(page.get(&format!("/api/v1/locks?token={TOKEN}")).status, 401);
}

#[test]
fn an_address_that_others_can_reach_needs_a_token() {
    let place = Place::new();
    place.run("ui --listen 0.0.0.0:0").exits(64).says("a token is required");
    place.run("ui --listen [::]:0").exits(64).says("--token-file");
    std::fs::write(place.path("short"), "0123456789\n").unwrap();
    place.run("ui --token-file short").exits(64).says("at least 16 characters");
    place.run("ui --token-file missing").exits(64).says("cannot read the token file");
    let mut command = place.lockkeeper("ui --listen 0.0.0.0:0");
    let page = Page::from({
        command.env("LOCKKEEPER_UI_TOKEN", TOKEN);
        command
    });
    let port = page.address.port();
    let local = format!("127.0.0.1:{port}").parse().unwrap();
    let ask = |headers: &[(&str, &str)]| {
        crate::client::request(local, "GET", "/api/v1/locks", headers, "").status
    };
    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(ask(&[]), 401);
    assert_eq!(ask(&[("Authorization", &bearer)]), 200);
    assert_eq!(ask(&[("Authorization", &bearer), ("Host", "evil.example")]), 421);
}

#[test]
fn no_path_leads_to_a_file() {
    let place = Place::new();
    let page = Page::start(&place, "");
    for path in [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/page/../../Cargo.toml",
        "//etc/passwd",
        "/etc/passwd",
        "/style.css/../../../../etc/passwd",
        "/src/ui/mod.rs",
    ] {
        let reply = page.get(path);
        assert!([400, 404].contains(&reply.status), "{path}: {}", reply.status);
        assert!(!reply.body.contains("root:"), "{path}");
    }
    // There it is only a key.
    let reply = page.get("/api/v1/locks/..%2F..%2F..%2Fetc%2Fpasswd");
    assert_eq!(reply.json()["locks"], serde_json::json!([]));
    assert_eq!(page.get("/api/v1/locks/%ff").status, 400);
}

#[test]
fn every_answer_forbids_what_the_page_does_not_need() {
    let place = Place::new();
    let page = Page::start(&place, "");
    for path in ["/", "/app.js", "/style.css", "/api/v1/locks", "/metrics", "/nothing"] {
        let reply = page.get(path);
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(
            policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(reply.header("access-control-allow-origin"), None, "{path}");
    }
    let html = page.get("/").body;
    assert!(!html.contains("http://") && !html.contains("https://"), "it loads from elsewhere");
    assert!(!html.contains("style=") && !html.contains("onclick"), "the policy forbids these");
}

#[test]
fn a_client_that_sends_slowly_is_cut_off_and_keeps_nobody_waiting() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let half = |text: &str| {
        let mut stream = TcpStream::connect(page.address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    let head = format!("GET / HTTP/1.1\r\nHost: {}\r\n", page.address);
    let body = format!(
        "POST /api/v1/break HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{",
        page.address
    );
    let mut slow: Vec<_> = (0..100).map(|_| half(&head)).collect();
    slow.push(half(&body));
    slow.push(half(""));
    let started = Instant::now();
    assert_eq!(page.get("/").status, 200);
    assert!(started.elapsed() < Duration::from_secs(8), "the others must not wait for their end");
    for mut stream in slow {
        // The end of the stream, perhaps after an answer that says why.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
    }
    assert!(started.elapsed() < Duration::from_secs(45));
}

#[test]
fn what_is_too_long_is_refused() {
    let place = Place::new();
    let page = Page::start(&place, "--allow-changes --audit audit");
    let long = "x".repeat(40_000);
    assert!([0, 400, 431].contains(&page.send("GET", "/", &[("X-Long", &long)], "").status));
    assert!([0, 400, 414, 431].contains(&page.get(&format!("/{long}")).status));
    let bearer = page.bearer();
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let order = format!(r#"{{"engine":"e","key":"k","confirm":"k","why":"{long}"}}"#);
    assert!([0, 413].contains(&page.send("POST", "/api/v1/break", &headers, &order).status));
    let order = format!(r#"{{"engine":"e","key":"k","confirm":"k","why":"{}"}}"#, &long[..600]);
    let reply = page.send("POST", "/api/v1/break", &headers, &order);
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("at most 500 characters"), "{}", reply.body);
    assert_eq!(page.get("/").status, 200);
}

#[test]
fn too_many_requests_are_refused_and_the_page_recovers() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let mut stream = TcpStream::connect(page.address).unwrap();
    // All at once, on one connection.
    let one = format!("GET /icon.svg HTTP/1.1\r\nHost: {}\r\n\r\n", page.address);
    stream.write_all(one.repeat(600).as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.contains("HTTP/1.1 429 "), "{}", answers.len());
    crate::place::eventually("an answer again", || (page.get("/").status == 200).then_some(()));
}
