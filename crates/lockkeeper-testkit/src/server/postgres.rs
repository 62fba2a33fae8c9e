//! PostgreSQL.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::database::{DatabaseServer, Dialect};
use super::{fetched, program};

/// A PostgreSQL server. Its superuser is `postgres`, and needs no password from this machine.
pub type Postgres = DatabaseServer<PostgresDialect>;

/// How to run PostgreSQL.
#[derive(Debug)]
pub struct PostgresDialect;

impl Dialect for PostgresDialect {
    const USER: &'static str = "postgres";
    const FAST: &'static [&'static str] = &["fsync=off"];
    const ROOMY: &'static [&'static str] = &["max_connections=1000"];
    const FIRST: &'static str = "postgres";
    const BUSY: &'static str = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'";

    const ASLEEP: &'static str = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event = 'PgSleep'";

    fn install(_directory: &Path) -> Command {
        let mut initdb = Command::new(binary("initdb"));
        initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8"]);
        initdb.args(["--locale=C", "--pgdata=data"]);
        initdb
    }

    fn server(_directory: &Path, port: u16, settings: &[&str]) -> Command {
        let port = format!("port={port}");
        let fixed = [
            &port,
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=500",
            "logging_collector=off",
        ];
        let mut server = Command::new(binary("postgres"));
        server.args(["-D", "data"]);
        server.args(fixed.iter().chain(settings).flat_map(|setting| ["-c", setting]));
        server
    }

    fn is_ready(port: u16) -> bool {
        let mut ping = Command::new(binary("pg_isready"));
        ping.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
        ping.status().is_ok_and(|status| status.success())
    }

    fn client(port: u16, database: &str, statement: &str) -> Command {
        let mut psql = Command::new(binary("psql"));
        psql.args(["--no-psqlrc", "-qtA", "-v", "ON_ERROR_STOP=1", "-U", "postgres"]);
        psql.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-d", database, "-c", statement]);
        psql
    }

    fn url(port: u16, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{database}")
    }

    fn end_sessions(server: &Postgres, database: &str, busy_only: bool) -> usize {
        let which = if busy_only { "state = 'active'" } else { "true" };
        let ended = server.sql(
            database,
            &format!(
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid() AND {which}"
            ),
        );
        ended.parse().expect("it is a number")
    }
}

/// A program that was fetched, or of the newest installed version. Debian keeps the programs of
/// each version in a directory.
fn binary(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let versions = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    match (fetched(name), versions.max()) {
        (None, Some(newest)) => format!("/usr/lib/postgresql/{newest}/bin/{name}").into(),
        _ => program(name, "postgresql"),
    }
}
