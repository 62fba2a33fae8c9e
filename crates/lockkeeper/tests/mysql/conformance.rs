//! Every case of the test kit against MariaDB, for every strategy.

use std::time::Duration;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;

use super::{LEASE, server, strategy};

conformance!(lease, Store::at(server().url()).ttl(LEASE));

// The server counts the silence of a connection in whole seconds, and looks a little late.
conformance!(named, bound("named"));

conformance!(row, bound("row"));

fn bound(way: &str) -> Store {
    Store::at(strategy(&server().url(), way)).ttl(LEASE).session(LEASE + Duration::from_secs(1))
}
