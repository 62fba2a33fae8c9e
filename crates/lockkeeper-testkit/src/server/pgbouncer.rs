//! PgBouncer, a connection pooler for PostgreSQL.

use std::ops::Deref;
use std::process::Command;

use super::supervised::{Home, Supervised};
use super::{Postgres, accepts, program};
use crate::ports::free_port;

/// PgBouncer in front of a server.
#[derive(Debug)]
pub struct Pgbouncer(Supervised);

impl Pgbouncer {
    /// Starts it with these settings, such as `pool_mode = transaction`, one per line.
    ///
    /// # Panics
    /// When it is not installed, or does not start.
    pub fn start(server: &Postgres, settings: &str) -> Self {
        let (home, port, behind) = (Home::of("postgres"), free_port(), server.port());
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={behind} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             {settings}\n"
        );
        let mut command = Command::new(program("pgbouncer", "pgbouncer"));
        command.arg(home.write("settings", &settings));
        Self(Supervised::start(home, port, command, accepts))
    }

    /// The URL of a database through the pooler.
    pub fn through(&self, server: &Postgres, url: &str) -> String {
        url.replace(&server.port().to_string(), &self.port().to_string())
    }
}

impl Deref for Pgbouncer {
    type Target = Supervised;

    fn deref(&self) -> &Supervised {
        &self.0
    }
}
