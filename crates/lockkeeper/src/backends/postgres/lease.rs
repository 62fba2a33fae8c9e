//! The strategy `lease`: a table of locks, and a table of claims for those that several want.
//!
//! A grant is one durable commit, a release one that nobody waits for. Everything is decided under the
//! key's own row, with the server's clock read after that row was locked: by one plain statement where
//! nobody else is, else by a function of `schema.sql`, which recognises a token that it has seen before.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{FromRow, Row as _};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::connect::{NAME, Settings, prepare};
use super::doctor;
use super::listener::Listener;
use crate::backend::{
    Backend, Claim, Entry, Finding, Grant, Guarantees, Lease, Mode, Query, Released, Renewal,
    Request, Snapshot, Wakeup,
};
use crate::backends::sql::{
    self, LOOK_AGAIN, Row, STATEMENT, Sessions, WAITER_LEASE, micros, permits, within,
};
use crate::error::Result;
use crate::key::Key;
use crate::owner::whoami;

pub(super) const GUARANTEES: Guarantees = sql::leases(NAME, Wakeup::Push);

/// One of so many releases also removes what nobody needs any more.
const SWEEPS: u32 = 500;

/// Locks in a table of leases.
#[derive(Debug)]
pub(super) struct Leases {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sessions: Sessions<PgConnection>,
    listener: Listener,
}

impl Leases {
    pub(super) async fn open(settings: Settings) -> Result<Self> {
        let listener = Listener::new(settings.options.clone());
        let sessions = prepare(settings).await?;
        Ok(Self { shared: Arc::new(Shared { sessions, listener }) })
    }
}

