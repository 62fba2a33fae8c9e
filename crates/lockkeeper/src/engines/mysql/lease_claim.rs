//! A claim of the strategy `lease`: a row of the table of claims, or a word in the lock's own row.
//!
//! Easy to get wrong: a lock that was in its own row and was renewed is in two places. Only the procedure
//! gives it back in both.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{FromRow, Row as _};
use tokio::time::sleep;

use super::lease::Shared;
use super::uncontended::LeaseHeld;
use crate::core::Backoff;
use crate::core::admission;
use crate::core::clock::{Clock, Moment, usable};
use crate::engine::{Claim, Grant, Released, Request};
use crate::engines::sql::{
    self, Dialect, GUARDED, LOOK_AGAIN, STATEMENT, WAITER_LEASE, micros, permits, within,
};
use crate::error::Result;
use crate::owner::{Token, whoami};

/// How often the next in line looks.
const LOOKS: Backoff = Backoff::between(Duration::from_millis(4), Duration::from_millis(100));

/// How long one who is further back lets pass for each that is before it. Every look takes the latch of
/// the key: two hundred who look as often as the next in line would keep the holder from releasing.
const EACH: Duration = Duration::from_millis(15);

/// Somebody who holds, waits, or is about to ask.
#[derive(Debug)]
pub(super) struct LeaseClaim {
    shared: Arc<Shared>,
    request: Request,
    token: String,
    place: Place,
    /// Who of us had the lock last, until the server was asked about that one.
    last: Option<Token>,
    /// How often it looked since the line last moved.
    looks: u32,
    /// How long until a lease in our way could run out; zero if a guarded transaction is in our way.
    pause: Duration,
    /// How many are in our way.
    ahead: i64,
    held: Option<Arc<LeaseHeld>>,
}

/// Where the server keeps it, as far as we know.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// It did not ask yet.
    Nowhere,
    /// It asked, and was not let in or not told.
    Unknown,
    /// It holds, and is in the line.
    Line,
    /// It holds, and was put into the lock's own row by a request that left after `asked`.
    Row { asked: Moment },
}

/// What the server says to one who asks.
struct Answer {
    clash: Option<String>,
    fence: Option<i64>,
    slots: Vec<u32>,
    pause: Option<i64>,
    ahead: i64,
    alone: bool,
}

impl LeaseClaim {
    pub(super) fn new(shared: Arc<Shared>, request: Request) -> Self {
        let token = request.token.to_string();
        let (looks, pause, ahead) = (0, LOOK_AGAIN, i64::MAX);
        Self {
            shared,
            request,
            token,
            place: Place::Nowhere,
            last: None,
            looks,
            pause,
            ahead,
            held: None,
        }
    }

