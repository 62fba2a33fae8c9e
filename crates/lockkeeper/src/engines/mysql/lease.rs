//! The strategy `lease`: a table of claims, in which everything is one call of one procedure, and a short
//! way for locks that nobody else wants.
//!
//! The procedures are in `schema.sql`; each decides under the key's own row, with the server's clock
//! read after that row was locked, and recognises a token that it has seen before.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{FromRow, Row as _};

use super::connect::{NAME, Settings, is_galera, prepare};
use super::doctor;
use super::lease_claim::{LeaseClaim, slots};
use super::uncontended::{LeaseHeld, Uncontended};
use crate::core::clock::Moment;
use crate::engine::{
    Claim, Engine, Entry, Finding, Guarantees, Lease, Query, Renewal, Request, Snapshot, Wakeup,
};
use crate::engines::sql::{self, Row, STATEMENT, Sessions, micros, within};
use crate::error::Result;
use crate::key::Key;

pub(super) const GUARANTEES: Guarantees = sql::leases(NAME, Wakeup::BackOff);

/// Locks in a table of leases.
#[derive(Debug)]
pub(super) struct Leases {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) sessions: Sessions<MySqlConnection>,
    /// Not on a member of a cluster, which does not share what is in its memory.
    pub(super) alone: Option<Uncontended>,
}

impl Leases {
    pub(super) async fn open(settings: Settings) -> Result<Self> {
        let sessions = prepare(settings).await?;
        let mut session = sessions.any().await?;
        let galera = is_galera(session.wire()).await;
        let alone = match session.settle(galera, "look for a cluster")? {
            true => None,
            false => Some(Uncontended::default()),
        };
        Ok(Self { shared: Arc::new(Shared { sessions, alone }) })
    }

    async fn rows(&self, query: &Query) -> Result<Vec<Row>> {
        // A holder that is alone is in the lock's row; if it was renewed, the line knows better.
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
        let mut session = self.shared.sessions.any().await?;
        let looking = sqlx::query_as::<_, Row>(statement)
            .bind(text.as_bytes())
            .bind(text.as_bytes())
            .bind(text.as_bytes())
            .bind(text.as_bytes())
            .fetch_all(session.wire());
        let answer = within(STATEMENT, looking).await;
        session.settle(answer, "look at locks")
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
        let Shared { sessions, alone } = &*self.shared;
        let renewals = sql::renewals(sessions, leases, async |wire, tokens| {
            // Tokens are hexadecimal digits, dashes and a colon: nothing that JSON would mind.
            let all: Vec<_> = std::iter::zip(tokens, leases)
                .map(|(token, lease)| {
                    let held = lease.held::<LeaseHeld>();
                    let key = match alone.is_some() && held.is_some_and(LeaseHeld::begin_renewal) {
                        true => format!(r#","k":"{}""#, hexadecimal(&lease.key)),
                        false => String::new(),
                    };
                    format!(r#"{{"t":"{token}","u":{}{key}}}"#, micros(lease.ttl))
                })
                .collect();
            let renewing = sqlx::query_scalar("CALL lockkeeper_renew(?)");
            renewing.bind(format!("[{}]", all.join(","))).fetch_all(wire).await
        })
        .await?;
        for (lease, renewal) in std::iter::zip(leases, &renewals) {
            if let (Renewal::Renewed, Some(held)) = (renewal, lease.held::<LeaseHeld>()) {
                held.leave_row();
            }
        }
        Ok(renewals)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        self.rows(query).await.map(sql::snapshots)
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Entry>> {
        let holders = self.rows(&Query::Key(key.clone())).await?;
        let mut session = self.shared.sessions.of(key).await?;
        let breaking = sqlx::query("CALL lockkeeper_break(?)").bind(key.as_str().as_bytes());
        let answer = within(STATEMENT, breaking.execute(session.wire())).await;
        session.settle(answer, "break a lock")?;
        Ok(holders.into_iter().filter(|row| row.fence.is_some()).map(Row::entry).collect())
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::look(&self.shared.sessions).await
    }

    async fn close(&self) {
        self.shared.sessions.close().await;
    }
}

fn hexadecimal(key: &Key) -> String {
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
            slots: slots(&row.try_get::<String, _>("slots")?),
            age: row.try_get("age_us")?,
            left: row.try_get("left_us")?,
            who: row.try_get("who")?,
            note: row.try_get("note")?,
            last: row.try_get("last")?,
        })
    }
}
