//! A pooler that lends connections to PostgreSQL.

use std::path::Path;

use tempfile::TempDir;

use super::database::{Postgres, Process, as_user, program, wait_for_port};
use crate::ports::free_port;

/// PgBouncer in front of a server. Gone when dropped.
#[derive(Debug)]
pub struct Pgbouncer {
    process: Process,
    port: u16,
    _directory: TempDir,
}

impl Pgbouncer {
    /// Starts it with these settings, such as `pool_mode = transaction`, one per line.
    ///
    /// # Panics
    /// When it is not installed, or does not start.
    pub fn start(server: &Postgres, settings: &str) -> Self {
        let directory = tempfile::tempdir().expect("there is room for a temporary directory");
        let (port, behind) = (free_port(), server.address().port());
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={behind} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             {settings}\n"
        );
        let (file, log) = (directory.path().join("settings"), directory.path().join("log"));
        std::fs::write(&file, settings).expect("the directory is ours");
        let pgbouncer = program("pgbouncer", &["/usr/sbin", "/usr/bin"], "pgbouncer");
        let mut command = as_user("postgres", &pgbouncer, directory.path());
        let output = std::fs::File::create(&log).expect("the directory is ours");
        command.arg(&file).stdout(output.try_clone().expect("a file can be shared")).stderr(output);
        let process = Process::start(&mut command, directory.path());
        wait_for_port(port, Path::new(&log));
        Self { process, port, _directory: directory }
    }

    /// The way to a database through the pooler.
    pub fn through(&self, server: &Postgres, url: &str) -> String {
        let direct = server.address().port().to_string();
        url.replace(&direct, &self.port.to_string())
    }
}

impl Drop for Pgbouncer {
    fn drop(&mut self) {
        self.process.kill();
    }
}
