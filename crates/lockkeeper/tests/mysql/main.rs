//! Everything that is tested against real MariaDB servers alone, or MySQL servers if one was fetched.

mod access;
mod conformance;
mod galera;
mod group;
mod replica;
mod settings;
mod tables;
mod uncontended;

use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_testkit::server::Mariadb;

/// One server for all tests here; each has a database of its own.
fn server() -> &'static Mariadb {
    static SERVER: OnceLock<Mariadb> = OnceLock::new();
    SERVER.get_or_init(Mariadb::start)
}

/// Long enough that a busy machine does not end a lease by accident.
const LEASE: Duration = Duration::from_secs(3);

fn strategy(url: &str, strategy: &str) -> String {
    format!("{url}?strategy={strategy}")
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("it names one")
}

/// A table of the numbers from one, as both kinds of server read it.
fn numbers(last: usize) -> String {
    let list = format!("CONCAT('[', REPEAT('0,', {}), '0]')", last - 1);
    format!("JSON_TABLE({list}, '$[*]' COLUMNS (seq FOR ORDINALITY)) AS numbers")
}
