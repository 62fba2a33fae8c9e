//! The page as an operator sees it, in Chromium.

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::api::deadlock;
use crate::changes::audit;
use crate::client::Page;
use crate::place::Place;
use crate::webdriver::Browser;

#[test]
fn a_lock_appears_changes_and_goes_without_a_reload() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let browser = Browser::start();
    browser.open(&page.link);
    browser.reads("#empty", "No locks in use.");
    browser.run("window.loaded = 'once'");
    let holder = place.start("run --note nightly backup -- sleep 600");
    browser.reads("#rows", "backup");
    browser.reads("#held", "1");
    let waiter = place.start("run backup -- sleep 600");
    browser.reads("#rows td.waiting", "1");
    browser.reads("#waiting", "1");
    let (first, second) = (holder.pid().to_string(), waiter.pid().to_string());
    browser.reads("#rows", &first);
    holder.signal(Signal::SIGTERM);
    browser.reads("#rows", &second);
    waiter.signal(Signal::SIGTERM);
    browser.reads("#empty", "No locks in use.");
    assert_eq!(browser.run("return window.loaded"), "once");
    assert_eq!(browser.log(), json!([]), "no errors, no violations of the policy");
}

#[test]
fn locks_are_filtered_linked_and_reached_by_keyboard() {
    let (place, server) = (Place::new(), Server::start());
    let elsewhere = Place::at(&server.url());
    let page = Page::start(&place, &format!("{} {}", place.url(), server.url()));
    let _a = place.start("run --note payroll team/a -- sleep 600");
    let _b = place.start("run team/b -- sleep 600");
    let _c = elsewhere.start("run other/c -- sleep 600");
    let browser = Browser::start();
    browser.open(&page.link);
    let shown = |keys: &[&str]| {
        let keys = json!(keys);
        browser.until(&format!(
            "return JSON.stringify([...document.querySelectorAll('#rows a')].map((a) => a.innerText)) \
             === JSON.stringify({keys})"
        ));
    };
    shown(&["other/c", "team/a", "team/b"]);
    browser.press("/");
    assert_eq!(browser.run("return document.activeElement.id"), "search");
    browser.type_into("#search", "payr");
    shown(&["team/a"]);
    browser.reads("#count", "1 of 3 locks");
    // The address has all of it, so that it can be sent to others.
    let link = browser.until("return location.hash.includes('q=payr') && location.href");
    browser.open("about:blank");
    browser.open(link.as_str().unwrap());
    shown(&["team/a"]);
    browser.run(
        "const s = document.getElementById('search'); s.value = ''; \
                 s.dispatchEvent(new Event('input', {bubbles: true})); s.blur()",
    );
    shown(&["other/c", "team/a", "team/b"]);
    browser.type_into("#prefix", "team/");
    shown(&["team/a", "team/b"]);
    browser.press("Escape");
    browser.press("j");
    browser.press("j");
    browser.press("Enter");
    browser.reads("#detail h2", "team/b");
    browser.until("return location.hash.includes('lock=team%2Fb')");
    browser.press("Escape");
    browser.until("return document.getElementById('detail').hidden");
    browser.run(&format!(
        "const e = document.getElementById('engine'); e.value = {}; \
         const p = document.getElementById('prefix'); p.value = ''; \
         e.dispatchEvent(new Event('input', {{bubbles: true}}))",
        json!(browser.run("return document.querySelector('#engine').options[2].value"))
    ));
    shown(&["other/c"]);
    browser.press("?");
    browser.reads("dialog", "choose a lock");
}

#[test]
fn the_details_of_a_lock_are_live() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let first = place.start("run --note one k -- sleep 600");
    page.shows("k", 1, 0);
    let second = place.start("run --note two k -- sleep 600");
    page.shows("k", 1, 1);
    let browser = Browser::start();
    browser.open(&page.link);
    browser.click("#rows a");
    browser.reads("#detail table[aria-label=Holders]", "one");
    browser.reads("#detail table[aria-label='Waiters in order']", "two");
    browser.until("return document.querySelectorAll('#detail svg rect').length === 2");
    browser.reads("#detail table[aria-label='Contention episodes']", "lasts");
    first.signal(Signal::SIGTERM);
    browser.reads("#detail table[aria-label='Last holders']", "ended");
    browser.reads("#detail table[aria-label=Holders]", "two");
    browser.until("return document.querySelectorAll('#detail svg rect').length === 3");
    second.signal(Signal::SIGTERM);
    browser.reads("#detail", "nobody");
    assert_eq!(browser.log(), json!([]));
}

