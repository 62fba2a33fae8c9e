//! Every case of the test kit against PostgreSQL, for every strategy.

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;

use super::{LEASE, server, strategy};

conformance!(lease, Store::at(server().url()).ttl(LEASE));

conformance!(advisory, Store::at(strategy(&server().url(), "advisory")).ttl(LEASE));

conformance!(row, Store::at(strategy(&server().url(), "row")).ttl(LEASE));
