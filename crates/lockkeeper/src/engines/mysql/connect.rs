//! From settings to a usable database: session settings and tables.

use async_trait::async_trait;
use sqlx::mysql::MySqlConnection;

use super::cluster::{Cluster, cluster, cluster_of};
use super::doctor;
use super::error::{is_deadlock, is_somebody_elses_doing, is_unreadable};
use super::settings::Settings;
use crate::engine::Finding;
use crate::engine::broken::KEPT;
use crate::engines::sql::{self, Dialect, STATEMENT, Session, Sessions, within};
use crate::error::{Error, Result};
use crate::key::Key;

/// The tables and procedures that this engine needs, as a migration to run by hand.
///
/// It is run automatically if the user of the URL has the permissions, unless the option `create`
/// is `no`.
pub const SCHEMA: &str = include_str!("schema.sql");

pub(super) const NAME: &str = "mysql";

#[async_trait]
impl Dialect for MySqlConnection {
    const VERSION: i32 = 3;

    async fn tables(&mut self) -> sqlx::Result<Option<i32>> {
        let asking = sqlx::query_scalar::<_, i64>(
            "SELECT COUNT(*) FROM information_schema.tables
             WHERE table_schema = DATABASE() AND table_name = 'lockkeeper_version'",
        );
        if asking.fetch_one(&mut *self).await? == 0 {
            return Ok(None);
        }
        sqlx::query_scalar("SELECT MAX(version) FROM lockkeeper_version").fetch_one(self).await
    }

    /// One client at a time, since procedures are dropped and created again. The lock ends with the
    /// connection.
    async fn make_tables(&mut self) -> sqlx::Result<()> {
        let alone = cluster(self).await? != Cluster::Galera;
        if alone {
            let waiting = sqlx::query("DO GET_LOCK('lockkeeper: making tables', 60)");
            waiting.execute(&mut *self).await?;
        }
        // Another client that created them meanwhile may use them already.
        if self.tables().await?.is_none() {
            for statement in statements() {
                make(self, &statement, alone).await?;
            }
        }
        if alone {
            let done = sqlx::query("DO RELEASE_LOCK('lockkeeper: making tables')");
            done.execute(self).await?;
        }
        Ok(())
    }

    /// Sets an isolation level without gap locks, which would make neighbours in the index wait for
    /// each other, and a timeout for row locks, but none for named locks; times are in UTC, and an
    /// empty string is not null. A commit neither begins a transaction nor ends the session, an
    /// idle transaction is not rolled back, and no default limits what a statement reads or
    /// changes. A member of a cluster has to apply what the others have committed before it
    /// answers.
    async fn greet(&mut self) -> sqlx::Result<()> {
        sqlx::raw_sql(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
             SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',
               autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 5,
               unique_checks = 1, foreign_key_checks = 1, sql_auto_is_null = 0,
               sql_safe_updates = 0, sql_big_selects = 1, sql_select_limit = 18446744073709551615
               /*M! , max_statement_time = 0, idle_transaction_timeout = 0,
               idle_write_transaction_timeout = 0, idle_readonly_transaction_timeout = 0 */
               /*!80000 , max_execution_time = 0 */",
        )
        .execute(&mut *self)
        .await?;
        let catch_up = match cluster(self).await? {
            Cluster::None => return Ok(()),
            Cluster::Galera => "SET SESSION wsrep_sync_wait = 7",
            Cluster::MultiPrimary => "SET SESSION group_replication_consistency = 'BEFORE'",
            Cluster::SinglePrimary => {
                "SET SESSION group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER'"
            }
        };
        sqlx::raw_sql(catch_up).execute(self).await.map(drop)
    }

