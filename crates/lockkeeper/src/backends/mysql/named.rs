//! The strategy `named`: locks that `GET_LOCK` takes for a connection.
//!
//! Their names are short, not case-sensitive, and of the whole server, so a key goes by 192 bits of a
//! hash of the database and the key. The cleaner in `schema.sql` and the statements here agree on it.
//!
//! Who finds the lock free has it and its fence by one statement. Nobody waits for a lock by a statement
//! that writes: it would keep others from what it has locked already.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sqlx::Row;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::connect::NAME;
use crate::backend::{Entry, Guarantees, Mode, Query, Support};
use crate::backends::sql::{Ask, Hold, Seen, Taken, fence, promises};
use crate::owner::whoami;

/// Named locks of the server.
#[derive(Debug)]
pub(super) struct Named;

#[async_trait]
impl Hold for Named {
    type Wire = MySqlConnection;

    const GUARANTEES: Guarantees = promises(
        NAME,
        Support::No("a named lock has one holder; strategy=lease has readers"),
        Support::No("a named lock has one holder; strategy=lease has permits"),
    );

    const SEES_WAITERS: bool = false;

    async fn limit(wire: &mut MySqlConnection, silence: Duration) -> sqlx::Result<()> {
        limit(wire, silence).await
    }

    async fn take(wire: &mut MySqlConnection, ask: &Ask, wait: bool) -> sqlx::Result<Taken> {
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
        let key = ask.key.as_str().as_bytes();
        let statement = if wait {
            let waiting = sqlx::query(
                "DO GET_LOCK(CONCAT('lockkeeper:',
                   LEFT(SHA2(CONCAT(DATABASE(), x'00', CAST(? AS BINARY)), 256), 48)), 3600)",
            );
            waiting.bind(key).execute(&mut *wire).await?;
            fence_if!(
                "IS_USED_LOCK(CONCAT('lockkeeper:',
                   LEFT(SHA2(CONCAT(DATABASE(), x'00', CAST(? AS BINARY)), 256), 48))) = CONNECTION_ID()"
            )
        } else {
            fence_if!(
                "GET_LOCK(CONCAT('lockkeeper:',
                   LEFT(SHA2(CONCAT(DATABASE(), x'00', CAST(? AS BINARY)), 256), 48)), 0) = 1"
            )
        };
        let taking = sqlx::query(statement).bind(key).bind(whoami()).bind(&ask.note).bind(key);
        let taken = taking.execute(wire).await?;
        Ok(match taken.rows_affected() {
            0 => Taken::Busy,
            _ => Taken::Fenced(i64::try_from(taken.last_insert_id()).unwrap_or(i64::MAX)),
        })
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

    async fn look(wire: &mut MySqlConnection, query: &Query) -> sqlx::Result<Vec<Seen>> {
        macro_rules! locks {
            ($which:literal) => {
                concat!(
                    "SELECT CONVERT(b.name USING utf8mb4) AS name, b.fence, b.who, b.note, b.pid,
                       CAST(IS_USED_LOCK(CONCAT('lockkeeper:',
                         LEFT(SHA2(CONCAT(DATABASE(), x'00', b.name), 256), 48))) AS SIGNED) AS holder,
                       CAST(UNIX_TIMESTAMP(b.since) * 1000000 AS SIGNED) AS since_us
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
        let rows = asking.fetch_all(wire).await?;
        rows.iter().filter_map(|row| seen(row).transpose()).collect()
    }
}

/// A row that says who holds, if anyone does. Somebody else's lock is shown without a name.
///
/// Free locks are left out here and not by the statement: `IS_USED_LOCK` tells the moment it is asked, so
/// a statement that names it twice, in a condition and in a column, can be told two things.
pub(super) fn seen(row: &MySqlRow) -> sqlx::Result<Option<Seen>> {
    let Some(number) = row.try_get::<Option<i64>, _>("holder")? else { return Ok(None) };
    let last: i64 = row.try_get("fence")?;
    let known = row.try_get::<Option<i64>, _>("pid")? == Some(number);
    let since = u64::try_from(row.try_get::<i64, _>("since_us")?).ok();
    let since = since.map(|us| SystemTime::UNIX_EPOCH + Duration::from_micros(us));
    let entry = Entry {
        identity: number.to_string(),
        mode: Mode::Mutex,
        who: if known { row.try_get("who")? } else { None },
        note: if known { row.try_get("note")? } else { None },
        since: since.filter(|_| known),
        left: None,
        fence: known.then(|| fence(last)),
        slots: Vec::new(),
    };
    Ok(Some(Seen { key: row.try_get("name")?, number, holds: true, last, entry }))
}

/// Has the server end the session after this silence: whole seconds, never less than the lease.
pub(super) async fn limit(wire: &mut MySqlConnection, silence: Duration) -> sqlx::Result<()> {
    let whole = silence.as_secs() + u64::from(silence.subsec_nanos() > 0);
    let seconds = i64::try_from(whole).unwrap_or(i64::MAX).clamp(1, 31_536_000);
    sqlx::query("SET SESSION wait_timeout = ?").bind(seconds).execute(wire).await.map(drop)
}
