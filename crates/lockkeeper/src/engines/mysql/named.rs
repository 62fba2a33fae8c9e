//! The strategy `named`: locks that `GET_LOCK` acquires for a connection.
//!
//! Their names are short, case-insensitive, and shared by the whole server, so a key is mapped to
//! 192 bits of a hash of the database and the key. The cleanup in `schema.sql` and the statements
//! here use the same hash.
//!
//! A client that finds the lock free gets it and its fence by one statement. A statement that
//! writes never waits for a lock: it would block others with the rows it has locked already.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::connect::NAME;
use super::waiters::{waiters, waiting_statement};
use crate::engine::{Entry, Guarantees, Mode, Query, Support};
use crate::engines::sql::{
    Ask, Dedicated, Looked, Marked, Seen, ServerErrors, Session, SessionLock, Sessions, Taken,
    answered, fence, promises, since,
};
use crate::error::Result;

/// Commits a fence if a condition confirms that the lock is ours.
macro_rules! fence_if {
    ($held:literal) => {
        concat!(
            "INSERT INTO lockkeeper_bound (name, fence, pid, who, note, since)
             SELECT ?, LAST_INSERT_ID(CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)),
               CONNECTION_ID(), ?, ?, SYSDATE(6) FROM DUAL WHERE ",
            $held,
            " ON DUPLICATE KEY UPDATE
               fence = LAST_INSERT_ID(GREATEST(lockkeeper_bound.fence + 1,
                 CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED))),
               pid = VALUES(pid), who = VALUES(who), note = VALUES(note), since = VALUES(since)"
        )
    };
}

const IF_OURS: &str = fence_if!(
    "IS_USED_LOCK(CONCAT('lockkeeper:',
       LEFT(SHA2(CONCAT(DATABASE(), x'00', CAST(? AS BINARY)), 256), 48))) = CONNECTION_ID()"
);

/// Named locks of the server.
#[derive(Debug)]
pub(super) struct Named;

#[async_trait]
impl SessionLock for Named {
    type Wire = MySqlConnection;

    const GUARANTEES: Guarantees = promises(
        NAME,
        Support::No("a named lock has one holder; strategy=lease has readers"),
        Support::No("a named lock has one holder; strategy=lease has permits"),
    );

    /// Also sets it not to wait for rows that others have locked; MySQL waits for at least a
    /// second.
    async fn limit(wire: &mut MySqlConnection, silence: Duration) -> sqlx::Result<()> {
        limit(wire, silence).await?;
        let hurry = "SET SESSION innodb_lock_wait_timeout = IF(VERSION() LIKE '%MariaDB%', 0, 1)";
        sqlx::query(hurry).execute(wire).await.map(drop)
    }

