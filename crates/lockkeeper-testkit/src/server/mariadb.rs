//! MariaDB.

use std::path::Path;
use std::process::Command;

use super::database::{DatabaseServer, Dialect};
use super::program;

/// A MariaDB server. Its `root` needs no password from this machine.
pub type Mariadb = DatabaseServer<MariadbDialect>;

/// How to run MariaDB.
#[derive(Debug)]
pub struct MariadbDialect;

impl Dialect for MariadbDialect {
    const USER: &'static str = "mysql";
    const FAST: &'static [&'static str] = &["innodb-flush-log-at-trx-commit=2"];
    const ROOMY: &'static [&'static str] = &["max-connections=1000"];
    const FIRST: &'static str = "mysql";
    const BUSY: &'static str = "SELECT COUNT(*) FROM information_schema.processlist
         WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command <> 'Sleep'";

    const ASLEEP: &'static str = "SELECT COUNT(*) FROM information_schema.processlist
         WHERE db = DATABASE() AND state = 'User sleep'";

    fn install(directory: &Path) -> Command {
        let mut install = Command::new(program("mariadb-install-db", "mariadb-server"));
        install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
        install
            .args(["--skip-test-db", &format!("--datadir={}", directory.join("data").display())]);
        install
    }

    fn server(directory: &Path, port: u16, settings: &[&str]) -> Command {
        let mut server = Command::new(program("mariadbd", "mariadb-server"));
        server.args(["--no-defaults", "--bind-address=127.0.0.1", "--max-connections=500"]);
        server.args(["--skip-log-bin", &format!("--port={port}")]);
        for (option, file) in [("datadir", "data"), ("socket", "socket"), ("pid-file", "pid")] {
            server.arg(format!("--{option}={}", directory.join(file).display()));
        }
        server.args(settings.iter().map(|setting| format!("--{setting}")));
        server
    }

    fn is_ready(port: u16) -> bool {
        let mut ping = Command::new(program("mariadb-admin", "mariadb-client"));
        ping.args(["--no-defaults", "-s", "-u", "root", "-h", "127.0.0.1"]);
        ping.args(["-P", &port.to_string(), "ping"]);
        ping.output().is_ok_and(|output| output.status.success())
    }

    fn client(port: u16, database: &str, statement: &str) -> Command {
        let mut client = Command::new(program("mariadb", "mariadb-client"));
        client.args(["--no-defaults", "-N", "-B", "-u", "root", "-h", "127.0.0.1"]);
        client.args(["-P", &port.to_string(), "-D", database, "-e", statement]);
        client
    }

    fn url(port: u16, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{port}/{database}")
    }

    fn end_sessions(server: &Mariadb, database: &str, busy_only: bool) -> usize {
        let which = if busy_only { "command <> 'Sleep'" } else { "TRUE" };
        let threads = server.sql(
            "mysql",
            &format!(
                "SELECT id FROM information_schema.processlist WHERE db = '{database}' AND {which}"
            ),
        );
        let kills: Vec<_> = threads.lines().map(|thread| format!("KILL {thread};")).collect();
        // One that just ended by itself is no failure.
        let _ = Self::client(server.port(), "mysql", &kills.concat()).arg("--force").output();
        kills.len()
    }
}
