//! The strategy `row`: a row of a table, locked in a transaction that stays open.
//!
//! Nothing is written in that transaction, and it is rolled back, so that a release does not wait
//! for the disk. The fence is committed on a separate connection, which first checks that the row
//! is still ours.

use async_trait::async_trait;
use sqlx::postgres::PgConnection;

use super::advisory::{application_name, milliseconds, seen};
use super::connect::NAME;
use crate::engine::{Guarantees, Query, Support};
use crate::engines::sql::{
    Ask, Dedicated, Looked, Marked, STATEMENT, SessionLock, Sessions, Taken, promises, within,
};
use crate::error::Result;

/// Row locks.
#[derive(Debug)]
pub(super) struct Rows;

#[async_trait]
impl SessionLock for Rows {
    type Wire = PgConnection;

    const GUARANTEES: Guarantees = promises(
        NAME,
        Support::No("a row has one holder; strategy=lease and advisory have readers"),
        Support::No("a row has one holder; strategy=lease has permits"),
    );

    async fn take(wire: &mut PgConnection, ask: &Ask, wait: bool) -> sqlx::Result<Taken> {
        loop {
            sqlx::query("BEGIN").execute(&mut *wire).await?;
            let holding = sqlx::query_scalar(
                "SELECT lockkeeper_hold($1, $2, $3) FROM set_config('application_name', $4, false)",
            );
            let held: Option<bool> = holding
                .bind(ask.key.as_str())
                .bind(wait)
                .bind(milliseconds(ask.ttl))
                .bind(application_name(ask))
                .fetch_one(&mut *wire)
                .await?;
            if held == Some(true) {
                return Ok(Taken::Unfenced);
            }
            sqlx::query("ROLLBACK").execute(&mut *wire).await?;
            if held == Some(false) && !wait {
                return Ok(Taken::Busy);
            }
            // In a separate transaction: another client that creates the same key must not wait for
            // our lock.
            sqlx::query("INSERT INTO lockkeeper_row VALUES ($1) ON CONFLICT DO NOTHING")
                .bind(ask.key.as_str())
                .execute(&mut *wire)
                .await?;
        }
    }

    async fn mark(
        shared: &Sessions<PgConnection>,
        holder: &mut Dedicated<PgConnection>,
        ask: &Ask,
    ) -> Result<Marked> {
        let mut apart = shared.of(&ask.key).await?;
        let marking = sqlx::query_scalar("SELECT lockkeeper_mark($1, $2::integer, $3, $4)")
            .bind(ask.key.as_str())
            .bind(holder.session.number)
            .bind(&*ask.who)
            .bind(&ask.note)
            .fetch_one(apart.wire());
        let answer = within(STATEMENT, marking).await;
        apart.settle(answer, "acquire a lock").map(Marked::from_column)
    }

    /// Only our own transaction, in which a row was locked, has an id.
    async fn beat(wire: &mut PgConnection, _: &Ask) -> sqlx::Result<bool> {
        let asking = sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned() IS NOT NULL");
        asking.fetch_one(wire).await
    }

    async fn give_back(wire: &mut PgConnection, _: &Ask) -> sqlx::Result<bool> {
        sqlx::query("ROLLBACK").execute(wire).await.map(|_| true)
    }

    /// The transaction that locked a row is named in the row's header. One waiter waits for that
    /// transaction, and the others for the first waiter's place.
    async fn look(wire: &mut PgConnection, query: &Query) -> sqlx::Result<Looked> {
        macro_rules! rows {
            ($which:literal) => {
                concat!(
                    "WITH r AS (
                       SELECT key, xmax AS holder, (ctid::text::point)[0] AS page, (ctid::text::point)[1] AS tuple
                       FROM lockkeeper_row WHERE ",
                    $which,
                    "), l AS (
                       SELECT * FROM pg_locks WHERE locktype = 'transactionid'
                         OR (locktype = 'tuple' AND NOT granted AND relation = 'lockkeeper_row'::regclass)
                     )
                     SELECT r.key, coalesce(f.fence, b.fence, 0) AS fence, l.pid::bigint AS number,
                       l.granted AS holds, false AS shared,
                       coalesce(t.who, substring(a.application_name FROM '^lockkeeper (.+)$')) AS who, t.note,
                       a.backend_start::text AS mark,
                       (extract(epoch FROM clock_timestamp() - coalesce(t.since, l.waitstart)) * 1000000)::bigint
                         AS age
                     FROM r JOIN l ON l.transactionid = r.holder OR (l.page = r.page AND l.tuple = r.tuple)
                     LEFT JOIN lockkeeper_bound b ON b.key = r.key
                     LEFT JOIN lockkeeper_last t ON t.key = r.key AND t.pid = l.pid AND l.granted
                     LEFT JOIN lockkeeper_last f ON f.key = r.key
                     LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                     ORDER BY r.key, l.granted DESC, l.locktype = 'tuple', l.waitstart, l.pid"
                )
            };
        }
        let (statement, text) = match query {
            Query::Key(key) => (rows!("key = $1"), key.as_str()),
            Query::Prefix(prefix) => (rows!("starts_with(key, $1)"), prefix.as_str()),
        };
        let rows = sqlx::query(statement).bind(text).fetch_all(wire).await?;
        let seen = rows.iter().map(seen).collect::<sqlx::Result<_>>()?;
        Ok(Looked { seen, unknown: None })
    }
}
