//! From a URL to a database that is fit to keep locks: settings, first words, tables.

use async_trait::async_trait;
use sqlx::Row;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::doctor;
use crate::engine::Finding;
use crate::engines::endpoint::Endpoint;
use crate::engines::sql::{self, Dialect, Session, Sessions};
use crate::error::{Error, Result};
use crate::owner::whoami;

/// The tables and functions that this engine needs, as a migration to run by hand.
///
/// It is run by itself where the user of the URL may do that, unless the option `create` is `no`.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The version of [`SCHEMA`] that this code speaks.
pub(super) const VERSION: i32 = 2;

/// Serialises those who make the tables at the same time. Any number that others will not use.
const MAKING: i64 = 0x6c6f_636b_6b65_6570;

pub(super) const NAME: &str = "postgres";

/// What a URL says.
pub(super) type Settings = sql::Settings<Strategy, PgConnectOptions>;

/// How locks are kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum Strategy {
    Lease,
    Advisory,
    Row,
}

/// Reads a URL.
pub(super) fn settings(endpoint: &Endpoint) -> Result<Settings> {
    let mut options = endpoint.options();
    let schema = options.take("schema")?;
    let strategies =
        [("lease", Strategy::Lease), ("advisory", Strategy::Advisory), ("row", Strategy::Row)];
    let native = ["host", "sslmode", "sslrootcert", "sslcert", "sslkey"];
    let mut settings = Settings::of(endpoint, options, &strategies, &native)?;
    // Poolers refuse a parameter that they do not know, and we read no floating-point number exactly.
    let named = settings.options.application_name(&format!("lockkeeper {}", whoami()));
    settings.options = named.extra_float_digits(None);
    if let Some(schema) = schema {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty() || !schema.chars().all(plain) {
            return Err(Error::Url(format!(
                "option schema cannot be {schema:?}; it is lower-case letters, digits and _"
            )));
        }
        settings.options = settings.options.options([("search_path", schema)]);
    }
    Ok(settings)
}

#[async_trait]
impl Dialect for PgConnection {
    const ENGINE: &'static str = NAME;

    /// Sets what this server has of: an isolation in which a statement sees what it waited for; grants
    /// that are on disk before they count; dead hosts noticed in half a minute, not in two hours; and
    /// plans that are made once and use the index, also of a table that was empty then.
    async fn greet(&mut self) -> sqlx::Result<()> {
        sqlx::query(
            "SELECT set_config(s.name, coalesce(v.value, CASE s.setting WHEN 'off' THEN 'on' ELSE s.setting END), false)
             FROM pg_settings s JOIN (VALUES
               ('default_transaction_isolation', 'read committed'), ('synchronous_commit', NULL),
               ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'),
               ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '25000'),
               ('client_connection_check_interval', '1000'), ('idle_session_timeout', '0'),
               ('enable_seqscan', 'off'), ('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'),
               ('lock_timeout', '0'), ('statement_timeout', '0'), ('transaction_timeout', '0')
             ) AS v (name, value) ON s.name = v.name",
        )
        .fetch_all(self)
        .await?;
        Ok(())
    }

    async fn session(&mut self) -> sqlx::Result<Session> {
        let asking = "SELECT pid::bigint, backend_start::text FROM pg_stat_activity
                      WHERE pid = pg_backend_pid()";
        let (number, mark) = sqlx::query_as(asking).fetch_one(self).await?;
        Ok(Session { number, mark })
    }

    /// One process can have the number of another that ended, but did not begin when that one did.
    async fn end(&mut self, session: &Session) -> sqlx::Result<()> {
        let ending = sqlx::query(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE pid = $1::integer AND backend_start::text IS NOT DISTINCT FROM $2",
        );
        ending.bind(session.number).bind(&session.mark).execute(self).await.map(drop)
    }

    async fn sweep(&mut self) -> sqlx::Result<()> {
        sqlx::query("SELECT lockkeeper_sweep()").execute(self).await.map(drop)
    }

    async fn doctor(sessions: &Sessions<Self>) -> Result<Vec<Finding>> {
        doctor::look(sessions).await
    }

    /// Without the line of the server's own source, which it also tells.
    fn words(error: &dyn DatabaseError) -> String {
        let code = error.code().unwrap_or_default();
        format!("{} ({code})", error.message())
    }

    fn advice(error: &dyn DatabaseError) -> Option<&'static str> {
        match &*error.code()? {
            // A statement that we prepared is not there, or somebody else's is.
            "26000" | "42P05" => Some(
                "a pooler seems to lend connections by transaction; connect past it, to the server itself",
            ),
            // Nothing but a pooler knows startup parameters that it does not support.
            "08P01" => Some(
                "if that is a pooler, connect past it, to the server itself; or let it lend connections by \
                 session, and ignore or track this parameter",
            ),
            "28000" | "28P01" => Some(
                "the user is named by the URL; the password by the URL, PGPASSWORD, ~/.pgpass or the \
                 option password_file",
            ),
            "42501" => {
                Some("lockkeeper explain --schema postgres: shows what the rights are needed for")
            }
            _ => None,
        }
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

/// Connects, and makes sure that the database is not a standby, that it has our tables, and that
/// nobody stands between us and it who lends connections by transaction: such a one would lose our
/// settings, our messages and our statements, and what a connection holds.
pub(super) async fn prepare(settings: Settings) -> Result<Sessions<PgConnection>> {
    let sessions: Sessions<PgConnection> = Sessions::new(settings.options, settings.connections);
    let mut session = sessions.any().await?;
    let answer = sqlx::query(
        "SELECT pg_is_in_recovery(), to_regproc('lockkeeper_version')::text,
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
    if row.get::<i32, _>(2) < 14_00_00 {
        return Err(Error::broken(NAME, "keep locks here", "it needs PostgreSQL 14 or newer"));
    }
    if row.get::<Option<String>, _>(1).is_none() {
        if !settings.create {
            return Err(sql::missing(NAME, "they are not there, and the option create is no"));
        }
        make(&sessions).await?;
    }
    let mut session = sessions.any().await?;
    let answer = sqlx::query_scalar::<_, i32>("SELECT lockkeeper_version()");
    let answer = answer.fetch_one(session.wire()).await;
    let version = session.settle(answer, "read the version of the tables")?;
    sql::check_version(NAME, version, VERSION)?;
    if !doctor::is_direct(&sessions).await? {
        return Err(Error::broken(
            NAME,
            "keep locks here",
            "connections have no server process of their own: a pooler lends them by transaction; \
             connect past the pooler, to the server itself",
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
