//! The strategy `lease`: a table of claims, in which everything is one procedure call, and a fast
//! path for uncontended locks.
//!
//! The procedures are in `schema.sql`. Each decides under the key's own row, with the server's
//! clock read after that row was locked, and recognises a known token.
//!
//! Easy to get wrong: a lock that was in its own row and was renewed is in two places. Only the
//! procedure releases it in both.

use std::collections::HashSet;
use std::iter::zip;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{FromRow, Row as _};
use tokio::time::sleep;

use super::connect::NAME;
use super::error::is_full;
use super::uncontended::{LeaseHeld, Uncontended};
use crate::core::clock::{Clock, Moment, usable};
use crate::core::{Backoff, admission};
use crate::engine::{Guarantees, Lease, Query, Wakeup};
use crate::engines::sql::{
    self, Answer, Busy, GUARDED, LeaseAsk, LeaseTable, Row, ServerErrors, WAITER_LEASE, micros,
    permits,
};
use crate::error::Result;
use crate::key::Key;
use crate::owner::Token;

/// What leases promise here.
pub(super) const PROMISES: Guarantees = sql::leases(NAME, Wakeup::BackOff);

/// How often the first waiter polls.
const LOOKS: Backoff = Backoff::between(Duration::from_millis(4), Duration::from_millis(100));

/// How much longer a waiter pauses for each claim ahead of it. Every poll takes the latch of the
/// key: two hundred waiters that poll as often as the first would keep the holder from releasing.
const EACH: Duration = Duration::from_millis(15);

/// Leases, with the fast path if [the server allows it](super::connect::may_release_by_mark).
#[derive(Debug)]
pub(super) struct Leases(pub(super) Option<Uncontended>);

/// What a claim remembers.
#[derive(Debug)]
pub(super) struct Memory {
    place: Place,
    /// Which of our claims last had the lock, until the server was asked about it.
    last: Option<Token>,
}

/// Where the server keeps it, as far as we know.
#[derive(Debug)]
enum Place {
    /// It has not asked yet.
    Nowhere,
    /// It asked, and was not granted or got no answer.
    Unknown,
    /// It holds, and is in the queue.
    Line,
    /// It holds, and was put into the lock's own row by a request that was sent after `asked`.
    Row { asked: Moment, held: Arc<LeaseHeld> },
}

#[async_trait]
impl LeaseTable for Leases {
    type Wire = MySqlConnection;
    type Memory = Memory;

    fn guarantees(&self) -> Guarantees {
        PROMISES
    }

    fn remember(&self, _: &LeaseAsk) -> Memory {
        Memory { place: Place::Nowhere, last: None }
    }

    async fn attempt(
        &self,
        wire: &mut MySqlConnection,
        ask: &LeaseAsk,
        memory: &mut Memory,
        asked: Moment,
    ) -> sqlx::Result<Answer> {
        let alone = self.0.as_ref().filter(|_| ask.request.mode.is_exclusive());
        if let (Place::Nowhere, Some(alone)) = (&memory.place, alone) {
            // Read here, after a release of the same key that used the connection before us.
            memory.last = alone.last(&ask.request.key);
        }
        memory.place = Place::Unknown;
        let taken = match memory.last {
            Some(last) => take_again(wire, ask, last).await?,
            None => None,
        };
        memory.last = None;
        let (is_alone, fence, slots) = match taken {
            Some(fence) => (true, fence, Vec::new()),
            None => {
                let row = match queue(wire, ask, alone.is_some()).await {
                    // The lock may be ours by now. Asking again moves it to the queue.
                    Err(error) if is_full(&error) => queue(wire, ask, false).await?,
                    row => row?,
                };
                if let Some(found) = row.try_get("clash")? {
                    return Ok(Answer::Clash(found));
                }
                let Some(fence) = row.try_get("fence")? else {
                    let (pause, ahead) = (row.try_get("pause")?, row.try_get("ahead")?);
                    return Ok(Answer::Busy { pause, ahead });
                };
                (row.try_get::<i64, _>("alone")? == 1, fence, slots(&row)?)
            }
        };
        let held = Arc::new(LeaseHeld::new(is_alone));
        memory.place = match is_alone {
            true => Place::Row { asked, held: held.clone() },
            false => Place::Line,
        };
        Ok(Answer::Granted { fence, slots, held })
    }

    async fn wait(&self, _: &Memory, busy: &Busy) -> Result<()> {
        let expiry = busy.pause + Duration::from_millis(1);
        let delay = match u32::try_from(busy.ahead) {
            _ if busy.pause.is_zero() => GUARDED.delay(busy.looks),
            Ok(ahead @ 2..=1000) => {
                Backoff::between(EACH * ahead, EACH * ahead).delay(0).min(expiry)
            }
            _ => LOOKS.delay(busy.looks).min(expiry),
        };
        sleep(delay).await;
        Ok(())
    }

