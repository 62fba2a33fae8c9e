//! PostgreSQL: every case of the test kit for every strategy, and what only such a server can suffer.

mod access;
mod tables;

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::Postgres;

/// One server for all tests here; each has a database of its own.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// Long enough that a busy machine does not end a lease by accident.
const LEASE: Duration = Duration::from_secs(3);

conformance!(lease, Store::at(server().url()).ttl(LEASE));

conformance!(advisory, Store::at(strategy(&server().url(), "advisory")).ttl(LEASE));

conformance!(row, Store::at(strategy(&server().url(), "row")).ttl(LEASE));

fn strategy(url: &str, strategy: &str) -> String {
    format!("{url}?strategy={strategy}")
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("it names one")
}
