//! Real servers for tests: each on a free port, in its own directory, gone when dropped.
//!
//! Whatever the server, [`Supervised`] starts, pauses, resumes, kills and restarts it; every server
//! dereferences to it. A missing program is a failure that names its Debian package; nothing is skipped.

mod database;
pub mod etcd;
mod galera;
mod group;
mod mariadb;
mod pgbouncer;
mod postgres;
pub mod redis;
mod supervised;
pub mod zookeeper;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub use database::{DatabaseServer, Dialect};
pub use galera::{Galera, Member};
pub use group::Group;
pub use mariadb::{Mariadb, MariadbDialect};
pub use pgbouncer::Pgbouncer;
pub use postgres::{Postgres, PostgresDialect};
pub use supervised::Supervised;

/// Waits for a condition; if it never holds, reports what was found instead.
///
/// # Panics
/// If it does not hold within half a minute.
pub fn eventually(what: &str, is_so: impl FnMut() -> Result<(), String>) {
    eventually_within(Duration::from_secs(30), what, is_so);
}

/// [`eventually`], with a limit.
///
/// # Panics
/// If it does not hold within `limit`.
pub fn eventually_within(
    limit: Duration,
    what: &str,
    mut is_so: impl FnMut() -> Result<(), String>,
) {
    let started = Instant::now();
    while let Err(how) = is_so() {
        assert!(started.elapsed() < limit, "not so: {what}; but {how}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The path of a program: of a newer server that was fetched, or as it is installed.
///
/// # Panics
/// When it is missing, naming the Debian package that contains it.
fn program(name: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs programs here that users do not start by hand.
    let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let installed = || directories.map(|dir| dir.join(name)).find(|path| path.is_file());
    fetched(name)
        .or_else(installed)
        .unwrap_or_else(|| panic!("{name} is not installed; on Debian: apt-get install {package}"))
}

/// The path of a program of a newer server than Debian's. `LOCKKEEPER_TEST_SERVERS` lists directories
/// as `scripts/servers` prints them.
///
/// # Panics
/// When there is no such directory.
fn fetched(name: &str) -> Option<PathBuf> {
    let list = std::env::var_os("LOCKKEEPER_TEST_SERVERS").unwrap_or_default();
    let mut directories = std::env::split_paths(&list).filter(|dir| !dir.as_os_str().is_empty());
    directories.find_map(|dir| {
        assert!(dir.is_dir(), "LOCKKEEPER_TEST_SERVERS: there is no directory {}", dir.display());
        Some(dir.join(name)).filter(|path| path.is_file())
    })
}

/// Runs a program and returns its output.
///
/// # Panics
/// When it fails, with its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let [out, err] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{command:?} failed: {out}{err}");
    out
}

/// `h1:p1,h2:p2`, for a URL.
fn hosts<S: Deref<Target = Supervised>>(servers: &[S]) -> String {
    let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    addresses.join(",")
}

/// Connects to a server. A paused one accepts, and never answers.
fn connect(port: u16) -> io::Result<TcpStream> {
    let limit = Duration::from_secs(2);
    let stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), limit)?;
    stream.set_read_timeout(Some(limit))?;
    Ok(stream)
}

/// Whether a server accepts connections.
fn accepts(port: u16) -> bool {
    connect(port).is_ok()
}

/// Sends a request to a server that disconnects after its answer.
fn ask(port: u16, request: &str) -> io::Result<String> {
    let mut stream = connect(port)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(
        expected = "no-such-server is not installed; on Debian: apt-get install its-package"
    )]
    fn a_missing_program_names_its_package() {
        super::program("no-such-server", "its-package");
    }
}
