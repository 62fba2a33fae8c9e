//! From a URL to a database that is fit to keep locks: settings, first words, tables.

use async_trait::async_trait;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Row};

use super::doctor;
use crate::backend::Finding;
use crate::backends::sql::{self, Greet, Sessions};
use crate::error::{Error, Result};
use crate::owner::whoami;
use crate::url::Endpoint;

/// The tables and functions that this engine needs, as a migration to run by hand.
///
/// It is run by itself where the user of the URL may do that, unless the option `create` is `no`.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The version of [`SCHEMA`] that this code speaks.
const VERSION: i32 = 1;

/// Serialises those who make the tables at the same time. Any number that others will not use.
const MAKING: i64 = 0x6c6f_636b_6b65_6570;

pub(super) const NAME: &str = "postgres";

/// What a URL says.
pub(super) struct Settings {
    pub(super) strategy: Strategy,
    pub(super) options: PgConnectOptions,
    pub(super) password_file: Option<String>,
    pub(super) connections: usize,
    pub(super) create: bool,
}

/// How locks are kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum Strategy {
    Lease,
    Advisory,
    Row,
}

impl Settings {
    pub(super) fn of(endpoint: &Endpoint) -> Result<Self> {
        let mut options = endpoint.options();
        let strategies =
            [("lease", Strategy::Lease), ("advisory", Strategy::Advisory), ("row", Strategy::Row)];
        let strategy = options.choice("strategy", &strategies)?.unwrap_or(Strategy::Lease);
        let create = options.choice("create", &[("yes", true), ("no", false)])?.unwrap_or(true);
        let connections = sql::connections(&mut options)?;
        let schema = options.take("schema")?;
        let password_file = options.take("password_file")?;
        // These are the client crate's own; it reads them from the URL.
        let mut url = endpoint.expose().clone();
        url.set_query(None);
        for name in ["host", "sslmode", "sslrootcert", "sslcert", "sslkey"] {
            if let Some(value) = options.take(name)? {
                url.query_pairs_mut().append_pair(name, &value);
            }
        }
        options.finish()?;
        let mut options = PgConnectOptions::from_url(&url)
            .map_err(|error| Error::Config(format!("postgres: {error}")))?
            .disable_statement_logging()
            .application_name(&format!("lockkeeper {}", whoami()));
        if let Some(schema) = schema {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if schema.is_empty() || !schema.chars().all(plain) {
                return Err(Error::Config(format!(
                    "option schema cannot be {schema:?}; it is lower-case letters, digits and _"
                )));
            }
            options = options.options([("search_path", schema)]);
        }
        Ok(Self { strategy, options, password_file, connections, create })
    }

    /// Reads the password that is in a file, if there is one.
    pub(super) fn with_password(mut self) -> Result<Self> {
        if let Some(path) = &self.password_file {
            self.options = self.options.password(&sql::password(path)?);
        }
        Ok(self)
    }
}

#[async_trait]
impl Greet for PgConnection {
    const ENGINE: &'static str = NAME;