#[async_trait]
impl Backend for Leases {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let token = request.token.to_string();
        let turn = self.shared.listener.register(&token);
        Box::new(LeaseClaim {
            shared: self.shared.clone(),
            request,
            token,
            turn,
            is_new: true,
            pause: LOOK_AGAIN,
        })
    }

    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Renewal>> {
        let keys: Vec<_> = leases.iter().map(|lease| lease.key.as_str()).collect();
        let ttls: Vec<_> = leases.iter().map(|lease| micros(lease.ttl)).collect();
        sql::renewals(&self.shared.sessions, leases, async |wire, tokens| {
            let renewing = sqlx::query_scalar("SELECT lockkeeper_renew($1, $2, $3)");
            renewing.bind(keys).bind(tokens).bind(ttls).fetch_all(wire).await
        })
        .await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        macro_rules! claims {
            ($which:literal) => {
                concat!(
                    "SELECT *, (extract(epoch FROM since) * 1000000)::bigint AS since_us,
                       (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint AS left_us
                     FROM lockkeeper_all WHERE until > clock_timestamp() AND ",
                    $which,
                    " ORDER BY key, place"
                )
            };
        }
        let (statement, text) = match query {
            Query::Key(key) => (claims!("key = $1"), key.as_str()),
            Query::Prefix(prefix) => (claims!("starts_with(key, $1)"), prefix.as_str()),
        };
        let mut session = self.shared.sessions.any().await?;
        let looking = sqlx::query_as::<_, Row>(statement).bind(text).fetch_all(session.wire());
        let answer = within(STATEMENT, looking).await;
        Ok(sql::snapshots(session.settle(answer, "look at locks")?))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>> {
        let mut session = self.shared.sessions.of(key).await?;
        let breaking = sqlx::query_as::<_, Row>(
            "SELECT *, (extract(epoch FROM since) * 1000000)::bigint AS since_us,
               (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint AS left_us
             FROM lockkeeper_break($1)",
        )
        .bind(key.as_str())
        .fetch_all(session.wire());
        let answer = within(STATEMENT, breaking).await;
        let broken = session.settle(answer, "break a lock")?;
        Ok(broken.into_iter().map(Row::entry).collect())
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::look(&self.shared.sessions).await
    }

    async fn close(&self) {
        self.shared.sessions.close().await;
    }
}

/// A row of the table, or what will be one.
#[derive(Debug)]
struct LeaseClaim {
    shared: Arc<Shared>,
    request: Request,
    token: String,
    turn: Arc<Notify>,
    /// Whether it has not asked yet.
    is_new: bool,
    /// How long until a lease in our way could run out, which nobody would tell us of.
    pause: Duration,
}

/// What the server says to a claim.
enum Answer {
    Granted(i64, Vec<u32>),
    Busy(Duration),
    Clash(String),
}

#[async_trait]
impl Claim for LeaseClaim {
    async fn attempt(&mut self) -> Result<Option<Grant>> {
        let mut session = self.shared.sessions.of(&self.request.key).await?;
        let answer = within(STATEMENT, self.ask(session.wire())).await;
        self.is_new = false;
        let Some(answer) = session.settle_unless_busy(answer, "acquire a lock")? else {
            self.pause = Duration::ZERO;
            return Ok(None);
        };
        match answer {
            Answer::Granted(fence, slots) => Ok(Some(sql::grant(&self.request, fence, slots))),
            Answer::Busy(pause) => {
                self.pause = pause;
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
        let answer = within(STATEMENT, self.leave(session.wire())).await;
        let held = session.settle(answer, "release a lock")?;
        if fastrand::u32(..SWEEPS) == 0 {
            self.sweep().await;
        }
        match held {
            true => Ok(Released::Yes),
            false => Ok(Released::AlreadyGone),
        }
    }
}

impl LeaseClaim {
    /// Mostly nobody is there, and then the lock's row is all that has to be changed. Who finds it not
    /// free, or in somebody's hands just now, lets the function decide.
    async fn ask(&self, wire: &mut PgConnection) -> sqlx::Result<Answer> {
        let request = &self.request;
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
            .bind(request.identity())
            .bind(request.mode.kind())
            .bind(micros(request.ttl))
            .bind(whoami())
            .bind(note.as_deref());
            if let Some(fence) = taking.fetch_optional(&mut *wire).await? {
                return Ok(Answer::Granted(fence, Vec::new()));
            }
        }
        let stay = if request.queue { micros(WAITER_LEASE) } else { 0 };
        let row = sqlx::query(
            "SELECT clash, granted, fence, slots, pause
             FROM lockkeeper_attempt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(request.key.as_str())
        .bind(&self.token)
        .bind(request.identity())
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
        let leaving = sqlx::query_scalar(
            "UPDATE lockkeeper_lock SET token = '' WHERE key = $1 AND token = $2
             RETURNING until > clock_timestamp(), set_config('synchronous_commit', 'off', true)",
        )
        .bind(self.request.key.as_str())
        .bind(&self.token);
        if let Some(held) = leaving.fetch_optional(&mut *wire).await? {
            return Ok(held);
        }
        sqlx::query_scalar("SELECT lockkeeper_release($1, $2)")
            .bind(self.request.key.as_str())
            .bind(&self.token)
            .fetch_one(wire)
            .await
    }

    /// Not a part of any release: that one has happened.
    async fn sweep(&self) {
        let Ok(mut session) = self.shared.sessions.of(&self.request.key).await else { return };
        let sweeping = sqlx::query("SELECT lockkeeper_sweep()").execute(session.wire());
        let answer = within(STATEMENT, sweeping).await;
        if let Err(error) = session.settle(answer, "remove what nobody needs") {
            tracing::debug!(%error, "left for the next sweep");
        }
    }
}

impl Drop for LeaseClaim {
    fn drop(&mut self) {
        self.shared.listener.forget(&self.token);
    }
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
            since: row.try_get("since_us")?,
            left: row.try_get("left_us")?,
            who: row.try_get("who")?,
            note: row.try_get("note")?,
            last: row.try_get("last")?,
        })
    }
}

fn slots(row: &PgRow) -> Vec<u32> {
    let slots: Option<Vec<i64>> = row.get("slots");
    slots.unwrap_or_default().into_iter().filter_map(|slot| u32::try_from(slot).ok()).collect()
}
