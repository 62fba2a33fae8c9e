//! The page that `torture --report` writes, in Chromium, opened from the disk.

use serde_json::json;

use crate::place::Place;
use crate::webdriver::Browser;

fn open(place: &Place) -> Browser {
    let browser = Browser::start();
    browser.open(&format!("file://{}", place.path("report.html").display()));
    browser
}

/// Where the pointer is over the first hold that it finds, by the page's own drawing.
const POINT_AT_A_HOLD: &str = "
    const grant = view.line.grants.find((grant) => grant.end - grant.returned > 1);
    const at = [x((grant.returned + grant.end) / 2), laneTop(grant.client) + grant.task * ROW + 1];
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + at[0], clientY: box.top + at[1]}));
    return document.getElementById('hover').textContent";

#[test]
fn a_clean_run_shows_its_figures_and_a_timeline_that_zooms() {
    let place = Place::new();
    let words = "torture --local file --seconds 3 --clients 2 --seed 7 --report report.html";
    place.run(words).exits(0);
    let browser = open(&place);
    browser.reads("#verdict", "No violation");
    browser.reads("#rows", "file");
    browser.reads("#commands", "lockkeeper torture --local file --seconds 3s --seed 7 --clients 2");
    for scheme in ["light", "dark"] {
        browser.prefers(scheme);
        browser.picture(&format!("torture-{scheme}"));
    }
    let whole = browser.run("return view.to - view.from").as_f64().unwrap();
    browser.click("#in");
    let half = browser.run("return view.to - view.from").as_f64().unwrap();
    assert!((whole / half - 2.0).abs() < 0.01, "{whole} {half}");
    browser.click("#all");
    assert_eq!(browser.run("return view.to - view.from").as_f64(), Some(whole));
    let hovered = browser.run(POINT_AT_A_HOLD);
    assert!(hovered.as_str().is_some_and(|text| text.contains("fence")), "{hovered}");
    assert_eq!(browser.run("return performance.getEntriesByType('resource').length"), json!(0));
    assert_eq!(browser.log(), json!([]), "no errors, no violations of the policy");
}

#[test]
fn a_violation_is_shown_with_its_history_and_found_on_the_timeline() {
    let place = Place::new();
    let words = "torture --local file --seconds 20 --cycles 300 --clients 2 --kinds mutex \
                 --mutant fence-per-client --report report.html";
    place.run(words).exits(1);
    let browser = open(&place);
    browser.reads("#verdict", "violations");
    browser.reads("#windows", "holds, fence");
    browser.reads("#rows td.bad", "");
    browser.click("#jump");
    browser.until("return view.to - view.from < view.line.length");
    browser.picture("torture-violation");
    assert_eq!(browser.log(), json!([]), "no errors, no violations of the policy");
}
