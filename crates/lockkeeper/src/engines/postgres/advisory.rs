//! The strategy `advisory`: session-level advisory locks, held and queued for by the server.
//!
//! A key's number is the first 64 bits of a SHA-256, and the table `lockkeeper_bound` records its
//! key: a second key with the same number is refused, so two names never share a lock.

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use std::time::Duration;

use super::connect::NAME;
use crate::engine::{Entry, Guarantees, Mode, Query, Support};
use crate::engines::sql::{
    Ask, Dedicated, Looked, Marked, Seen, Session, SessionLock, Sessions, Taken, answered, fence,
    promises, since,
};
use crate::error::Result;
use crate::key::Key;
use crate::who::take_apart;

/// Locks of the server's lock manager.
#[derive(Debug)]
pub(super) struct Advisory;

#[async_trait]
impl SessionLock for Advisory {
    type Wire = PgConnection;

    const GUARANTEES: Guarantees = promises(
        NAME,
        Support::Yes,
        Support::No("advisory locks do not count; strategy=lease does"),
    );

    /// Usually it is free, and its next fence is from a range that is already committed: then one
    /// plain statement acquires it, and then locks the row with the fence, in its newest version.
    /// The function waits, and starts the next range.
    async fn take(wire: &mut PgConnection, ask: &Ask, wait: bool) -> sqlx::Result<Taken> {
        if !ask.read && !wait {
            let taking = sqlx::query_scalar(
                "UPDATE lockkeeper_last l
                 SET fence = l.fence + 1, pid = pg_backend_pid(), who = $4, note = $5,
                     since = clock_timestamp()
                 WHERE l.ctid = (
                   SELECT f.ctid FROM lockkeeper_last f
                   WHERE f.key = $1 AND CASE WHEN f.fence < f.range_end THEN pg_try_advisory_lock($2) END
                   FOR NO KEY UPDATE SKIP LOCKED)
                 RETURNING l.fence, set_config('idle_session_timeout', $3, false)",
            )
            .bind(ask.key.as_str())
            .bind(number(&ask.key))
            .bind(milliseconds(ask.ttl).to_string())
            .bind(&*ask.who)
            .bind(&ask.note);
            if let Some(fence) = taking.fetch_optional(&mut *wire).await? {
                return Ok(Taken::Fenced(fence));
            }
        }
        let fence: Option<i64> = sqlx::query_scalar(
            "SELECT lockkeeper_advise($1, $2, $3, $4, $5, $6)
                 FROM set_config('application_name', $7, false)",
        )
        .bind(ask.key.as_str())
        .bind(ask.read)
        .bind(wait)
        .bind(milliseconds(ask.ttl))
        .bind(&*ask.who)
        .bind(&ask.note)
        .bind(application_name(ask))
        .fetch_one(wire)
        .await?;
        Ok(match fence {
            None => Taken::Busy,
            Some(0) => Taken::Unfenced,
            Some(fence) => Taken::Fenced(fence),
        })
    }

    async fn mark(
        _: &Sessions<PgConnection>,
        holder: &mut Dedicated<PgConnection>,
        ask: &Ask,
    ) -> Result<Marked> {
        let marking =
            sqlx::query_scalar("SELECT lockkeeper_bind($1, pg_backend_pid(), false, $2, $3)")
                .bind(ask.key.as_str())
                .bind(&*ask.who)
                .bind(&ask.note)
                .fetch_one(&mut holder.wire);
        let fence: Option<i64> = answered::<PgConnection, _>(marking).await?;
        Ok(fence.map_or(Marked::Guarded, Marked::Fenced))
    }

    async fn beat(wire: &mut PgConnection, _: &Ask) -> sqlx::Result<bool> {
        sqlx::query("SELECT 1").execute(wire).await.map(|_| true)
    }

