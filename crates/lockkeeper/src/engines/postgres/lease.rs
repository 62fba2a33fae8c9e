//! The strategy `lease`: a table of locks, and a table of claims for those that several want.
//!
//! A grant is one durable commit, a release one that nobody waits for. Everything is decided under the
//! key's own row, with the server's clock read after that row was locked: by one plain statement where
//! nobody else is, else by a function of `schema.sql`, which recognises a token that it has seen before.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{FromRow, Row as _};

use super::connect::{NAME, Settings, prepare};
use super::doctor;
use super::lease_claim::LeaseClaim;
use super::listener::{Listener, told};
use crate::core::clock::Moment;
use crate::engine::{
    Claim, Engine, Entry, Finding, Guarantees, Lease, Query, Renewal, Request, Snapshot, Wakeup,
};
use crate::engines::sql::{self, Row, STATEMENT, Sessions, micros, within};
use crate::error::Result;
use crate::key::Key;

pub(super) const GUARANTEES: Guarantees = sql::leases(NAME, Wakeup::Push);

/// Locks in a table of leases.
#[derive(Debug)]
pub(super) struct Leases {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) sessions: Sessions<PgConnection>,
    pub(super) listener: Listener,
}

impl Leases {
    pub(super) async fn open(settings: Settings) -> Result<Self> {
        let listener = Listener::new(settings.options.clone());
        let sessions = prepare(settings).await?;
        Ok(Self { shared: Arc::new(Shared { sessions, listener }) })
    }
}

#[async_trait]
impl Engine for Leases {
    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(LeaseClaim::new(self.shared.clone(), request))
    }

    async fn renew(&self, leases: &[Lease], _asked: Moment) -> Result<Vec<Renewal>> {
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
                    "SELECT *, (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint AS age_us,
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
        let wire = session.wire();
        let breaking =
            "SELECT *, (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint AS age_us,
               (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint AS left_us
             FROM lockkeeper_break($1)";
        let breaking = || sqlx::query_as::<_, Row>(breaking).bind(key.as_str());
        let breaking = told!(wire, breaking().fetch_all(&mut *wire));
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
pub(super) fn slots(row: &PgRow) -> Vec<u32> {
    let slots: Option<Vec<i64>> = row.get("slots");
    slots.unwrap_or_default().into_iter().filter_map(|slot| u32::try_from(slot).ok()).collect()
}
