//! Every case of the test kit against PostgreSQL, for every strategy.

use std::sync::OnceLock;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use lockkeeper_testkit::server::Pgbouncer;

use super::{LEASE, server, strategy};

conformance!(lease, Store::at(server().url()).ttl(LEASE));

conformance!(advisory, Store::at(strategy(&server().url(), "advisory")).ttl(LEASE));

conformance!(row, Store::at(strategy(&server().url(), "row")).ttl(LEASE));

conformance!(pooled, Store::at(pooler().through(server(), &server().url())).ttl(LEASE));

/// One pooler in transaction mode for all tests. Each has a database of its own, and so a pool.
fn pooler() -> &'static Pgbouncer {
    static POOLER: OnceLock<Pgbouncer> = OnceLock::new();
    let settings = "pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 2000\n\
                    server_idle_timeout = 5";
    POOLER.get_or_init(|| Pgbouncer::start(server(), settings))
}