    /// Our client port distinguishes two connections with the same number, before and after a
    /// restart of the server.
    async fn session(&mut self) -> sqlx::Result<Session> {
        let asking = "SELECT CAST(id AS SIGNED), host FROM information_schema.processlist
                      WHERE id = CONNECTION_ID()";
        let told = match sqlx::query_as(asking).fetch_one(&mut *self).await {
            Err(error) if is_unreadable(&error) => {
                let asking = "SELECT CAST(id AS SIGNED), host FROM performance_schema.processlist
                              WHERE id = CONNECTION_ID()";
                sqlx::query_as(asking).fetch_one(self).await
            }
            told => told,
        };
        let (number, mark) = told?;
        Ok(Session { number, mark })
    }

    async fn end(&mut self, session: &Session) -> sqlx::Result<()> {
        let ending = sqlx::query("CALL lockkeeper_end(?, ?)");
        ending.bind(session.number).bind(&session.mark).execute(self).await.map(drop)
    }

    async fn ask(&mut self, key: &Key, fences: &[i64], line: &str) -> sqlx::Result<()> {
        for fence in fences {
            let asking = sqlx::query(
                "INSERT INTO lockkeeper_asked (name, fence, at, line) VALUES (?, ?, SYSDATE(6), ?)
                 ON DUPLICATE KEY UPDATE at = SYSDATE(6), line = VALUES(line)",
            );
            let asking = asking.bind(key.as_str().as_bytes()).bind(fence).bind(line);
            asking.execute(&mut *self).await?;
        }
        Ok(())
    }

    async fn asked(&mut self, key: &Key, fence: i64, lately: i64) -> sqlx::Result<Option<String>> {
        let looking = sqlx::query_scalar(
            "SELECT line FROM lockkeeper_asked
             WHERE name = ? AND fence = ? AND at > SYSDATE(6) - INTERVAL ? MICROSECOND",
        );
        let looking = looking.bind(key.as_str().as_bytes()).bind(fence).bind(lately);
        looking.fetch_optional(self).await
    }

    async fn add_break(&mut self, line: &str) -> sqlx::Result<()> {
        let adding = sqlx::query("INSERT INTO lockkeeper_broken (line) VALUES (?)");
        adding.bind(line).execute(&mut *self).await?;
        let removing = sqlx::query(
            "DELETE b FROM lockkeeper_broken b JOIN
               (SELECT id FROM lockkeeper_broken ORDER BY id DESC LIMIT 1 OFFSET ?) o ON b.id <= o.id",
        );
        removing.bind(KEPT as u64).execute(self).await.map(drop)
    }

    async fn remove_break(&mut self, line: &str) -> sqlx::Result<()> {
        let removing = sqlx::query("DELETE FROM lockkeeper_broken WHERE line = ?");
        removing.bind(line).execute(self).await.map(drop)
    }

    async fn breaks(&mut self) -> sqlx::Result<Vec<String>> {
        sqlx::query_scalar("SELECT line FROM lockkeeper_broken").fetch_all(self).await
    }

    async fn sweep(&mut self) -> sqlx::Result<()> {
        sqlx::query("CALL lockkeeper_sweep()").execute(self).await.map(drop)
    }

    async fn doctor(sessions: &Sessions<Self>) -> Result<Vec<Finding>> {
        doctor::look(sessions).await
    }
}

/// Runs a statement of the schema. In a cluster, other clients may create the tables at the same
/// time: then what exists already, or is already gone, is as intended, and a statement that
/// conflicted with another member is repeated.
async fn make(wire: &mut MySqlConnection, statement: &str, alone: bool) -> sqlx::Result<()> {
    for _ in 0..10 {
        let statement = sqlx::AssertSqlSafe(statement.to_owned());
        match sqlx::raw_sql(statement).execute(&mut *wire).await {
            Err(error) if !alone && is_somebody_elses_doing(&error) => return Ok(()),
            Err(error) if !alone && is_deadlock(&error) => {}
            made => return made.map(drop),
        }
    }
    Err(sqlx::Error::Protocol("other members are always in the way".to_owned()))
}

