//! From settings to a usable database: session settings, tables, and detection of a pooler.

use async_trait::async_trait;
use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::doctor;
use super::error::{is_queue_full, is_unknown_function};
use super::settings::{Settings, Strategy};
use super::statement::{Sending, Value, transaction};
use crate::engine::Finding;
use crate::engine::broken::KEPT;
use crate::engines::sql::{self, Dialect, STATEMENT, Session, Sessions, within};
use crate::error::{Error, Result};
use crate::key::Key;

/// The tables and functions that this engine needs, as a migration to run by hand.
///
/// It is run automatically if the user of the URL has the permissions, unless the option `create`
/// is `no`.
pub const SCHEMA: &str = include_str!("schema.sql");

/// Serialises clients that create the tables at the same time. An arbitrary number.
const MAKING: i64 = 0x6c6f_636b_6b65_6570;

pub(super) const NAME: &str = "postgres";

#[async_trait]
impl Dialect for PgConnection {
    const VERSION: i32 = 3;

    async fn tables(&mut self) -> sqlx::Result<Option<i32>> {
        // A simple query, like `sweep`: it also works behind a pooler without prepared statements.
        match sqlx::raw_sql("SELECT lockkeeper_version()").fetch_one(self).await {
            Ok(row) => row.try_get(0).map(Some),
            Err(error) if is_unknown_function(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn make_tables(&mut self) -> sqlx::Result<()> {
        // One batch is one transaction, for which the lock lasts.
        let begin = transaction!("SELECT pg_advisory_xact_lock");
        let batch = format!("{begin}({MAKING}); {SCHEMA}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(batch)).execute(self).await.map(drop)
    }

    /// Sets those of these that the server has: an isolation level in which a statement sees what
    /// it waited for; durable commits of grants; detection of dead hosts in half a minute instead
    /// of two hours; and cached plans that use the index, even for a table that was empty when they
    /// were made.
    async fn greet(&mut self) -> sqlx::Result<()> {
        sqlx::query(
            "SELECT set_config(s.name, coalesce(v.value, CASE s.setting WHEN 'off' THEN 'on' ELSE s.setting END), false)
             FROM pg_settings s JOIN (VALUES
               ('default_transaction_isolation', 'read committed'),
               ('default_transaction_read_only', 'off'), ('synchronous_commit', NULL),
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

    /// A process may have the pid of one that ended, but not its start time.
    async fn end(&mut self, session: &Session) -> sqlx::Result<()> {
        let ending = sqlx::query(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE pid = $1::integer AND backend_start::text IS NOT DISTINCT FROM $2",
        );
        ending.bind(session.number).bind(&session.mark).execute(self).await.map(drop)
    }

    /// Plain statements, as behind a pooler: requests are rare.
    async fn ask(&mut self, key: &Key, fences: &[i64], line: &str) -> sqlx::Result<()> {
        let asking = "INSERT INTO lockkeeper_asked (key, fence, line) SELECT $1, unnest($2), $3
             ON CONFLICT (key, fence) DO UPDATE SET at = clock_timestamp(), line = excluded.line";
        let values = [Value::Text(key.as_str()), Value::Numbers(fences), Value::Text(line)];
        Sending::Plain.ask(self, asking, &values).await?;
        let telling = "SELECT pg_notify('lockkeeper_asked', $1)";
        match Sending::Plain.ask(self, telling, &values[..1]).await {
            // It is recorded, and its holders look for it anyway.
            Err(error) if is_queue_full(&error) => Ok(()),
            told => told.map(drop),
        }
    }

    async fn asked(&mut self, key: &Key, fence: i64, lately: i64) -> sqlx::Result<Option<String>> {
        let looking = "SELECT line FROM lockkeeper_asked WHERE key = $1 AND fence = $2
               AND at > clock_timestamp() - $3 * interval '1 microsecond'";
        let values = [Value::Text(key.as_str()), Value::Number(fence), Value::Number(lately)];
        let rows = Sending::Plain.ask(self, looking, &values).await?;
        rows.first().map(|row| row.try_get(0)).transpose()
    }

    /// A plain statement, as behind a pooler: breaks are rare.
    async fn add_break(&mut self, line: &str) -> sqlx::Result<()> {
        let adding = "WITH added AS (INSERT INTO lockkeeper_broken (line) VALUES ($1))
             DELETE FROM lockkeeper_broken WHERE id <=
               (SELECT id FROM lockkeeper_broken ORDER BY id DESC OFFSET $2 - 1 LIMIT 1)";
        let values = [Value::Text(line), Value::Number(KEPT as i64)];
        Sending::Plain.ask(self, adding, &values).await.map(drop)
    }

    async fn remove_break(&mut self, line: &str) -> sqlx::Result<()> {
        let removing = "DELETE FROM lockkeeper_broken WHERE line = $1";
        Sending::Plain.ask(self, removing, &[Value::Text(line)]).await.map(drop)
    }

    async fn breaks(&mut self) -> sqlx::Result<Vec<String>> {
        let rows = Sending::Plain.ask(self, "SELECT line FROM lockkeeper_broken", &[]).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }

    async fn sweep(&mut self) -> sqlx::Result<()> {
        sqlx::raw_sql(transaction!("SELECT lockkeeper_sweep()")).execute(self).await.map(drop)
    }

    async fn doctor(sessions: &Sessions<Self>) -> Result<Vec<Finding>> {
        doctor::look(sessions).await
    }
}

/// Connects, and checks that the server is not a standby and that the database has our tables.
/// Detects a transaction-mode pooler, behind which there are no sessions, so that only leases work.
pub(super) async fn prepare(settings: Settings) -> Result<Sessions<PgConnection>> {
    let Settings { common, schema, is_pooled } = settings;
    let mut sessions: Sessions<PgConnection> = Sessions::lent(common.options, common.connections);
    if !is_pooled && is_direct(&sessions).await? {
        sessions = sessions.greeted().await?;
    } else if common.strategy != Strategy::Lease {
        return Err(Error::broken(
            NAME,
            "hold locks by connections",
            "connections have no server process of their own: a pooler lends them by transaction; \
             use strategy=lease, or connect past the pooler, to the server itself",
        ));
    }
    let mut session = sessions.any().await?;
    let asking = sqlx::raw_sql(
        "SELECT pg_is_in_recovery() AS standby, current_setting('search_path') AS path,
           current_setting('server_version_num')::integer AS version",
    );
    let answer = within(STATEMENT, asking.fetch_one(session.wire())).await;
    let row = session.settle(answer, "look at the database")?;
    if row.get("standby") {
        return Err(Error::broken(
            NAME,
            "keep locks here",
            "this server is a standby, which only follows another; name the primary",
        ));
    }
    if row.get::<i32, _>("version") < 14_00_00 {
        return Err(Error::broken(NAME, "keep locks here", "it needs PostgreSQL 14 or newer"));
    }
    let path: &str = row.get("path");
    if let Some(schema) = schema
        && path.split(',').next().is_none_or(|first| first.trim().trim_matches('"') != schema)
    {
        return Err(Error::broken(
            NAME,
            "find the tables of lockkeeper",
            format!(
                "the search path is {path:?} in spite of the option schema: a pooler ignores what sets it; \
                 ALTER ROLE … SET search_path = {schema} sets it for the user of the URL"
            ),
        ));
    }
    sql::prepare(&sessions, common.create).await?;
    Ok(sessions)
}

async fn is_direct(sessions: &Sessions<PgConnection>) -> Result<bool> {
    let (mut first, mut second) = (sessions.any().await?, sessions.for_renewals().await?);
    let answer = within(STATEMENT, doctor::is_direct(first.wire(), second.wire())).await;
    let direct = first.settle(answer, "look for a pooler")?;
    second.settle(Ok(()), "look for a pooler")?;
    Ok(direct)
}