    /// Takes a lock that we ourselves had last, if nobody else came since. It is the one durable write
    /// of a cycle: everything else costs a procedure, which is more than the statement itself. It waits
    /// for nobody's transaction.
    async fn take_again(
        &self,
        wire: &mut MySqlConnection,
        last: Token,
    ) -> sqlx::Result<Option<Answer>> {
        let taking = sqlx::query(
            "UPDATE lockkeeper_lock l JOIN (
               SELECT name FROM lockkeeper_lock WHERE name = ? AND token = ? FOR UPDATE SKIP LOCKED
             ) f ON f.name = l.name
             SET l.token = ?, l.owner = ?, l.kind = ?, l.who = ?, l.note = ?,
               l.used = SYSDATE(6), l.until = SYSDATE(6) + INTERVAL ? MICROSECOND,
               l.fence = LAST_INSERT_ID(
                 GREATEST(l.fence + 1, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)))",
        );
        let request = &self.request;
        let done = taking
            .bind(request.key.as_str().as_bytes())
            .bind(last.to_string().into_bytes())
            .bind(self.token.as_bytes())
            .bind(request.identity().into_bytes())
            .bind(request.mode.kind().as_bytes())
            .bind(whoami())
            .bind(request.note.as_deref())
            .bind(micros(request.ttl))
            .execute(wire)
            .await?;
        if done.rows_affected() == 0 {
            return Ok(None);
        }
        let fence = Some(i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX));
        let (clash, slots, pause) = Default::default();
        Ok(Some(Answer { clash, fence, slots, pause, ahead: 0, alone: true }))
    }

    async fn ask(&self, wire: &mut MySqlConnection) -> sqlx::Result<Answer> {
        let request = &self.request;
        let (take, limit) = permits(request.mode);
        let stay = if request.queue { micros(WAITER_LEASE) } else { 0 };
        let asking = sqlx::query_as("CALL lockkeeper_attempt(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .bind(request.key.as_str().as_bytes())
            .bind(self.token.as_bytes())
            .bind(request.identity().into_bytes())
            .bind(request.mode.kind().as_bytes())
            .bind(take)
            .bind(limit)
            .bind(micros(request.ttl))
            .bind(stay)
            .bind(self.shared.alone.is_some() && request.mode.is_exclusive())
            .bind(whoami())
            .bind(request.note.as_deref());
        asking.fetch_all(wire).await?.pop().ok_or(sqlx::Error::RowNotFound)
    }

    /// Notes in the server's memory that the lock is free. A crash forgets that, and the lock then is
    /// free when its lease ends. False if it is not sure that we held it.
    async fn free(&self, wire: &mut MySqlConnection) -> sqlx::Result<bool> {
        let freeing = sqlx::query(
            "REPLACE INTO lockkeeper_freed VALUES (?, ?, SYSDATE(6) + INTERVAL ? MICROSECOND)",
        );
        let freeing = freeing
            .bind(Sha256::digest(self.request.key.as_str()).to_vec())
            .bind(self.token.as_bytes())
            .bind(micros(self.request.ttl));
        match freeing.execute(wire).await {
            // One row was removed and one was put in. Whoever breaks a lock leaves none to remove.
            Ok(done) => Ok(done.rows_affected() == 2),
            // There is no room for it, or it is not for us to write.
            Err(sqlx::Error::Database(error)) if !MySqlConnection::may_pass(&*error) => {
                tracing::debug!(key = %self.request.key, %error, "a release has to wait for the disk");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether it held. Nobody is told of a release, so one who holds needs no procedure.
    async fn leave(&self, wire: &mut MySqlConnection) -> sqlx::Result<bool> {
        let Request { key, token, ttl, .. } = &self.request;
        let gone = match (self.place, &self.shared.alone) {
            (Place::Row { asked }, Some(alone)) => {
                let in_row = self.held.as_ref().is_some_and(|held| held.leave_row());
                let quick = in_row && Clock::System.since(&asked) < usable(*ttl);
                let freed = quick && self.free(wire).await?;
                if freed {
                    alone.gave_back(key, *token);
                }
                freed
            }
            (Place::Line, _) => {
                let leaving = sqlx::query(
                    "DELETE FROM lockkeeper_claim
                     WHERE name = ? AND token = ? AND fence IS NOT NULL AND until > SYSDATE(6)",
                );
                let leaving = leaving.bind(key.as_str().as_bytes()).bind(self.token.as_bytes());
                leaving.execute(&mut *wire).await?.rows_affected() > 0
            }
            _ => false,
        };
        if !gone {
            let leaving = sqlx::query_scalar::<_, i64>("CALL lockkeeper_release(?, ?)");
            let leaving = leaving.bind(key.as_str().as_bytes()).bind(self.token.as_bytes());
            return Ok(leaving.fetch_all(wire).await?.first() == Some(&1));
        }
        Ok(true)
    }
}

#[async_trait]
impl Claim for LeaseClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let shared = self.shared.clone();
        let Request { key, mode, .. } = &self.request;
        let mut session = shared.sessions.of(key).await?;
        if let (Place::Nowhere, Some(alone)) = (self.place, &shared.alone)
            && mode.is_exclusive()
        {
            // Here, after a release of the same key that had the connection before us.
            self.last = alone.last(key);
        }
        self.place = Place::Unknown;
        let asking = async {
            if let Some(last) = self.last
                && let Some(answer) = self.take_again(session.wire(), last).await?
            {
                return Ok(answer);
            }
            self.ask(session.wire()).await
        };
        let answer = within(STATEMENT, asking).await;
        let Some(answer) = session.settle_unless_busy(answer, "acquire a lock")? else {
            return Ok(None);
        };
        self.last = None;
        if let Some(found) = answer.clash {
            return Err(sql::clash(key, *mode, &found));
        }
        let Some(fence) = answer.fence else {
            self.looks = if answer.ahead < self.ahead { 0 } else { self.looks.saturating_add(1) };
            self.pause = sql::pause(answer.pause);
            self.ahead = answer.ahead;
            return Ok(None);
        };
        self.place = match answer.alone && shared.alone.is_some() {
            true => Place::Row { asked },
            false => Place::Line,
        };
        let held = Arc::new(LeaseHeld::new(answer.alone));
        self.held = Some(held.clone());
        Ok(Some(sql::grant(&self.request, fence, answer.slots, asked, held)))
    }

    async fn wait(&mut self) -> Result<()> {
        let delay = match u32::try_from(self.ahead) {
            _ if self.pause.is_zero() => GUARDED.delay(self.looks),
            Ok(ahead @ 2..=1000) => Backoff::between(EACH * ahead, EACH * ahead).delay(0),
            _ => LOOKS.delay(self.looks),
        };
        let pause = if self.pause.is_zero() { delay } else { self.pause };
        sleep(delay.min(pause + Duration::from_millis(1))).await;
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        let shared = self.shared.clone();
        let mut session = shared.sessions.of(&self.request.key).await?;
        let answer = within(STATEMENT, self.leave(session.wire())).await;
        let held = session.settle(answer, "release a lock")?;
        shared.sessions.sweep(&self.request.key).await;
        match held {
            true => Ok(Released::Yes),
            false => Ok(Released::AlreadyGone),
        }
    }
}

impl FromRow<'_, MySqlRow> for Answer {
    fn from_row(row: &MySqlRow) -> sqlx::Result<Self> {
        Ok(Self {
            clash: row.try_get("clash")?,
            fence: row.try_get("fence")?,
            slots: slots(&row.try_get::<Option<String>, _>("slots")?.unwrap_or_default()),
            pause: row.try_get("pause")?,
            ahead: row.try_get("ahead")?,
            alone: row.try_get::<i64, _>("alone")? == 1,
        })
    }
}

/// The permits that a column tells.
pub(super) fn slots(text: &str) -> Vec<u32> {
    admission::slots_in(text).unwrap_or_default()
}
