//! PostgreSQL.

use std::path::Path;
use std::process::Command;

use super::database::{Kind, Server, as_user, program, run};

/// Where Debian puts the programs of each version, newest first.
const BINARIES: [&str; 5] = [
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
    "/usr/bin",
];

/// How to run PostgreSQL.
#[derive(Debug)]
pub struct PostgresKind;

impl Kind for PostgresKind {
    const FAST: &'static [&'static str] = &["fsync=off"];
    const ROOMY: &'static [&'static str] = &["max_connections=1000"];
    const FIRST: &'static str = "postgres";
    const BUSY: &'static str = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'";

    fn install(directory: &Path) {
        run(as_user("postgres", &program("initdb", &BINARIES, "postgresql"), directory)
            .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8"])
            .args(["--locale=C", "--pgdata"])
            .arg(directory.join("data")));
    }

    fn server(directory: &Path, port: u16, settings: &[String]) -> Command {
        let postgres = program("postgres", &BINARIES, "postgresql");
        let mut server = as_user("postgres", &postgres, directory);
        server.arg("-D").arg(directory.join("data")).args(["-c", &format!("port={port}")]);
        let fixed = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=500",
            "logging_collector=off",
        ];
        for setting in fixed.into_iter().chain(settings.iter().map(String::as_str)) {
            server.args(["-c", setting]);
        }
        server
    }

    fn ping(port: u16) -> Command {
        let mut ping = Command::new(program("pg_isready", &BINARIES, "postgresql-client"));
        ping.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
        ping
    }

    fn client(port: u16, database: &str, statement: &str) -> Command {
        let mut psql = Command::new(program("psql", &BINARIES, "postgresql-client"));
        psql.args(["--no-psqlrc", "-qtA", "-v", "ON_ERROR_STOP=1", "-U", "postgres"]);
        psql.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-d", database, "-c", statement]);
        psql
    }

    fn url(port: u16, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{database}")
    }

    fn end_sessions(server: &Server<Self>, database: &str, busy_only: bool) -> usize {
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
