//! The strategy `lease`: a table of locks, and a table of claims for those that several want.
//!
//! A grant is one durable commit, a release one that nobody waits for. Everything is decided under the
//! key's own row, with the server's clock read after that row was locked: by one plain statement where
//! nobody else is, else by a function of `schema.sql`, which recognises a token that it has seen before.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{FromRow, Row as _};
use tokio::time::timeout;

use super::connect::NAME;
use super::listener::{Listener, Turn, told};
use crate::core::clock::Moment;
use crate::engine::{Guarantees, Lease, Mode, Query, Wakeup};
use crate::engines::sql::{
    self, Answer, Busy, GUARDED, LeaseAsk, LeaseTable, Row, WAITER_LEASE, micros, permits,
};
use crate::error::Result;
use crate::key::Key;

/// Claims, as [`Row`] reads them.
macro_rules! claims {
    ($which:literal) => {
        concat!(
            "SELECT *, (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint AS age_us,
               (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint AS left_us
             FROM ",
            $which
        )
    };
}

/// Leases of which those who wait are told.
#[derive(Debug)]
pub(super) struct Leases(pub(super) Listener);

/// What a claim remembers.
#[derive(Debug)]
pub(super) struct Memory {
    turn: Turn,
    /// Whether it has not asked yet.
    is_new: bool,
    /// Whether it was given by the plain statement, and so may be alone.
    is_alone: bool,
}

#[async_trait]
impl LeaseTable for Leases {
    type Wire = PgConnection;
    type Memory = Memory;

    const GUARANTEES: Guarantees = sql::leases(NAME, Wakeup::Push);

    fn remember(&self, ask: &LeaseAsk) -> Memory {
        Memory { turn: self.0.register(&ask.token), is_new: true, is_alone: false }
    }

    /// Tries one plain statement first, which is enough if the lock's row is free. If the row is held or
    /// locked, the function of the schema decides.
    async fn attempt(
        &self,
        wire: &mut PgConnection,
        ask: &LeaseAsk,
        memory: &mut Memory,
        _asked: Moment,
    ) -> sqlx::Result<Answer> {
        let is_new = std::mem::replace(&mut memory.is_new, false);
        if is_new
            && !matches!(ask.request.mode, Mode::Permits { .. })
            && let Some(fence) = take(wire, ask).await?
        {
            memory.is_alone = true;
            return Ok(Answer::Granted { fence, slots: Vec::new(), held: Arc::new(()) });
        }
        told!(wire, self.queue(wire, ask)).await
    }

    async fn wait(&self, memory: &Memory, busy: &Busy) -> Result<()> {
        let pause = if busy.pause.is_zero() { GUARDED.delay(busy.looks) } else { busy.pause };
        if !self.0.start().await? {
            let _ = timeout(pause, memory.turn.notified()).await;
        }
        Ok(())
    }

    /// One that is alone has nobody to tell. A release that a crash forgets costs the rest of the lease,
    /// and so need not be on disk.
    async fn release(
        &self,
        wire: &mut PgConnection,
        ask: &LeaseAsk,
        memory: &Memory,
    ) -> sqlx::Result<bool> {
        let key = ask.request.key.as_str();
        if memory.is_alone {
            let leaving = sqlx::query_scalar(
                "UPDATE lockkeeper_lock SET token = '' WHERE key = $1 AND token = $2
                 RETURNING until > clock_timestamp(), set_config('synchronous_commit', 'off', true)",
            );
            let leaving = leaving.bind(key).bind(&ask.token);
            if let Some(held) = leaving.fetch_optional(&mut *wire).await? {
                return Ok(held);
            }
        }
        let leaving = || sqlx::query_scalar("SELECT lockkeeper_release($1, $2)");
        told!(wire, leaving().bind(key).bind(&ask.token).fetch_one(&mut *wire)).await
    }

    async fn renew(
        &self,
        wire: &mut PgConnection,
        leases: &[Lease],
        tokens: &[String],
    ) -> sqlx::Result<HashSet<String>> {
        let keys: Vec<_> = leases.iter().map(|lease| lease.key.as_str()).collect();
        let ttls: Vec<_> = leases.iter().map(|lease| micros(lease.ttl)).collect();
        let renewing = sqlx::query_scalar("SELECT lockkeeper_renew($1, $2, $3)");
        let renewed = renewing.bind(keys).bind(tokens).bind(ttls).fetch_all(wire).await?;
        Ok(renewed.into_iter().collect())
    }

    async fn rows(wire: &mut PgConnection, query: &Query) -> sqlx::Result<Vec<Row>> {
        let (statement, text) = match query {
            Query::Key(key) => (
                claims!(
                    "lockkeeper_all WHERE until > clock_timestamp() AND key = $1 ORDER BY key, place"
                ),
                key.as_str(),
            ),
            Query::Prefix(prefix) => (
                claims!(
                    "lockkeeper_all WHERE until > clock_timestamp() AND starts_with(key, $1) ORDER BY key, place"
                ),
                prefix.as_str(),
            ),
        };
        sqlx::query_as(statement).bind(text).fetch_all(wire).await
    }

    async fn break_lock(wire: &mut PgConnection, key: &Key) -> sqlx::Result<Vec<Row>> {
        let breaking = || sqlx::query_as(claims!("lockkeeper_break($1)")).bind(key.as_str());
        told!(wire, breaking().fetch_all(&mut *wire)).await
    }

    async fn ask(wire: &mut PgConnection, key: &Key) -> sqlx::Result<()> {
        let asking = sqlx::query(
            "WITH alone AS (
               UPDATE lockkeeper_lock SET who = 'asked ' || who
               WHERE key = $1 AND token <> '' AND who NOT LIKE 'asked %')
             UPDATE lockkeeper_claim SET who = 'asked ' || who
             WHERE key = $1 AND fence IS NOT NULL AND who NOT LIKE 'asked %'",
        );
        asking.bind(key.as_str()).execute(wire).await.map(drop)
    }

    async fn is_asked(wire: &mut PgConnection, key: &Key, token: &str) -> sqlx::Result<bool> {
        let looking = sqlx::query_scalar(
            "SELECT EXISTS (
               SELECT FROM lockkeeper_lock WHERE key = $1 AND token = $2 AND who LIKE 'asked %'
               UNION ALL
               SELECT FROM lockkeeper_claim WHERE key = $1 AND token = $2 AND who LIKE 'asked %')",
        );
        looking.bind(key.as_str()).bind(token).fetch_one(wire).await
    }
}