    /// Releases notify no waiters, so the release of a holder needs no procedure.
    async fn release(
        &self,
        wire: &mut MySqlConnection,
        ask: &LeaseAsk,
        memory: &Memory,
    ) -> sqlx::Result<bool> {
        let (request, key) = (&ask.request, ask.request.key.as_str().as_bytes());
        let gone = match (&memory.place, &self.0) {
            (Place::Row { asked, held }, Some(alone)) => {
                let quick = held.leave_row() && Clock::System.since(asked) < usable(request.ttl);
                let freed = quick && free(wire, ask).await?;
                if freed {
                    alone.gave_back(&request.key, request.token);
                }
                freed
            }
            (Place::Line, _) => {
                let leaving = sqlx::query(
                    "DELETE FROM lockkeeper_claim
                     WHERE name = ? AND token = ? AND fence IS NOT NULL AND until > SYSDATE(6)",
                );
                let leaving = leaving.bind(key).bind(ask.token.as_bytes());
                leaving.execute(&mut *wire).await?.rows_affected() > 0
            }
            _ => false,
        };
        if gone {
            return Ok(true);
        }
        let leaving = sqlx::query_scalar::<_, i64>("CALL lockkeeper_release(?, ?)");
        let held = leaving.bind(key).bind(ask.token.as_bytes()).fetch_all(wire).await?;
        Ok(held.first() == Some(&1))
    }

    async fn renew(
        &self,
        wire: &mut MySqlConnection,
        leases: &[Lease],
        tokens: &[String],
    ) -> sqlx::Result<HashSet<String>> {
        // Tokens are hexadecimal digits, dashes and a colon: nothing that JSON has to escape.
        let all: Vec<_> = zip(tokens, leases)
            .map(|(token, lease)| {
                let held = lease.held::<LeaseHeld>();
                let key = match self.0.is_some() && held.is_some_and(LeaseHeld::begin_renewal) {
                    true => format!(r#","k":"{}""#, hexadecimal(&lease.key)),
                    false => String::new(),
                };
                format!(r#"{{"t":"{token}","u":{}{key}}}"#, micros(lease.ttl))
            })
            .collect();
        let renewing = sqlx::query_scalar::<_, String>("CALL lockkeeper_renew(?)");
        let renewed = renewing.bind(format!("[{}]", all.join(","))).fetch_all(wire).await?;
        let renewed: HashSet<_> = renewed.into_iter().collect();
        for (_, lease) in zip(tokens, leases).filter(|(token, _)| renewed.contains(*token)) {
            if let Some(held) = lease.held::<LeaseHeld>() {
                held.leave_row();
            }
        }
        Ok(renewed)
    }

    async fn rows(&self, wire: &mut MySqlConnection, query: &Query) -> sqlx::Result<Vec<Row>> {
        // An uncontended holder is in the lock's row; if it was renewed, the copy in the queue is
        // newer.
        macro_rules! claims {
            ($which:literal) => {
                concat!(
                    "SELECT CONVERT(c.name USING utf8mb4) AS name, CONVERT(c.owner USING utf8mb4) AS owner,
                       CONVERT(c.kind USING utf8mb4) AS kind, c.take, c.permits, c.fence,
                       CONVERT(c.slots USING utf8mb4) AS slots, c.who, c.note, l.fence AS last,
                       TIMESTAMPDIFF(MICROSECOND, c.since, SYSDATE(6)) AS age_us,
                       TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), c.until) AS left_us
                     FROM (
                       SELECT name, token, place, owner, kind, take, permits, fence, slots, since, until,
                         who, note
                       FROM lockkeeper_claim WHERE ",
                    $which,
                    "  UNION ALL
                       SELECT name, token, next, owner, kind, 1, 0, fence, '', used, until, who, note
                       FROM lockkeeper_lock k WHERE token <> '' AND NOT EXISTS (
                         SELECT 1 FROM lockkeeper_claim r WHERE r.name = k.name AND r.token = k.token
                       ) AND ",
                    $which,
                    ") c LEFT JOIN lockkeeper_lock l ON l.name = c.name
                     LEFT JOIN lockkeeper_freed f ON f.id = UNHEX(SHA2(c.name, 256))
                     WHERE c.until > SYSDATE(6) AND NOT f.token <=> c.token
                     ORDER BY c.name, c.place"
                )
            };
        }
        let (statement, text) = match query {
            Query::Key(key) => (claims!("name = ? AND ? IS NOT NULL"), key.as_str()),
            Query::Prefix(prefix) => (claims!("LEFT(name, LENGTH(?)) = ?"), prefix.as_str()),
        };
        let text = text.as_bytes();
        let looking = sqlx::query_as(statement).bind(text).bind(text).bind(text).bind(text);
        looking.fetch_all(wire).await
    }

    async fn break_lock(&self, wire: &mut MySqlConnection, key: &Key) -> sqlx::Result<Vec<Row>> {
        let mut holders = self.rows(wire, &Query::Key(key.clone())).await?;
        let breaking = sqlx::query("CALL lockkeeper_break(?)").bind(key.as_str().as_bytes());
        breaking.execute(wire).await?;
        holders.retain(|row| row.fence.is_some());
        Ok(holders)
    }
}

/// Acquires a lock that we ourselves had last, if it was not taken since, and returns its fence. It
/// is the one durable write of a cycle: anything else costs a procedure call, which takes longer
/// than the statement itself. It waits for no foreign transaction, if MySQL reads the rows in this
/// order: it would merge the two otherwise, and wait.
async fn take_again(
    wire: &mut MySqlConnection,
    ask: &LeaseAsk,
    last: Token,
) -> sqlx::Result<Option<i64>> {
    let taking = sqlx::query(
        "UPDATE /*+ NO_MERGE(f) */ lockkeeper_lock l JOIN (
           SELECT name FROM lockkeeper_lock WHERE name = ? AND token = ? FOR UPDATE SKIP LOCKED
         ) f ON f.name = l.name
         SET l.token = ?, l.owner = ?, l.kind = ?, l.who = ?, l.note = ?,
           l.used = SYSDATE(6), l.until = SYSDATE(6) + INTERVAL ? MICROSECOND,
           l.fence = LAST_INSERT_ID(
             GREATEST(l.fence + 1, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)))",
    );
    let request = &ask.request;
    let done = taking
        .bind(request.key.as_str().as_bytes())
        .bind(last.to_string().into_bytes())
        .bind(ask.token.as_bytes())
        .bind(ask.identity.as_bytes())
        .bind(request.mode.kind().as_bytes())
        .bind(&*request.who)
        .bind(request.note.as_deref())
        .bind(micros(request.ttl))
        .execute(wire)
        .await?;
    let fence = i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX);
    Ok((done.rows_affected() > 0).then_some(fence))
}

