//! MariaDB.

use std::path::Path;
use std::process::Command;

use super::database::{Kind, Server, as_user, program, run};

const BINARIES: [&str; 3] = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];

/// How to run MariaDB.
#[derive(Debug)]
pub struct MariadbKind;

impl Kind for MariadbKind {
    const FAST: &'static [&'static str] = &["innodb-flush-log-at-trx-commit=2"];
    const ROOMY: &'static [&'static str] = &["max-connections=1000"];
    const FIRST: &'static str = "mysql";
    const BUSY: &'static str = "SELECT COUNT(*) FROM information_schema.processlist
         WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command <> 'Sleep'";

    fn install(directory: &Path) {
        let install = program("mariadb-install-db", &BINARIES, "mariadb-server");
        run(as_user("mysql", &install, directory)
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", directory.join("data").display())));
    }

    fn server(directory: &Path, port: u16, settings: &[String]) -> Command {
        let mariadbd = program("mariadbd", &BINARIES, "mariadb-server");
        let mut server = as_user("mysql", &mariadbd, directory);
        server.args(["--no-defaults", "--bind-address=127.0.0.1", "--max-connections=500"]);
        server.args(["--skip-log-bin", &format!("--port={port}")]);
        for (option, file) in [("datadir", "data"), ("socket", "socket"), ("pid-file", "pid")] {
            server.arg(format!("--{option}={}", directory.join(file).display()));
        }
        server.args(settings.iter().map(|setting| format!("--{setting}")));
        server
    }

    fn ping(port: u16) -> Command {
        let mut ping = Command::new(program("mariadb-admin", &BINARIES, "mariadb-client"));
        ping.args(["--no-defaults", "-s", "-u", "root", "-h", "127.0.0.1"]);
        ping.args(["-P", &port.to_string(), "ping"]);
        ping
    }

    fn client(port: u16, database: &str, statement: &str) -> Command {
        let mut client = Command::new(program("mariadb", &BINARIES, "mariadb-client"));
        client.args(["--no-defaults", "-N", "-B", "-u", "root", "-h", "127.0.0.1"]);
        client.args(["-P", &port.to_string(), "-D", database, "-e", statement]);
        client
    }

    fn url(port: u16, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{port}/{database}")
    }

    fn end_sessions(server: &Server<Self>, database: &str, busy_only: bool) -> usize {
        let which = if busy_only { "command <> 'Sleep'" } else { "TRUE" };
        let threads = server.sql(
            "mysql",
            &format!(
                "SELECT id FROM information_schema.processlist WHERE db = '{database}' AND {which}"
            ),
        );
        let kills: Vec<_> = threads.lines().map(|thread| format!("KILL {thread};")).collect();
        // One that just ended by itself is no failure.
        let _ = Self::client(server.port, "mysql", &kills.concat()).arg("--force").output();
        kills.len()
    }
}
