//! MariaDB, or MySQL if one was fetched.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::database::{DatabaseServer, Dialect};
use super::{fetched, program};

/// A MariaDB server. Its `root` needs no password from this machine.
pub type Mariadb = DatabaseServer<MariadbDialect>;

impl Mariadb {
    /// Whether it is MySQL.
    pub fn is_mysql(&self) -> bool {
        fetched("mysqld").is_some()
    }
}

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
        let data = format!("--datadir={}", directory.join("data").display());
        match fetched("mysqld") {
            Some(mysqld) => command(mysqld, &["--initialize-insecure", &data]),
            None => command(
                program("mariadb-install-db", "mariadb-server"),
                &["--auth-root-authentication-method=normal", "--skip-test-db", &data],
            ),
        }
    }

    fn server(directory: &Path, port: u16, settings: &[&str]) -> Command {
        let port = format!("--port={port}");
        let fixed = ["--bind-address=127.0.0.1", "--max-connections=500", "--skip-log-bin", &port];
        let mut server = match fetched("mysqld") {
            Some(mysqld) => command(mysqld, &["--mysqlx=OFF"]),
            None => command(program("mariadbd", "mariadb-server"), &[]),
        };
        server.args(fixed);
        for (option, file) in [("datadir", "data"), ("socket", "socket"), ("pid-file", "pid")] {
            server.arg(format!("--{option}={}", directory.join(file).display()));
        }
        server.args(settings.iter().map(|setting| format!("--{setting}")));
        server
    }

    fn is_ready(port: u16) -> bool {
        let admin = fetched("mysqladmin");
        let admin = admin.unwrap_or_else(|| program("mariadb-admin", "mariadb-client"));
        let mut ping = command(admin, &["-s", "-u", "root", "-h", "127.0.0.1"]);
        ping.args(["-P", &port.to_string(), "ping"]);
        ping.output().is_ok_and(|output| output.status.success())
    }

    fn client(port: u16, database: &str, statement: &str) -> Command {
        let client = fetched("mysql").unwrap_or_else(|| program("mariadb", "mariadb-client"));
        // MySQL has a second list of connections, which can be read whatever they do.
        let better = "performance_schema.processlist";
        let statement = match fetched("mysqladmin") {
            Some(_) => &statement.replace("information_schema.processlist", better),
            None => statement,
        };
        let mut client = command(client, &["-N", "-B", "-u", "root", "-h", "127.0.0.1"]);
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
        // A session that has just ended is no failure.
        let _ = Self::client(server.port(), "mysql", &kills.concat()).arg("--force").output();
        kills.len()
    }
}

/// A program that reads no settings of this machine.
fn command(program: PathBuf, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("--no-defaults").args(arguments);
    command
}
