//! The page of `lockkeeper ui`: over HTTP, and in a real browser.

mod api;
mod browser;
mod changes;
mod client;
#[path = "../cli/place.rs"]
#[expect(dead_code, reason = "the tests of the other verbs use all of it")]
mod place;
mod report;
mod schema;
mod security;
mod webdriver;