#[test]
fn a_lock_is_broken_only_with_its_key_and_a_reason() {
    let place = Place::new();
    let page = Page::start(&place, "--allow-changes --audit audit");
    let holder = place.start("run deploy -- sleep 600");
    page.shows("deploy", 1, 0);
    let browser = Browser::start();
    browser.open(&page.link);
    assert_eq!(browser.run("return location.hash.includes('token')"), false);
    browser.click("#rows a");
    browser.click("#break");
    let closed = "return document.getElementById('go').disabled";
    assert_eq!(browser.run(closed), true);
    browser.type_into("#why", "host backup-3 is gone");
    browser.type_into("#confirm", "deplo");
    assert_eq!(browser.run(closed), true);
    browser.type_into("#confirm", "y");
    browser.type_into("#who", "ann");
    browser.click("#go");
    browser.reads("#outcome", " lost it.");
    holder.end().exits(79);
    let lines = audit(&place);
    assert_eq!(
        (&lines[1]["who"], &lines[1]["why"]),
        (&"ann".into(), &"host backup-3 is gone".into())
    );
    browser.click("#cancel");
    browser.reads("#detail table[aria-label='Last holders']", "broken by");
    browser.reads("#detail table[aria-label='Last holders']", "host backup-3 is gone (ann)");
    browser.reads("#lost", "1");
}

#[test]
fn a_holder_is_asked_to_yield() {
    let servers = Ensemble::single();
    let place = Place::at(&servers.url("yield", std::time::Duration::from_secs(20)));
    let page = Page::start(&place, "--allow-changes --audit audit");
    let holder = place.start("run deploy -- sleep 600");
    page.shows("deploy", 1, 0);
    let browser = Browser::start();
    browser.open(&page.link);
    browser.click("#rows a");
    browser.click("#yield");
    browser.click("#go");
    browser
        .reads("#outcome", &format!("Asked {}", lockkeeper::whoami().split(' ').next().unwrap()));
    holder.end().exits(143);
    assert_eq!(audit(&place)[1]["what"], "yield");
}

#[test]
fn nothing_can_be_changed_unless_it_is_allowed() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let _holder = place.start("run deploy -- sleep 600");
    page.shows("deploy", 1, 0);
    let browser = Browser::start();
    browser.open(&page.link);
    browser.click("#rows a");
    browser.reads("#detail", "read-only");
    assert_eq!(browser.run("return document.querySelector('#break, #yield')"), json!(null));
}

#[test]
fn the_page_asks_for_the_token() {
    let place = Place::new();
    std::fs::write(place.path("token"), "a-token-of-the-operators").unwrap();
    let page = Page::start(&place, "--token-file token");
    let _holder = place.start("run deploy -- sleep 600");
    let browser = Browser::start();
    browser.open(&page.link);
    browser.type_into("#token", "wrong-token-of-nobody");
    browser.click("#go");
    browser.until("return document.getElementById('token')?.value === ''");
    browser.type_into("#token", "a-token-of-the-operators");
    browser.click("#go");
    browser.reads("#rows", "deploy");
}

#[test]
fn a_deadlock_is_flagged() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let browser = Browser::start();
    browser.open(&page.link);
    let _jobs = deadlock(&place, &page);
    browser.reads("#banners", "A deadlock");
    browser.reads("#rows .tag.deadlock", "deadlock");
    browser.click("#deadlock button");
    browser.reads("#blocking-view .ring", "waits for x");
    browser.reads("#blocking-view .ring", "waits for y");
    browser.picture("blocking");
}

