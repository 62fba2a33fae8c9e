//! The strategy `lease`: a table of locks, and a table of claims for contended ones.
//!
//! A grant is one durable commit, a release an asynchronous one. Everything is decided under the
//! key's own row, with the server's clock read after that row was locked: by one plain statement if
//! the lock is uncontended, otherwise by a function of `schema.sql`, which recognises a known
//! token.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{FromRow, Row as _};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout};

use super::connect::NAME;
use super::listener::{Listener, Turn};
use super::statement::{Sending, Value};
use crate::core::Backoff;
use crate::core::clock::Moment;
use crate::engine::{Guarantees, Held, Lease, Mode, Query, Wakeup};
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

const TAKE: &str = "UPDATE lockkeeper_lock l
     SET token = $2, owner = $3, kind = $4, since = clock_timestamp(),
         until = clock_timestamp() + $5 * interval '1 microsecond', who = $6, note = $7,
         fence = CASE $4 WHEN 'read' THEN l.fence ELSE greatest(l.fence + 1, lockkeeper_micros()) END
     WHERE l.ctid = (
       SELECT f.ctid FROM lockkeeper_lock f
       WHERE f.key = $1 AND (f.token = '' OR f.until <= clock_timestamp())
       FOR UPDATE SKIP LOCKED)
     RETURNING l.token, l.fence";

/// The same for several. A key that is there twice is granted to one of the two. The keys are named
/// again for a plan that reads no other rows.
const TAKE_ALL: &str = "UPDATE lockkeeper_lock l
     SET token = a.token, owner = a.owner, kind = a.kind, since = clock_timestamp(),
         until = clock_timestamp() + a.ttl * interval '1 microsecond', who = a.who,
         note = nullif(a.note, ''),
         fence = CASE a.kind WHEN 'read' THEN l.fence ELSE greatest(l.fence + 1, lockkeeper_micros()) END
     FROM unnest($1, $2, $3, $4, $5, $6, $7) AS a (key, token, owner, kind, ttl, who, note)
     WHERE l.key = a.key AND l.key = ANY ($1) AND l.ctid = ANY (ARRAY(
       SELECT f.ctid FROM lockkeeper_lock f
       WHERE f.key = ANY ($1) AND (f.token = '' OR f.until <= clock_timestamp())
       FOR UPDATE SKIP LOCKED))
     RETURNING l.token, l.fence";

const FREE: &str = "UPDATE lockkeeper_lock l SET token = '' WHERE l.key = $1 AND l.token = $2
     RETURNING $2, l.until > clock_timestamp(), set_config('synchronous_commit', 'off', true)";

/// The same for several, in whatever order: it does not wait for a row while it has locked others.
const FREE_ALL: &str = "UPDATE lockkeeper_lock l SET token = ''
     FROM unnest($1, $2) AS a (key, token)
     WHERE l.key = a.key AND l.token = a.token AND l.key = ANY ($1) AND l.ctid = ANY (ARRAY(
       SELECT f.ctid FROM lockkeeper_lock f WHERE f.key = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED))
     RETURNING a.token, l.until > clock_timestamp(), set_config('synchronous_commit', 'off', true)";

/// How often a waiter polls if it cannot be notified.
const LOOKS: Backoff = Backoff::between(Duration::from_millis(4), Duration::from_millis(200));

/// The channel of waiters that poll. The schema requires one; this one has no listener.
const NO_CHANNEL: &str = "lockkeeper_none";

/// Leases whose waiters are notified, or poll behind a transaction-mode pooler, which cannot
/// deliver notifications.
#[derive(Debug)]
pub(super) struct Leases {
    /// `None` behind such a pooler.
    listener: Option<Listener>,
}

/// What a claim remembers.
#[derive(Debug)]
pub(super) struct Memory {
    turn: Option<Turn>,
    /// Whether it has not asked yet.
    is_new: bool,
    /// Whether it was granted by a plain statement, and so may be uncontended.
    is_alone: bool,
}

#[async_trait]
impl LeaseTable for Leases {
    type Wire = PgConnection;
    type Memory = Memory;

    fn guarantees(&self) -> Guarantees {
        promises(self.listener.is_none())
    }

    fn remember(&self, ask: &LeaseAsk) -> Memory {
        let turn = self.listener.as_ref().map(|listener| listener.register(&ask.token));
        Memory { turn, is_new: true, is_alone: false }
    }