async fn queue(wire: &mut MySqlConnection, ask: &LeaseAsk, alone: bool) -> sqlx::Result<MySqlRow> {
    let request = &ask.request;
    let (take, limit) = permits(request.mode);
    let stay = if request.queue { micros(WAITER_LEASE) } else { 0 };
    let asking = sqlx::query("CALL lockkeeper_attempt(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(request.key.as_str().as_bytes())
        .bind(ask.token.as_bytes())
        .bind(ask.identity.as_bytes())
        .bind(request.mode.kind().as_bytes())
        .bind(take)
        .bind(limit)
        .bind(micros(request.ttl))
        .bind(stay)
        .bind(alone)
        .bind(&*request.who)
        .bind(request.note.as_deref());
    asking.fetch_all(wire).await?.pop().ok_or(sqlx::Error::RowNotFound)
}

/// Records, usually in the server's memory, that the lock is free. A crash loses that, and then the
/// lock is free when its lease expires. False if it is not certain that we held it.
async fn free(wire: &mut MySqlConnection, ask: &LeaseAsk) -> sqlx::Result<bool> {
    let freeing = sqlx::query(
        "REPLACE INTO lockkeeper_freed VALUES (?, ?, SYSDATE(6) + INTERVAL ? MICROSECOND)",
    );
    let request = &ask.request;
    let freeing = freeing
        .bind(Sha256::digest(request.key.as_str()).to_vec())
        .bind(ask.token.as_bytes())
        .bind(micros(request.ttl));
    match freeing.execute(wire).await {
        // One row was removed and one was inserted. Breaking a lock leaves none to remove.
        Ok(done) => Ok(done.rows_affected() == 2),
        // There is no room for it, or we may not write it.
        Err(sqlx::Error::Database(error)) if !MySqlConnection::may_pass(&*error) => {
            tracing::debug!(key = %request.key, %error, "a release has to wait for the disk");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

pub(super) fn hexadecimal(key: &Key) -> String {
    key.as_str().bytes().map(|byte| format!("{byte:02x}")).collect()
}

impl FromRow<'_, MySqlRow> for Row {
    fn from_row(row: &MySqlRow) -> sqlx::Result<Self> {
        Ok(Row {
            key: row.try_get("name")?,
            owner: row.try_get("owner")?,
            kind: row.try_get("kind")?,
            take: row.try_get("take")?,
            permits: row.try_get("permits")?,
            fence: row.try_get("fence")?,
            slots: slots(row)?,
            age: row.try_get("age_us")?,
            left: row.try_get("left_us")?,
            who: row.try_get("who")?,
            note: row.try_get("note")?,
            last: row.try_get("last")?,
        })
    }
}

/// The numbers of the permits in a row.
fn slots(row: &MySqlRow) -> sqlx::Result<Vec<u32>> {
    let slots: Option<String> = row.try_get("slots")?;
    Ok(slots.and_then(|slots| admission::slots_in(&slots)).unwrap_or_default())
}