/// Connects, and checks that the database is writable and has our tables.
pub(super) async fn prepare(settings: Settings) -> Result<Sessions<MySqlConnection>> {
    let sessions: Sessions<MySqlConnection> = Sessions::new(settings.options, settings.connections);
    let mut session = sessions.any().await?;
    let asking = sqlx::query_scalar::<_, i64>("SELECT @@global.read_only");
    let answer = within(STATEMENT, asking.fetch_one(session.wire())).await;
    if session.settle(answer, "look at the database")? != 0 {
        return Err(Error::broken(
            NAME,
            "keep locks here",
            "this server is read-only, as replicas are; name the primary",
        ));
    }
    let cluster = cluster_of(&sessions).await?;
    if cluster.is_group() {
        check_tables_of_group(&sessions, cluster).await?;
    }
    sql::prepare(&sessions, settings.create).await?;
    Ok(sessions)
}

/// Whether uncontended locks may be released by a row of `lockkeeper_freed`. Not on a member of a
/// cluster, which does not share what is in its memory; nor where that table is in memory and
/// replicas follow: the memory of one that restarts is empty, and it stops at the first change of
/// a row that it does not have.
pub(super) async fn may_release_by_mark(sessions: &Sessions<MySqlConnection>) -> Result<bool> {
    if cluster_of(sessions).await? != Cluster::None {
        return Ok(false);
    }
    let mut session = sessions.any().await?;
    let answer = within(STATEMENT, is_replicated_memory(session.wire())).await;
    Ok(!session.settle(answer, "look at the tables")?)
}

/// Whether `lockkeeper_freed` is in memory, and its changes are written to a binary log.
pub(super) async fn is_replicated_memory(wire: &mut MySqlConnection) -> sqlx::Result<bool> {
    let asking = sqlx::query_scalar::<_, i64>(
        "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()
           AND table_name = 'lockkeeper_freed' AND engine = 'MEMORY' AND @@global.log_bin = 1",
    );
    Ok(asking.fetch_one(wire).await? > 0)
}

/// The same for session locks, which only one member of a cluster knows.
pub(super) async fn prepare_to_bind(settings: Settings) -> Result<Sessions<MySqlConnection>> {
    let sessions = prepare(settings).await?;
    if let Some(cluster) = cluster_of(&sessions).await?.of_primaries() {
        return Err(Error::broken(
            NAME,
            "hold locks by connections",
            format!(
                "this server is a member of {cluster}, whose other members know nothing of such locks; \
                 use strategy=lease"
            ),
        ));
    }
    Ok(sessions)
}

/// A group does not write tables that are in memory, and a member that meets a table which it has
/// made itself leaves the group: clients at different members must not make tables at once.
async fn check_tables_of_group(
    sessions: &Sessions<MySqlConnection>,
    cluster: Cluster,
) -> Result<()> {
    let mut session = sessions.any().await?;
    let asking = sqlx::query_scalar::<_, String>(
        "SELECT CAST(engine AS CHAR) FROM information_schema.tables
         WHERE table_schema = DATABASE() AND table_name = 'lockkeeper_freed'",
    );
    let answer = within(STATEMENT, asking.fetch_optional(session.wire())).await;
    let problem = match session.settle(answer, "look at the tables")?.as_deref() {
        Some("MEMORY") => {
            "a group does not write tables that are in memory, as lockkeeper_freed is"
        }
        None if cluster == Cluster::MultiPrimary => {
            "members of a multi-primary group must not make tables at the same time"
        }
        _ => return Ok(()),
    };
    let advice = "run what `lockkeeper explain --schema mysql:` prints at one member";
    Err(Error::broken(NAME, "keep locks here", format!("{problem}; {advice}")))
}

/// The statements of the schema, which is written for a client that splits it at `DELIMITER`.
fn statements() -> impl Iterator<Item = String> {
    let lines = SCHEMA.lines().filter(|line| !line.starts_with("DELIMITER"));
    let text: String = lines.map(|line| line.to_owned() + "\n").collect();
    let parts: Vec<_> = text.split("//\n").map(|part| part.trim().to_owned()).collect();
    parts.into_iter().filter(|part| !part.is_empty())
}