/// An operator breaks the lock that is shown, and no other.
#[test]
fn a_name_cannot_turn_a_line_around() {
    let place = Place::new();
    let page = Page::start(&place, "");
    let mut command = place.lockkeeper("run --note");
    let mut job =
        command.args(["no\u{202e}te", "rtl\u{202e}evil", "sleep", "600"]).spawn().unwrap();
    let browser = Browser::start();
    browser.open(&page.link);
    browser.reads("#rows a", r"rtl\u{202e}evil");
    browser.click("#rows a");
    browser.reads("#detail h2", r"rtl\u{202e}evil");
    browser.reads("#detail table[aria-label=Holders]", r"no\u{202e}te");
    job.kill().unwrap();
    job.wait().unwrap();
}

#[test]
fn whatever_a_store_says_is_only_text() {
    let place = Place::new();
    let hostile = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>";
    let name = "<b onmouseover=window.pwned=1>main</b>";
    let server = Server::start();
    let config = format!("[engines]\n{name:?} = {:?}\nredis = {:?}\n", place.url(), server.url());
    std::fs::write(place.path("config.toml"), config).unwrap();
    let mut command = place.lockkeeper("ui --listen 127.0.0.1:0 --interval 100ms");
    command.env("LOCKKEEPER_CONFIG", place.path("config.toml"));
    let page = Page::from(command);
    let run = |sleep: &str| {
        let mut command = place.lockkeeper("run --note");
        let doing = format!("exec sleep {sleep} # <img src=x onerror=window.pwned=1>");
        command.args([hostile, hostile, "--", "sh", "-c", &doing]);
        command.spawn().unwrap()
    };
    let mut jobs = [run("600")];
    page.shows(hostile, 1, 0);
    let mut waiter = run("600");
    page.shows(hostile, 1, 1);
    // Anyone who can write to the store can claim any identity.
    let field = "0d1c0000-0000-4000-8000-000000000000:57";
    server.ask(&["HSET", "forged", field, "1"]);
    server.ask(&["PEXPIRE", "forged", "600000"]);
    let record = format!("mutex\t1794917179013569\t{field}\t{hostile}\tforged");
    server.ask(&["HSET", "lockkeeper:{forged}", "held", &record]);
    page.shows("forged", 1, 0);
    let browser = Browser::start();
    browser.open(&page.link);
    browser.reads("#rows a", hostile);
    browser.reads("#rows .engine", name);
    browser.click("#rows a");
    browser.reads("#detail h2", hostile);
    browser.reads("#detail table[aria-label=Holders]", hostile);
    browser.reads("#detail table[aria-label='Waiters in order']", hostile);
    browser.reads("#detail table[aria-label=Holders]", "exec sleep 600 # <img src=x");
    browser.press("Escape");
    browser.reads("#rows", "forged");
    browser.run("[...document.querySelectorAll('#rows a')].at(-1).click()");
    browser.reads("#detail h2", "forged");
    browser.reads("#detail table[aria-label=Holders]", hostile);
    browser.press("Escape");
    browser.click("#rows a");
    browser.reads("#detail h2", hostile);
    for job in &mut jobs {
        job.kill().unwrap();
        job.wait().unwrap();
    }
    browser.reads("#detail table[aria-label='Last holders']", "ended");
    browser.press("b");
    browser.reads("#blocking-view", "Who blocks whom");
    assert_eq!(browser.run("return window.pwned ?? null"), json!(null));
    let made = "return document.querySelectorAll('main img, main script, #detail img, main b, #detail b[onmouseover]').length";
    assert_eq!(browser.run(made), 0);
    assert_eq!(browser.log(), json!([]), "not even the policy had to stop it");
    waiter.kill().unwrap();
    waiter.wait().unwrap();
}