    /// All of it: the function may have acquired again what the statement before it had acquired
    /// already.
    async fn give_back(wire: &mut PgConnection, ask: &Ask) -> sqlx::Result<bool> {
        let giving = match ask.read {
            false => {
                "SELECT pg_advisory_unlock($1), pg_advisory_unlock_all(),
                   set_config('idle_session_timeout', '0', false)"
            }
            true => {
                "SELECT pg_advisory_unlock_shared($1), pg_advisory_unlock_all(),
                   set_config('idle_session_timeout', '0', false)"
            }
        };
        sqlx::query_scalar(giving).bind(number(&ask.key)).fetch_one(wire).await
    }

    async fn look(wire: &mut PgConnection, query: &Query) -> sqlx::Result<Looked> {
        macro_rules! locks {
            ($which:literal) => {
                concat!(
                    "SELECT b.key, coalesce(f.fence, b.fence) AS fence, l.pid::bigint AS number,
                       l.granted AS holds, l.mode = 'ShareLock' AS shared,
                       coalesce(t.who, substring(a.application_name FROM '^lockkeeper (.+)$')) AS who, t.note,
                       a.backend_start::text AS mark,
                       (extract(epoch FROM clock_timestamp() - coalesce(t.since, l.waitstart)) * 1000000)::bigint
                         AS age
                     FROM pg_locks l
                     JOIN lockkeeper_bound b ON b.id = (l.classid::bigint << 32) | l.objid::bigint
                     LEFT JOIN lockkeeper_last t ON t.key = b.key AND t.pid = l.pid
                       AND l.granted AND l.mode <> 'ShareLock'
                     LEFT JOIN lockkeeper_last f ON f.key = b.key
                     LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.database =
                       (SELECT oid FROM pg_database WHERE datname = current_database()) AND ",
                    $which,
                    " ORDER BY b.key, l.granted DESC, l.waitstart, l.pid"
                )
            };
        }
        let (statement, text) = match query {
            Query::Key(key) => (locks!("b.key = $1"), key.as_str()),
            Query::Prefix(prefix) => (locks!("starts_with(b.key, $1)"), prefix.as_str()),
        };
        let rows = sqlx::query(statement).bind(text).fetch_all(wire).await?;
        let seen = rows.iter().map(seen).collect::<sqlx::Result<_>>()?;
        Ok(Looked { seen, unknown: None })
    }
}

/// A row about a holder or a waiter.
pub(super) fn seen(row: &PgRow) -> sqlx::Result<Seen> {
    let (holds, shared): (bool, bool) = (row.try_get("holds")?, row.try_get("shared")?);
    let (number, last): (i64, i64) = (row.try_get("number")?, row.try_get("fence")?);
    let age: Option<i64> = row.try_get("age")?;
    let mode = if shared { Mode::Read } else { Mode::Mutex };
    let entry = Entry {
        note: row.try_get("note")?,
        since: age.and_then(since),
        fence: holds.then(|| fence(last)),
        ..Entry::new(number.to_string(), mode)
    };
    let entry = match row.try_get::<Option<String>, _>("who")? {
        Some(who) => entry.by(&who),
        None => entry,
    };
    let session = Session { number, mark: row.try_get("mark")? };
    Ok(Seen { key: row.try_get("key")?, session, holds, last, entry })
}

/// The number of a key, same as `lockkeeper_id` in the database.
fn number(key: &Key) -> i64 {
    let hash = Sha256::digest(format!("lockkeeper:{key}"));
    let (first, _) = hash.split_first_chunk().expect("a hash is longer than that");
    i64::from_be_bytes(*first)
}

/// Identifies waiters and readers, which are recorded nowhere else. Without their command: every role of
/// the server can read this.
pub(super) fn application_name(ask: &Ask) -> String {
    format!("lockkeeper {}", take_apart(&ask.who).0)
}

/// After how much silence the server ends a session.
pub(super) fn milliseconds(ttl: Duration) -> i32 {
    i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX).max(1)
}