    async fn take(wire: &mut MySqlConnection, ask: &Ask, wait: bool) -> sqlx::Result<Taken> {
        if wait {
            let waiting = sqlx::AssertSqlSafe(waiting_statement(ask));
            sqlx::raw_sql(waiting).execute(&mut *wire).await?;
        }
        let statement = if wait {
            IF_OURS
        } else {
            fence_if!(
                "GET_LOCK(CONCAT('lockkeeper:',
                   LEFT(SHA2(CONCAT(DATABASE(), x'00', CAST(? AS BINARY)), 256), 48)), 0) = 1"
            )
        };
        match bind(wire, ask, statement).await? {
            Marked::Fenced(fence) => Ok(Taken::Fenced(fence)),
            Marked::Guarded => Ok(Taken::Unfenced),
            Marked::Gone => Ok(Taken::Busy),
        }
    }

    async fn mark(
        _: &Sessions<MySqlConnection>,
        holder: &mut Dedicated<MySqlConnection>,
        ask: &Ask,
    ) -> Result<Marked> {
        answered::<MySqlConnection, _>(bind(&mut holder.wire, ask, IF_OURS)).await
    }

    async fn beat(wire: &mut MySqlConnection, ask: &Ask) -> sqlx::Result<bool> {
        let asking = sqlx::query_scalar::<_, Option<i64>>(
            "SELECT CAST(IS_USED_LOCK(CONCAT('lockkeeper:',
               LEFT(SHA2(CONCAT(DATABASE(), x'00', CAST(? AS BINARY)), 256), 48))) = CONNECTION_ID() AS SIGNED)",
        );
        let held = asking.bind(ask.key.as_str().as_bytes()).fetch_one(wire).await?;
        Ok(held == Some(1))
    }

    /// Whatever the connection holds, since it holds nothing else.
    async fn give_back(wire: &mut MySqlConnection, _: &Ask) -> sqlx::Result<bool> {
        let giving = sqlx::query_scalar::<_, i64>("SELECT CAST(RELEASE_ALL_LOCKS() AS SIGNED)");
        Ok(giving.fetch_one(wire).await? > 0)
    }

    async fn look(wire: &mut MySqlConnection, query: &Query) -> sqlx::Result<Looked> {
        macro_rules! locks {
            ($which:literal) => {
                concat!(
                    "SELECT CONVERT(b.name USING utf8mb4) AS name, b.fence, b.who, b.note, b.pid,
                       CAST(IS_USED_LOCK(CONCAT('lockkeeper:',
                         LEFT(SHA2(CONCAT(DATABASE(), x'00', b.name), 256), 48))) AS SIGNED) AS holder,
                       TIMESTAMPDIFF(MICROSECOND, b.since, SYSDATE(6)) AS age_us
                     FROM lockkeeper_bound b WHERE ",
                    $which,
                    " ORDER BY b.name"
                )
            };
        }
        let (statement, text) = match query {
            Query::Key(key) => (locks!("b.name = ? AND ? IS NOT NULL"), key.as_str()),
            Query::Prefix(prefix) => (locks!("LEFT(b.name, LENGTH(?)) = ?"), prefix.as_str()),
        };
        let asking = sqlx::query(statement).bind(text.as_bytes()).bind(text.as_bytes());
        let rows = asking.fetch_all(&mut *wire).await?;
        let holders = rows.iter().filter_map(|row| seen(row).transpose());
        let holders: Vec<_> = holders.collect::<sqlx::Result<_>>()?;
        if holders.is_empty() {
            return Ok(Looked { seen: holders, unknown: None });
        }
        Ok(match waiters(wire).await? {
            Ok(waiters) => Looked { seen: waiters.behind(holders), unknown: None },
            Err(unknown) => Looked { seen: holders, unknown: Some(unknown) },
        })
    }
}

/// Commits a fence by one of these statements. Only a guarded transaction can have locked the row,
/// and we do not wait for it: by then the lock is ours.
async fn bind(
    wire: &mut MySqlConnection,
    ask: &Ask,
    statement: &'static str,
) -> sqlx::Result<Marked> {
    let key = ask.key.as_str().as_bytes();
    let binding = sqlx::query(statement).bind(key).bind(&*ask.who).bind(&ask.note).bind(key);
    match binding.execute(wire).await {
        Ok(done) if done.rows_affected() == 0 => Ok(Marked::Gone),
        Ok(done) => Ok(Marked::Fenced(i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX))),
        Err(sqlx::Error::Database(error)) if MySqlConnection::was_in_the_way(&*error) => {
            Ok(Marked::Guarded)
        }
        Err(error) => Err(error),
    }
}

/// A row about the holder, if there is one. A foreign lock is shown without a name.
///
/// Free locks are left out here and not by the statement: `IS_USED_LOCK` returns the state at the
/// moment of the call, so a statement that uses it twice, in a condition and in a column, may get
/// two answers.
pub(super) fn seen(row: &MySqlRow) -> sqlx::Result<Option<Seen>> {
    let Some(number) = row.try_get::<Option<i64>, _>("holder")? else { return Ok(None) };
    let last: i64 = row.try_get("fence")?;
    let known = row.try_get::<Option<i64>, _>("pid")? == Some(number);
    let age: Option<i64> = row.try_get("age_us")?;
    let who: Option<String> = if known { row.try_get("who")? } else { None };
    let entry = Entry {
        note: if known { row.try_get("note")? } else { None },
        since: age.filter(|_| known).and_then(since),
        fence: known.then(|| fence(last)),
        ..Entry::new(number.to_string(), Mode::Mutex)
    };
    let entry = match who {
        Some(who) => entry.by(&who),
        None => entry,
    };
    let session = Session { number, mark: None };
    Ok(Some(Seen { key: row.try_get("name")?, session, holds: true, last, entry }))
}

/// Sets the silence after which the server ends the session: whole seconds, never less than the
/// lease.
pub(super) async fn limit(wire: &mut MySqlConnection, silence: Duration) -> sqlx::Result<()> {
    let whole = silence.as_secs() + u64::from(silence.subsec_nanos() > 0);
    let seconds = i64::try_from(whole).unwrap_or(i64::MAX).clamp(1, 31_536_000);
    sqlx::query("SET SESSION wait_timeout = ?").bind(seconds).execute(wire).await.map(drop)
}
