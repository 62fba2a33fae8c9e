//! Everything that is tested against real PostgreSQL servers alone.

mod access;
mod conformance;
mod pooler;
mod settings;
mod tables;
mod together;

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::server::Postgres;

/// One server for all tests here; each has a database of its own.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// Long enough that a busy machine does not end a lease by accident.
const LEASE: Duration = Duration::from_secs(3);

fn strategy(url: &str, strategy: &str) -> String {
    format!("{url}?strategy={strategy}")
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("it names one")
}
