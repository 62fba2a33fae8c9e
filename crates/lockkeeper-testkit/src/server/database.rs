//! Shared by the database servers: one server, a database for every test.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::supervised::{Home, Supervised};
use super::{eventually, run};
use crate::ports::free_port;

/// How to run a database server, and how to send statements to it.
pub trait Dialect: fmt::Debug + Send + Sync + 'static {
    /// The user that runs the server if the tests run as root.
    const USER: &'static str;

    /// Settings of a server that does not wait for the disk: tests kill processes, not machines.
    const FAST: &'static [&'static str];

    /// Settings of a server with room for a thousand connections.
    const ROOMY: &'static [&'static str];

    /// The initial database.
    const FIRST: &'static str;

    /// Counts the other sessions of a database that are executing a statement.
    const BUSY: &'static str;

    /// Counts the sessions of the database that wait in a `sleep` of their own.
    const ASLEEP: &'static str;

    /// Creates the data, in `directory`.
    fn install(directory: &Path) -> Command;

    /// The server itself.
    fn server(directory: &Path, port: u16, settings: &[&str]) -> Command;

    /// Whether the server takes statements.
    fn is_ready(port: u16) -> bool;

    /// A client that runs a statement, and prints one row per line.
    fn client(port: u16, database: &str, statement: &str) -> Command;

    /// The URL of a database.
    fn url(port: u16, database: &str) -> String;

    /// Ends the other sessions of a database, all of them or only those that are executing a
    /// statement, and returns how many.
    fn end_sessions(server: &DatabaseServer<Self>, database: &str, busy_only: bool) -> usize
    where
        Self: Sized;
}

/// A server with one database per test.
#[derive(Debug)]
pub struct DatabaseServer<D: Dialect> {
    process: Supervised,
    databases: AtomicU32,
    dialect: PhantomData<D>,
}

impl<D: Dialect> DatabaseServer<D> {
    /// Starts a server that does not wait for the disk.
    pub fn start() -> Self {
        Self::with(D::FAST)
    }

    /// The same with room for a thousand connections.
    pub fn roomy() -> Self {
        Self::with(&[D::FAST, D::ROOMY].concat())
    }

    /// Starts a server with these settings, such as `fsync=on`.
    ///
    /// # Panics
    /// When it does not start, with its log.
    pub fn with(settings: &[&str]) -> Self {
        let (home, port) = (Home::of(D::USER), free_port());
        let install = D::install(home.path());
        run(home.command(install.get_program()).args(install.get_args()));
        let command = D::server(home.path(), port, settings);
        let process = Supervised::start(home, port, command, D::is_ready);
        Self { process, databases: AtomicU32::new(0), dialect: PhantomData }
    }

    /// The URL of a new database.
    pub fn url(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql(D::FIRST, &format!("CREATE DATABASE {name}"));
        D::url(self.port(), &name)
    }

    /// Runs a statement, and returns its result, one row per line.
    pub fn sql(&self, database: &str, statement: &str) -> String {
        run(&mut D::client(self.port(), database, statement)).trim_end().to_owned()
    }

    /// Ends the other sessions of a database.
    ///
    /// # Panics
    /// When there are none.
    pub fn end_sessions(&self, database: &str) {
        assert_ne!(D::end_sessions(self, database, false), 0, "there was nothing to end");
    }

    /// Waits until other sessions of a database are executing a statement, and ends them.
    ///
    /// # Panics
    /// When there are none within half a minute.
    pub fn end_busy_sessions(&self, database: &str) {
        eventually("a session is busy", || match D::end_sessions(self, database, true) {
            0 => Err("there was nothing to end".to_owned()),
            _ => Ok(()),
        });
    }

    /// How many other sessions of a database are executing a statement.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn busy_sessions(&self, database: &str) -> usize {
        self.sql(database, D::BUSY).parse().expect("it is a number")
    }

    /// How many sessions of a database wait in a `sleep` of their own: everything before it is
    /// done.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn sleeping_sessions(&self, database: &str) -> usize {
        self.sql(database, D::ASLEEP).parse().expect("it is a number")
    }
}

impl<D: Dialect> Deref for DatabaseServer<D> {
    type Target = Supervised;

    fn deref(&self) -> &Supervised {
        &self.process
    }
}
