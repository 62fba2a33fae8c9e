//! PostgreSQL: every case of the test kit for every strategy, against a real server.

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::postgres::Postgres;

/// One server for all tests here; each has a database of its own.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// Long enough that a busy machine does not end a lease by accident.
const LEASE: Duration = Duration::from_secs(2);

conformance!(lease, Store::at(server().url()).ttl(LEASE));

conformance!(advisory, Store::at(format!("{}?strategy=advisory", server().url())).ttl(LEASE));
