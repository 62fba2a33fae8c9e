//! The strategy `lease`: a table of claims, in which everything is one call of one procedure.
//!
//! The procedures are in `schema.sql`; each decides under the key's own row, with the server's clock
//! read after that row was locked, and recognises a token that it has seen before.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{FromRow, Row as _};
use tokio::time::sleep;

use super::connect::{NAME, Settings, prepare};
use super::doctor;
use crate::backend::{
    Backend, Claim, Entry, Finding, Grant, Guarantees, Lease, Query, Released, Renewal, Request,
    Snapshot, Wakeup,
};
use crate::backends::sql::{
    self, LOOK_AGAIN, Row, STATEMENT, Sessions, WAITER_LEASE, micros, permits, within,
};
use crate::engine::Backoff;
use crate::error::Result;
use crate::key::Key;
use crate::owner::whoami;

pub(super) const GUARANTEES: Guarantees = sql::leases(NAME, Wakeup::BackOff);

/// How often the next in line looks.
const LOOKS: Backoff = Backoff::between(Duration::from_millis(4), Duration::from_millis(100));

/// How long one who is further back lets pass for each that is before it. Every look takes the latch of
/// the key: two hundred who look as often as the next in line would keep the holder from releasing.
const EACH: Duration = Duration::from_millis(15);

/// One of so many releases also removes what nobody needs any more.
const SWEEPS: u32 = 500;

/// Locks in a table of leases.
#[derive(Debug)]
pub(super) struct Leases {
    sessions: Arc<Sessions<MySqlConnection>>,
}

impl Leases {
    pub(super) async fn open(settings: Settings) -> Result<Self> {
        Ok(Self { sessions: Arc::new(prepare(settings).await?) })
    }

    async fn rows(&self, query: &Query) -> Result<Vec<Row>> {
        macro_rules! claims {
            ($which:literal) => {
                concat!(
                    "SELECT CONVERT(c.name USING utf8mb4) AS name, CONVERT(c.owner USING utf8mb4) AS owner,
                       CONVERT(c.kind USING utf8mb4) AS kind, c.take, c.permits, c.fence,
                       CONVERT(c.slots USING utf8mb4) AS slots, c.who, c.note, l.fence AS last,
                       CAST(UNIX_TIMESTAMP(c.since) * 1000000 AS SIGNED) AS since_us,
                       TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), c.until) AS left_us
                     FROM lockkeeper_claim c LEFT JOIN lockkeeper_lock l ON l.name = c.name
                     WHERE c.until > SYSDATE(6) AND ",
                    $which,
                    " ORDER BY c.name, c.place"
                )
            };
        }
        let (statement, text) = match query {
            Query::Key(key) => (claims!("c.name = ? AND ? IS NOT NULL"), key.as_str()),
            Query::Prefix(prefix) => (claims!("LEFT(c.name, LENGTH(?)) = ?"), prefix.as_str()),
        };
        let mut session = self.sessions.any().await?;
        let looking = sqlx::query_as::<_, Row>(statement)
            .bind(text.as_bytes())
            .bind(text.as_bytes())
            .fetch_all(session.wire());
        let answer = within(STATEMENT, looking).await;
        session.settle(answer, "look at locks")
    }
}

