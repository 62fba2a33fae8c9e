//! MariaDB: every case of the test kit against a real server, and what only such a server can suffer.

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::mariadb::Mariadb;

/// One server for all tests here; each has a database of its own.
fn server() -> &'static Mariadb {
    static SERVER: OnceLock<Mariadb> = OnceLock::new();
    SERVER.get_or_init(Mariadb::start)
}

/// Long enough that a busy machine does not end a lease by accident.
const LEASE: Duration = Duration::from_secs(2);

conformance!(lease, Store::at(server().url()).ttl(LEASE));