#[test]
fn the_page_fits_a_phone_and_both_themes() {
    let (place, server) = (Place::new(), Server::start());
    let elsewhere = Place::at(&server.url());
    let page = Page::start(&place, &format!("{} {}", place.url(), server.url()));
    let first = place.start("run --note nightly backup/database -- sleep 600");
    page.shows("backup/database", 1, 0);
    let _more = ["full", "again", "manual"]
        .map(|note| place.start(&format!("run --note {note} backup/database -- sleep 600")));
    page.shows("backup/database", 1, 3);
    let names = ["deploy/web", "deploy/api", "reindex", "reports/weekly", "migrate"];
    let _others =
        names.map(|key| elsewhere.start(&format!("run --fair --note release {key} -- sleep 600")));
    for key in names {
        page.shows(key, 1, 0);
    }
    let _waiter = elsewhere.start("run --fair deploy/web -- sleep 600");
    page.shows("deploy/web", 1, 1);
    first.signal(Signal::SIGTERM);
    page.shows("backup/database", 1, 2);
    let browser = Browser::start();
    browser.open(&page.link);
    browser.reads("#rows", "migrate");
    let ground = "return getComputedStyle(document.body).backgroundColor";
    browser.prefers("light");
    let light = browser.run(ground);
    browser.prefers("dark");
    let dark = browser.run(ground);
    assert_ne!(light, dark);
    browser.click("#theme");
    assert_eq!(browser.run(ground), light, "the button overrides the system");
    browser.press("t");
    assert_eq!(browser.run(ground), dark);
    browser.picture("table-dark");
    browser.press("t");
    browser.picture("table-light");
    browser.click("#rows a");
    browser.reads("#detail table[aria-label='Last holders']", "ended");
    browser.picture("detail-light");
    browser.press("t");
    browser.picture("detail-dark");
    browser.press("Escape");
    browser.resize(400, 800);
    let fits = "return document.documentElement.scrollWidth <= 400";
    browser.until(fits);
    browser.reads("#rows", "backup/database");
    browser.picture("phone-dark");
    browser.click("#rows a");
    browser.reads("#detail h2", "backup/database");
    browser.until("return document.getElementById('detail').getBoundingClientRect().width <= 400");
    browser.until("return document.getElementById('detail').scrollWidth <= 400");
    // Nothing is squeezed into a column of a few letters.
    let cells = "[...document.querySelectorAll('#detail td:not(:empty)')]";
    let widths =
        format!("return {cells}.every((cell) => cell.getBoundingClientRect().width > 300)");
    browser.until(&widths);
    browser.until(fits);
    browser.picture("phone-detail");
    browser.click("#close");
    browser.until("return document.getElementById('detail').hidden");
    browser.resize(1280, 800);
    browser.click("#rows a");
    browser.reads("#detail h2", "backup/database");
    // Everything that can be used has a name. Without server and clock nothing moves meanwhile.
    drop(page);
    browser.run("for (let n = 0; n < 10000; n++) clearInterval(n)");
    browser.until("return document.getElementById('link').className === 'off'");
    let labels = browser.labels("button, input, select, a, table, svg[role=img], [role=region]");
    assert!(labels.len() > 15, "{labels:?}");
    for (label, html) in labels {
        assert!(!label.trim().is_empty(), "no accessible name: {html}");
    }
}

#[test]
fn ten_thousand_locks_are_no_more_elements_than_fit_the_screen() {
    const LOCKS: usize = 10_000;
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let client = runtime.block_on(lockkeeper::Client::connect(server.url())).unwrap();
    let guards = runtime.block_on(async {
        let mut guards = Vec::new();
        for n in 0..LOCKS {
            let lock = client.mutex(format!("job/{n:05}")).ttl(std::time::Duration::from_secs(600));
            guards.push(lock.acquire().await.unwrap());
        }
        guards
    });
    let place = Place::at(&server.url());
    let page = Page::start(&place, "");
    let browser = Browser::start();
    browser.open(&page.link);
    browser.reads("#count", "10000 of 10000 locks");
    let count = "return document.querySelectorAll('#rows tr').length";
    assert!(browser.run(count).as_u64().unwrap() < 100);
    browser.run("const s = document.getElementById('scroller'); s.scrollTop = s.scrollHeight");
    browser.reads("#rows", "job/09999");
    assert!(browser.run(count).as_u64().unwrap() < 100);
    browser.type_into("#search", "job/0123");
    browser.reads("#count", "10 of 10000 locks");
    drop(guards);
}
