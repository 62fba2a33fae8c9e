//! From settings to a database that is fit to keep locks: first words, tables, and nobody in between.

use async_trait::async_trait;
use sqlx::postgres::PgConnection;

use super::doctor;
use super::error::is_unknown_function;
use super::settings::Settings;
use crate::engine::Finding;
use crate::engines::sql::{self, Dialect, STATEMENT, Session, Sessions, within};
use crate::error::{Error, Result};

/// The tables and functions that this engine needs, as a migration to run by hand.
///
/// It is run by itself where the user of the URL may do that, unless the option `create` is `no`.
pub const SCHEMA: &str = include_str!("schema.sql");

/// Serialises those who make the tables at the same time. Any number that others will not use.
const MAKING: i64 = 0x6c6f_636b_6b65_6570;

pub(super) const NAME: &str = "postgres";

#[async_trait]
impl Dialect for PgConnection {
    const VERSION: i32 = 2;

    async fn tables(&mut self) -> sqlx::Result<Option<i32>> {
        let asking = sqlx::query_scalar("SELECT lockkeeper_version()");
        match asking.fetch_one(self).await {
            Ok(version) => Ok(Some(version)),
            Err(error) if is_unknown_function(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn make_tables(&mut self) -> sqlx::Result<()> {
        // One batch is one transaction, which the lock lasts for.
        let batch = format!("SELECT pg_advisory_xact_lock({MAKING}); {SCHEMA}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(batch)).execute(self).await.map(drop)
    }

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
}

/// Connects, and makes sure that the server is not a standby, that the database has our tables, and that
/// no pooler in transaction mode is in between: it would lose our settings, messages and statements, and
/// what a connection holds.
pub(super) async fn prepare(settings: Settings) -> Result<Sessions<PgConnection>> {
    let sessions: Sessions<PgConnection> = Sessions::new(settings.options, settings.connections);
    let mut session = sessions.any().await?;
    let asking = sqlx::query_as(
        "SELECT pg_is_in_recovery(), current_setting('server_version_num')::integer",
    );
    let answer = within(STATEMENT, asking.fetch_one(session.wire())).await;
    let (is_standby, version): (bool, i32) = session.settle(answer, "look at the database")?;
    if is_standby {
        return Err(Error::broken(
            NAME,
            "keep locks here",
            "this server is a standby, which only follows another; name the primary",
        ));
    }
    if version < 14_00_00 {
        return Err(Error::broken(NAME, "keep locks here", "it needs PostgreSQL 14 or newer"));
    }
    sql::prepare(&sessions, settings.create).await?;
    let (mut first, mut second) = (sessions.any().await?, sessions.for_renewals().await?);
    let answer = within(STATEMENT, doctor::is_direct(first.wire(), second.wire())).await;
    let direct = first.settle(answer, "look for a pooler")?;
    second.settle(Ok(()), "look for a pooler")?;
    if !direct {
        return Err(Error::broken(
            NAME,
            "keep locks here",
            "connections have no server process of their own: a pooler lends them by transaction; \
             connect past the pooler, to the server itself",
        ));
    }
    Ok(sessions)
}