/// Takes a lock whose row names nobody, or somebody whose lease is over.
async fn take(wire: &mut PgConnection, ask: &LeaseAsk) -> sqlx::Result<Option<i64>> {
    let request = &ask.request;
    let taking = sqlx::query_scalar(
        "UPDATE lockkeeper_lock l
         SET token = $2, owner = $3, kind = $4, since = clock_timestamp(),
             until = clock_timestamp() + $5 * interval '1 microsecond', who = $6, note = $7,
             fence = CASE $4 WHEN 'read' THEN l.fence
                     ELSE greatest(l.fence + 1, lockkeeper_micros()) END
         WHERE l.ctid = (
           SELECT f.ctid FROM lockkeeper_lock f
           WHERE f.key = $1 AND (f.token = '' OR f.until <= clock_timestamp())
           FOR UPDATE SKIP LOCKED)
         RETURNING l.fence",
    );
    let taking = taking
        .bind(request.key.as_str())
        .bind(&ask.token)
        .bind(&ask.identity)
        .bind(request.mode.kind())
        .bind(micros(request.ttl))
        .bind(&*request.who)
        .bind(note(ask));
    taking.fetch_optional(wire).await
}

impl Leases {
    async fn queue(&self, wire: &mut PgConnection, ask: &LeaseAsk) -> sqlx::Result<Answer> {
        let request = &ask.request;
        let (take, limit) = permits(request.mode);
        let stay = if request.queue { micros(WAITER_LEASE) } else { 0 };
        let row = sqlx::query(
            "SELECT clash, granted, fence, slots, pause
             FROM lockkeeper_attempt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(request.key.as_str())
        .bind(&ask.token)
        .bind(&ask.identity)
        .bind(request.mode.kind())
        .bind(take)
        .bind(limit)
        .bind(micros(request.ttl))
        .bind(stay)
        .bind(self.0.channel())
        .bind(&*request.who)
        .bind(note(ask))
        .fetch_one(wire)
        .await?;
        if let Some(found) = row.try_get("clash")? {
            return Ok(Answer::Clash(found));
        }
        if !row.try_get::<bool, _>("granted")? {
            let pause: Option<i64> = row.try_get("pause")?;
            // Once a guarded transaction is all that is left, that is looked for often again.
            return Ok(Answer::Busy { pause, ahead: i64::from(pause != Some(0)) });
        }
        Ok(Answer::Granted { fence: row.try_get("fence")?, slots: slots(&row), held: Arc::new(()) })
    }
}

/// A text of PostgreSQL has no zero bytes.
fn note(ask: &LeaseAsk) -> Option<String> {
    ask.request.note.as_deref().map(|note| note.replace('\0', ""))
}

impl FromRow<'_, PgRow> for Row {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Row {
            key: row.try_get("key")?,
            owner: row.try_get("owner")?,
            kind: row.try_get("kind")?,
            take: row.try_get("take")?,
            permits: row.try_get("permits")?,
            fence: row.try_get("fence")?,
            slots: slots(row),
            age: row.try_get("age_us")?,
            left: row.try_get("left_us")?,
            who: row.try_get("who")?,
            note: row.try_get("note")?,
            last: row.try_get("last")?,
        })
    }
}

/// The numbers of the permits that a row tells.
fn slots(row: &PgRow) -> Vec<u32> {
    let slots: Option<Vec<i64>> = row.get("slots");
    slots.unwrap_or_default().into_iter().filter_map(|slot| u32::try_from(slot).ok()).collect()
}
