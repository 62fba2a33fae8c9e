//! The strategy `lease`: a table of claims, in which everything is one call of one function.
//!
//! A grant is one durable commit, a release one that nobody waits for. The functions are in
//! `schema.sql`; each decides under the key's own row, with the server's clock read after that row
//! was locked, and recognises a token that it has seen before.

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
    Backend, Claim, Entry, Finding, Grant, Guarantees, Lease, Query, Released, Renewal, Request,
    Snapshot, Wakeup,
};
use crate::backends::sql::{
    self, LOOK_AGAIN, Row, STATEMENT, Sessions, WAITER_LEASE, micros, permits, within,
};
use crate::error::Result;
use crate::key::Key;
use crate::owner::whoami;

pub(super) const GUARANTEES: Guarantees = sql::leases(NAME, Wakeup::Push);

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
                    "SELECT c.*, (extract(epoch FROM c.since) * 1000000)::bigint AS since_us,
                       (extract(epoch FROM c.until - clock_timestamp()) * 1000000)::bigint AS left_us,
                       l.fence AS last
                     FROM lockkeeper_claim c LEFT JOIN lockkeeper_lock l USING (key)
                     WHERE c.until > clock_timestamp() AND ",
                    $which,
                    " ORDER BY c.key, c.place"
                )
            };
        }
        let (statement, text) = match query {
            Query::Key(key) => (claims!("c.key = $1"), key.as_str()),
            Query::Prefix(prefix) => (claims!("starts_with(c.key, $1)"), prefix.as_str()),
        };
        let mut session = self.shared.sessions.any().await?;
        let looking = sqlx::query_as::<_, Row>(statement).bind(text).fetch_all(session.wire());
        let answer = within(STATEMENT, looking).await;
        Ok(sql::snapshots(session.settle(answer, "look at locks")?))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>> {
        let mut session = self.shared.sessions.of(key).await?;
        let breaking = sqlx::query_as::<_, Row>(
            "SELECT c.*, (extract(epoch FROM c.since) * 1000000)::bigint AS since_us,
               (extract(epoch FROM c.until - clock_timestamp()) * 1000000)::bigint AS left_us,
               c.fence AS last
             FROM lockkeeper_break($1) c",
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
    /// How long until a lease in our way could run out, which nobody would tell us of.
    pause: Duration,
}

#[async_trait]
impl Claim for LeaseClaim {
    async fn attempt(&mut self) -> Result<Option<Grant>> {
        let request = &self.request;
        let (take, limit) = permits(request.mode);
        let stay = if request.queue { micros(WAITER_LEASE) } else { 0 };
        let mut session = self.shared.sessions.of(&request.key).await?;
        let asking = sqlx::query(
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
        .bind(request.note.as_deref().map(|note| note.replace('\0', "")))
        .fetch_one(session.wire());
        let answer = within(STATEMENT, asking).await;
        let Some(row) = session.settle_unless_busy(answer, "acquire a lock")? else {
            self.pause = Duration::ZERO;
            return Ok(None);
        };
        if let Some(found) = row.get::<Option<&str>, _>("clash") {
            return Err(sql::clash(&request.key, request.mode, found));
        }
        if !row.get::<bool, _>("granted") {
            self.pause = sql::pause(row.get("pause"));
            return Ok(None);
        }
        Ok(Some(sql::grant(request, row.get("fence"), slots(&row))))
    }

    async fn wait(&mut self) -> Result<()> {
        if !self.shared.listener.start().await? {
            let _ = timeout(self.pause, self.turn.notified()).await;
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        let mut session = self.shared.sessions.of(&self.request.key).await?;
        let releasing = sqlx::query_scalar::<_, bool>("SELECT lockkeeper_release($1, $2)")
            .bind(self.request.key.as_str())
            .bind(&self.token)
            .fetch_one(session.wire());
        let answer = within(STATEMENT, releasing).await;
        match session.settle(answer, "release a lock")? {
            true => Ok(Released::Yes),
            false => Ok(Released::AlreadyGone),
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
