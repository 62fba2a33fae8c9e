//! A claim on a lease: one plain statement where nobody else is, else a function of the schema.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::lease::{Shared, slots};
use super::listener::told;
use crate::core::clock::Moment;
use crate::engine::{Claim, Grant, Mode, Released, Request};
use crate::engines::sql::{
    self, GUARDED, LOOK_AGAIN, STATEMENT, WAITER_LEASE, micros, permits, within,
};
use crate::error::Result;
use crate::owner::whoami;

/// A row of a table, or what will be one.
#[derive(Debug)]
pub(super) struct LeaseClaim {
    shared: Arc<Shared>,
    request: Request,
    token: String,
    turn: Arc<Notify>,
    /// Whether it has not asked yet.
    is_new: bool,
    /// Whether it was given by the plain statement, and so may be alone.
    is_alone: bool,
    /// How long until a lease in our way could run out, or a guarded transaction could be over, which
    /// nobody would tell us of.
    pause: Duration,
    /// How often it found a guarded transaction in its way.
    looks: u32,
}

impl LeaseClaim {
    pub(super) fn new(shared: Arc<Shared>, request: Request) -> Self {
        let token = request.token.to_string();
        let turn = shared.listener.register(&token);
        let (is_new, is_alone, pause, looks) = (true, false, LOOK_AGAIN, 0);
        Self { shared, request, token, turn, is_new, is_alone, pause, looks }
    }
}

/// What the server says to a claim.
enum Answer {
    Uncontended(i64),
    Granted(i64, Vec<u32>),
    Busy(Duration),
    Clash(String),
}

#[async_trait]
impl Claim for LeaseClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let mut session = self.shared.sessions.of(&self.request.key).await?;
        let wire = session.wire();
        let answer = within(STATEMENT, told!(wire, self.ask(wire))).await;
        self.is_new = false;
        let Some(answer) = session.settle_unless_busy(answer, "acquire a lock")? else {
            self.pause = Duration::ZERO;
            return Ok(None);
        };
        match answer {
            Answer::Uncontended(fence) => {
                self.is_alone = true;
                Ok(Some(self.grant(fence, Vec::new(), asked)))
            }
            Answer::Granted(fence, slots) => Ok(Some(self.grant(fence, slots, asked))),
            Answer::Busy(Duration::ZERO) => {
                self.pause = GUARDED.delay(self.looks);
                self.looks = self.looks.saturating_add(1);
                Ok(None)
            }
            Answer::Busy(pause) => {
                self.pause = pause;
                self.looks = 0;
                Ok(None)
            }
            Answer::Clash(found) => Err(sql::clash(&self.request.key, self.request.mode, &found)),
        }
    }

    async fn wait(&mut self) -> Result<()> {
        if !self.shared.listener.start().await? {
            let _ = timeout(self.pause, self.turn.notified()).await;
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        let mut session = self.shared.sessions.of(&self.request.key).await?;
        let wire = session.wire();
        let answer = within(STATEMENT, told!(wire, self.leave(wire))).await;
        let held = session.settle(answer, "release a lock")?;
        self.shared.sessions.sweep(&self.request.key).await;
        match held {
            true => Ok(Released::Yes),
            false => Ok(Released::AlreadyGone),
        }
    }
}

impl LeaseClaim {
    fn grant(&self, fence: i64, slots: Vec<u32>, asked: Moment) -> Grant {
        sql::grant(&self.request, fence, slots, asked, Arc::new(()))
    }

    /// Mostly nobody is there, and then the lock's row is all that has to be changed. Who finds it not
    /// free, or in somebody's hands just now, lets the function decide.
    async fn ask(&self, wire: &mut PgConnection) -> sqlx::Result<Answer> {
        let request = &self.request;
        let owner = request.owner.as_ref().map_or(self.token.as_str(), |owner| owner.id());
        let (take, limit) = permits(request.mode);
        let note = request.note.as_deref().map(|note| note.replace('\0', ""));
        if self.is_new && !matches!(request.mode, Mode::Permits { .. }) {
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
            )
            .bind(request.key.as_str())
            .bind(&self.token)
            .bind(owner)
            .bind(request.mode.kind())
            .bind(micros(request.ttl))
            .bind(whoami())
            .bind(note.as_deref());
            if let Some(fence) = taking.fetch_optional(&mut *wire).await? {
                return Ok(Answer::Uncontended(fence));
            }
        }
        let stay = if request.queue { micros(WAITER_LEASE) } else { 0 };
        let row = sqlx::query(
            "SELECT clash, granted, fence, slots, pause
             FROM lockkeeper_attempt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(request.key.as_str())
        .bind(&self.token)
        .bind(owner)
        .bind(request.mode.kind())
        .bind(take)
        .bind(limit)
        .bind(micros(request.ttl))
        .bind(stay)
        .bind(self.shared.listener.channel())
        .bind(whoami())
        .bind(note)
        .fetch_one(wire)
        .await?;
        if let Some(found) = row.try_get("clash")? {
            return Ok(Answer::Clash(found));
        }
        if !row.try_get::<bool, _>("granted")? {
            return Ok(Answer::Busy(sql::pause(row.try_get("pause")?)));
        }
        Ok(Answer::Granted(row.try_get("fence")?, slots(&row)))
    }

    /// Whether it held. Who is alone has nobody to tell. A release that a crash forgets costs the rest of
    /// the lease, and so need not be on disk.
    async fn leave(&self, wire: &mut PgConnection) -> sqlx::Result<bool> {
        if self.is_alone {
            let leaving = sqlx::query_scalar(
                "UPDATE lockkeeper_lock SET token = '' WHERE key = $1 AND token = $2
                 RETURNING until > clock_timestamp(), set_config('synchronous_commit', 'off', true)",
            )
            .bind(self.request.key.as_str())
            .bind(&self.token);
            if let Some(held) = leaving.fetch_optional(&mut *wire).await? {
                return Ok(held);
            }
        }
        sqlx::query_scalar("SELECT lockkeeper_release($1, $2)")
            .bind(self.request.key.as_str())
            .bind(&self.token)
            .fetch_one(wire)
            .await
    }
}

impl Drop for LeaseClaim {
    fn drop(&mut self) {
        self.shared.listener.forget(&self.token);
    }
}