#[async_trait]
impl Backend for Leases {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let token = request.token.to_string();
        let (looks, pause, ahead) = (0, LOOK_AGAIN, i64::MAX);
        Box::new(LeaseClaim {
            sessions: self.sessions.clone(),
            request,
            token,
            looks,
            pause,
            ahead,
        })
    }

    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Renewal>> {
        sql::renewals(&self.sessions, leases, async |wire, tokens| {
            // Tokens are hexadecimal digits, dashes and a colon: nothing that JSON would mind.
            let all: Vec<_> = std::iter::zip(tokens, leases)
                .map(|(token, lease)| format!(r#"{{"t":"{token}","u":{}}}"#, micros(lease.ttl)))
                .collect();
            let renewing = sqlx::query_scalar("CALL lockkeeper_renew(?)");
            renewing.bind(format!("[{}]", all.join(","))).fetch_all(wire).await
        })
        .await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        self.rows(query).await.map(sql::snapshots)
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>> {
        let holders = self.rows(&Query::Key(key.clone())).await?;
        let mut session = self.sessions.of(key).await?;
        let breaking = sqlx::query("CALL lockkeeper_break(?)").bind(key.as_str().as_bytes());
        let answer = within(STATEMENT, breaking.execute(session.wire())).await;
        session.settle(answer, "break a lock")?;
        Ok(holders.into_iter().filter(|row| row.fence.is_some()).map(Row::entry).collect())
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::look(&self.sessions).await
    }

    async fn close(&self) {
        self.sessions.close().await;
    }
}

/// A row of the table, or what will be one.
#[derive(Debug)]
struct LeaseClaim {
    sessions: Arc<Sessions<MySqlConnection>>,
    request: Request,
    token: String,
    /// How often it looked since the line last moved.
    looks: u32,
    /// How long until a lease in our way could run out.
    pause: Duration,
    /// How many are in our way.
    ahead: i64,
}

#[async_trait]
impl Claim for LeaseClaim {
    async fn attempt(&mut self) -> Result<Option<Grant>> {
        let request = &self.request;
        let (take, limit) = permits(request.mode);
        let stay = if request.queue { micros(WAITER_LEASE) } else { 0 };
        let mut session = self.sessions.of(&request.key).await?;
        let asking = sqlx::query("CALL lockkeeper_attempt(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .bind(request.key.as_str().as_bytes())
            .bind(self.token.as_bytes())
            .bind(request.identity().into_bytes())
            .bind(request.mode.kind().as_bytes())
            .bind(take)
            .bind(limit)
            .bind(micros(request.ttl))
            .bind(stay)
            .bind(whoami())
            .bind(request.note.as_deref())
            .fetch_all(session.wire());
        let answer = within(STATEMENT, asking).await;
        let Some(rows) = session.settle_unless_busy(answer, "acquire a lock")? else {
            return Ok(None);
        };
        let row = rows.first().ok_or_else(|| {
            crate::error::Error::broken(NAME, "acquire a lock", "its procedure answered nothing")
        })?;
        if let Some(found) = row.get::<Option<&str>, _>("clash") {
            return Err(sql::clash(&request.key, request.mode, found));
        }
        let Some(fence) = row.get::<Option<i64>, _>("fence") else {
            let ahead = row.get("ahead");
            self.looks = if ahead < self.ahead { 0 } else { self.looks.saturating_add(1) };
            self.pause = sql::pause(row.get("pause"));
            self.ahead = ahead;
            return Ok(None);
        };
        Ok(Some(sql::grant(request, fence, slots(row)?)))
    }

    async fn wait(&mut self) -> Result<()> {
        let delay = match u32::try_from(self.ahead) {
            Ok(ahead @ 2..=1000) => Backoff::between(EACH * ahead, EACH * ahead).delay(0),
            _ => LOOKS.delay(self.looks),
        };
        sleep(delay.min(self.pause + Duration::from_millis(1))).await;
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        let mut session = self.sessions.of(&self.request.key).await?;
        let answer = within(STATEMENT, self.leave(session.wire())).await;
        match session.settle(answer, "release a lock")? {
            true => Ok(Released::Yes),
            false => Ok(Released::AlreadyGone),
        }
    }
}

impl LeaseClaim {
    /// Whether it held. Nobody is told of a release, so one who holds needs no procedure, which costs
    /// the server more than the statement itself.
    async fn leave(&self, wire: &mut MySqlConnection) -> sqlx::Result<bool> {
        let (key, token) = (self.request.key.as_str().as_bytes(), self.token.as_bytes());
        let leaving = sqlx::query(
            "DELETE FROM lockkeeper_claim
             WHERE name = ? AND token = ? AND fence IS NOT NULL AND until > SYSDATE(6)",
        );
        let left = leaving.bind(key).bind(token).execute(&mut *wire).await?;
        if left.rows_affected() == 0 {
            let leaving = sqlx::query_scalar::<_, i64>("CALL lockkeeper_release(?, ?)");
            let held = leaving.bind(key).bind(token).fetch_all(wire).await?;
            return Ok(held.first() == Some(&1));
        }
        if fastrand::u32(..SWEEPS) == 0 {
            sqlx::query("CALL lockkeeper_sweep()").execute(wire).await?;
        }
        Ok(true)
    }
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
            slots: numbers(&row.try_get::<String, _>("slots")?),
            since: row.try_get("since_us")?,
            left: row.try_get("left_us")?,
            who: row.try_get("who")?,
            note: row.try_get("note")?,
            last: row.try_get("last")?,
        })
    }
}

fn slots(row: &MySqlRow) -> Result<Vec<u32>> {
    let text: Option<String> = row
        .try_get("slots")
        .map_err(|error| crate::error::Error::broken(NAME, "read the permits", error))?;
    Ok(numbers(&text.unwrap_or_default()))
}

fn numbers(text: &str) -> Vec<u32> {
    text.split(',').filter_map(|number| number.parse().ok()).collect()
}