    /// Permits are counted by the function of the schema.
    fn starts(&self, ask: &LeaseAsk, memory: &mut Memory) -> bool {
        let is_new = std::mem::replace(&mut memory.is_new, false);
        is_new && !matches!(ask.request.mode, Mode::Permits { .. })
    }

    /// Acquires locks whose row has no holder, or one whose lease has expired.
    async fn take_all(
        &self,
        wire: &mut PgConnection,
        asks: &[Arc<LeaseAsk>],
    ) -> sqlx::Result<HashMap<String, i64>> {
        let notes: Vec<_> = asks.iter().map(|ask| note(ask)).collect();
        let taken = match (asks, &notes[..]) {
            ([ask], [note]) => {
                let request = &ask.request;
                let values = [
                    Value::Text(request.key.as_str()),
                    Value::Text(&ask.token),
                    Value::Text(&ask.identity),
                    Value::Text(request.mode.kind()),
                    Value::Number(micros(request.ttl)),
                    Value::Text(&request.who),
                    Value::Maybe(note.as_deref()),
                ];
                self.sending().ask(wire, TAKE, &values).await?
            }
            _ => {
                let notes: Vec<_> =
                    notes.iter().map(|note| note.as_deref().unwrap_or_default()).collect();
                let ttls: Vec<_> = asks.iter().map(|ask| micros(ask.request.ttl)).collect();
                let (keys, tokens) = (texts(asks, key), texts(asks, |ask| &ask.token));
                let (owners, kinds) =
                    (texts(asks, |ask| &ask.identity), texts(asks, |ask| ask.request.mode.kind()));
                let who = texts(asks, |ask| &ask.request.who);
                let values = [
                    Value::Texts(&keys),
                    Value::Texts(&tokens),
                    Value::Texts(&owners),
                    Value::Texts(&kinds),
                    Value::Numbers(&ttls),
                    Value::Texts(&who),
                    Value::Texts(&notes),
                ];
                self.sending().ask(wire, TAKE_ALL, &values).await?
            }
        };
        taken.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    fn took(&self, memory: &mut Memory) -> Arc<dyn Held> {
        memory.is_alone = true;
        Arc::new(())
    }

    fn is_alone(&self, memory: &Memory) -> bool {
        memory.is_alone
    }

    /// An uncontended lock has no waiter to notify. A release that is lost in a crash costs the
    /// rest of the lease, so it need not be durable.
    async fn free_all(
        &self,
        wire: &mut PgConnection,
        asks: &[Arc<LeaseAsk>],
    ) -> sqlx::Result<HashMap<String, bool>> {
        let freed = match asks {
            [ask] => {
                let values = [Value::Text(ask.request.key.as_str()), Value::Text(&ask.token)];
                self.sending().ask(wire, FREE, &values).await?
            }
            _ => {
                let (keys, tokens) = (texts(asks, key), texts(asks, |ask| &ask.token));
                let values = [Value::Texts(&keys), Value::Texts(&tokens)];
                self.sending().ask(wire, FREE_ALL, &values).await?
            }
        };
        freed.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// The function of the schema decides if the lock's row is held or locked.
    async fn attempt(
        &self,
        wire: &mut PgConnection,
        ask: &LeaseAsk,
        _memory: &mut Memory,
        _asked: Moment,
    ) -> sqlx::Result<Answer> {
        self.queue(wire, ask).await
    }

    async fn wait(&self, memory: &Memory, busy: &Busy) -> Result<()> {
        let pause = if busy.pause.is_zero() { GUARDED.delay(busy.looks) } else { busy.pause };
        match (&self.listener, &memory.turn) {
            (Some(listener), Some(turn)) => {
                if !listener.start().await? {
                    let _ = timeout(pause, turn.notified()).await;
                }
            }
            _ => sleep(LOOKS.delay(busy.looks).min(pause)).await,
        }
        Ok(())
    }

    async fn release(
        &self,
        wire: &mut PgConnection,
        ask: &LeaseAsk,
        _memory: &Memory,
    ) -> sqlx::Result<bool> {
        let values = [Value::Text(ask.request.key.as_str()), Value::Text(&ask.token)];
        let leaving = "SELECT lockkeeper_release($1, $2)";
        only(&self.sending().tell(wire, leaving, &values).await?)?.try_get(0)
    }

    async fn renew(
        &self,
        wire: &mut PgConnection,
        leases: &[Lease],
        tokens: &[String],
    ) -> sqlx::Result<HashSet<String>> {
        let keys: Vec<_> = leases.iter().map(|lease| lease.key.as_str()).collect();
        let tokens: Vec<_> = tokens.iter().map(String::as_str).collect();
        let ttls: Vec<_> = leases.iter().map(|lease| micros(lease.ttl)).collect();
        let values = [Value::Texts(&keys), Value::Texts(&tokens), Value::Numbers(&ttls)];
        let renewing = "SELECT lockkeeper_renew($1, $2, $3)";
        let renewed = self.sending().ask(wire, renewing, &values).await?;
        renewed.iter().map(|row| row.try_get(0)).collect()
    }

    async fn rows(&self, wire: &mut PgConnection, query: &Query) -> sqlx::Result<Vec<Row>> {
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
        let rows = self.sending().ask(wire, statement, &[Value::Text(text)]).await?;
        rows.iter().map(Row::from_row).collect()
    }

    async fn break_lock(&self, wire: &mut PgConnection, key: &Key) -> sqlx::Result<Vec<Row>> {
        let breaking = claims!("lockkeeper_break($1)");
        let rows = self.sending().tell(wire, breaking, &[Value::Text(key.as_str())]).await?;
        rows.iter().map(Row::from_row).collect()
    }

    async fn requests(&self) -> Option<broadcast::Receiver<String>> {
        self.listener.as_ref()?.requests().await.ok()
    }
}

impl Leases {
    /// For connections that keep their sessions.
    pub(super) fn notified(listener: Listener) -> Self {
        Self { listener: Some(listener) }
    }

    /// For connections of a transaction-mode pooler.
    pub(super) fn polling() -> Self {
        Self { listener: None }
    }

    fn sending(&self) -> Sending {
        if self.listener.is_some() { Sending::Prepared } else { Sending::Plain }
    }

    async fn queue(&self, wire: &mut PgConnection, ask: &LeaseAsk) -> sqlx::Result<Answer> {
        let (request, note) = (&ask.request, note(ask));
        let (take, limit) = permits(request.mode);
        let stay = if request.queue { micros(WAITER_LEASE) } else { 0 };
        let asking = "SELECT clash, granted, fence, slots, pause
             FROM lockkeeper_attempt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let values = [
            Value::Text(request.key.as_str()),
            Value::Text(&ask.token),
            Value::Text(&ask.identity),
            Value::Text(request.mode.kind()),
            Value::Number(take),
            Value::Number(limit),
            Value::Number(micros(request.ttl)),
            Value::Number(stay),
            Value::Text(self.listener.as_ref().map_or(NO_CHANNEL, Listener::channel)),
            Value::Text(&request.who),
            Value::Maybe(note.as_deref()),
        ];
        let rows = self.sending().tell(wire, asking, &values).await?;
        let row = only(&rows)?;
        if let Some(found) = row.try_get("clash")? {
            return Ok(Answer::Clash(found));
        }
        if !row.try_get::<bool, _>("granted")? {
            let pause: Option<i64> = row.try_get("pause")?;
            // If only a guarded transaction is left, poll for its end at short intervals again.
            return Ok(Answer::Busy { pause, ahead: i64::from(pause != Some(0)) });
        }
        Ok(Answer::Granted { fence: row.try_get("fence")?, slots: slots(row), held: Arc::new(()) })
    }
}

/// What leases promise, with notifications or polling.
pub(super) const fn promises(polls: bool) -> Guarantees {
    sql::leases(NAME, if polls { Wakeup::BackOff } else { Wakeup::Push })
}

/// The row of a statement that always returns one.
pub(super) fn only(rows: &[PgRow]) -> sqlx::Result<&PgRow> {
    rows.first().ok_or(sqlx::Error::RowNotFound)
}

fn key(ask: &LeaseAsk) -> &str {
    ask.request.key.as_str()
}

fn texts<'a>(asks: &'a [Arc<LeaseAsk>], text: impl Fn(&'a LeaseAsk) -> &'a str) -> Vec<&'a str> {
    asks.iter().map(|ask| text(ask)).collect()
}

/// PostgreSQL text cannot contain zero bytes.
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

/// The numbers of the permits in a row.
fn slots(row: &PgRow) -> Vec<u32> {
    let slots: Option<Vec<i64>> = row.get("slots");
    slots.unwrap_or_default().into_iter().filter_map(|slot| u32::try_from(slot).ok()).collect()
}