    /// Sets what this server has of: an isolation in which a statement sees what it waited for; grants
    /// that are on disk before they count; and dead hosts noticed in half a minute, not in two hours.
    async fn greet(&mut self) -> sqlx::Result<()> {
        sqlx::query(
            "SELECT set_config(s.name, coalesce(v.value, CASE s.setting WHEN 'off' THEN 'on' ELSE s.setting END), false)
             FROM pg_settings s JOIN (VALUES
               ('default_transaction_isolation', 'read committed'), ('synchronous_commit', NULL),
               ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'),
               ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '25000'),
               ('client_connection_check_interval', '1000'), ('idle_session_timeout', '0'),
               ('lock_timeout', '0'), ('statement_timeout', '0'), ('transaction_timeout', '0')
             ) AS v (name, value) ON s.name = v.name",
        )
        .fetch_all(self)
        .await?;
        Ok(())
    }

    async fn number(&mut self) -> sqlx::Result<i64> {
        sqlx::query_scalar("SELECT pg_backend_pid()::bigint").fetch_one(self).await
    }

    async fn end(&mut self, number: i64) -> sqlx::Result<()> {
        let ending = sqlx::query("SELECT pg_terminate_backend($1::integer, 5000)").bind(number);
        ending.execute(self).await.map(drop)
    }

    async fn doctor(sessions: &Sessions<Self>) -> Result<Vec<Finding>> {
        doctor::look(sessions).await
    }

    /// A statement that we prepared is not there, or somebody else's is.
    fn advice(error: &dyn DatabaseError) -> Option<&'static str> {
        let is_mixed_up = error.code().is_some_and(|code| code == "26000" || code == "42P05");
        is_mixed_up.then_some(
            "a pooler seems to lend connections by transaction; connect past it, to the server itself",
        )
    }

    fn was_in_the_way(error: &dyn DatabaseError) -> bool {
        error.code().is_some_and(|code| code == "55P03")
    }

    /// Connections lost or refused for now, shutdowns, deadlocks, locks not had in time.
    fn may_pass(error: &dyn DatabaseError) -> bool {
        let code = error.code().unwrap_or_default();
        matches!(code.get(..2), Some("08" | "40" | "53" | "57" | "58"))
            || matches!(&*code, "55P03" | "25P03")
    }
}

/// Makes sure that the database is there, is not a standby, and has our tables.
/// Says which process of the server we talk to.
pub(super) async fn prepare(sessions: &Sessions<PgConnection>, create: bool) -> Result<i32> {
    let mut session = sessions.any().await?;
    let answer = sqlx::query(
        "SELECT pg_is_in_recovery(), to_regproc('lockkeeper_version')::text, pg_backend_pid(),
           current_setting('server_version_num')::integer",
    )
    .fetch_one(session.wire())
    .await;
    let row = session.settle(answer, "look at the database")?;
    if row.get(0) {
        return Err(Error::broken(
            NAME,
            "keep locks here",
            "this server is a standby, which only follows another; name the primary",
        ));
    }
    if row.get::<i32, _>(3) < 14_00_00 {
        return Err(Error::broken(NAME, "keep locks here", "it needs PostgreSQL 14 or newer"));
    }
    if row.get::<Option<String>, _>(1).is_none() {
        if !create {
            return Err(sql::missing(NAME, "they are not there, and the option create is no"));
        }
        make(sessions).await?;
    }
    let mut session = sessions.any().await?;
    let answer = sqlx::query_scalar::<_, i32>("SELECT lockkeeper_version()");
    let answer = answer.fetch_one(session.wire()).await;
    let version = session.settle(answer, "read the version of the tables")?;
    if version != VERSION {
        return Err(sql::missing(
            NAME,
            &format!("they have version {version}, and this is for {VERSION}"),
        ));
    }
    Ok(row.get(2))
}

/// The same for locks that are bound to a connection, which must be one to the server itself.
pub(super) async fn prepare_to_bind(settings: Settings) -> Result<Sessions<PgConnection>> {
    let sessions = Sessions::new(settings.options, settings.connections);
    let pid = prepare(&sessions, settings.create).await?;
    if !doctor::is_direct(&sessions, pid).await? {
        return Err(Error::broken(
            NAME,
            "hold locks by connections",
            "two connections have one server process: a pooler lends it by transaction; \
             connect past the pooler, or use strategy=lease",
        ));
    }
    Ok(sessions)
}

async fn make(sessions: &Sessions<PgConnection>) -> Result<()> {
    let mut session = sessions.any().await?;
    // One batch is one transaction, which the lock lasts for.
    let batch = format!("SELECT pg_advisory_xact_lock({MAKING}); {SCHEMA}");
    let answer = sqlx::raw_sql(sqlx::AssertSqlSafe(batch)).execute(session.wire()).await;
    session.settle(answer, "make the tables").map(drop).inspect_err(|_| {
        let hint = sql::missing(NAME, "they are not there, and could not be made");
        tracing::error!(%hint);
    })
}
