//! The strategy `row`: a row of a table, locked in a transaction that stays open.
//!
//! The holder's number is written to the row and never committed, so that a dirty read shows the
//! holder, and a release does not wait for the disk. The fence is committed on a separate
//! connection, which checks that the row is still ours.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::MySqlConnection;

use super::connect::NAME;
use super::named::{limit, seen};
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
    type Wire = MySqlConnection;

    const GUARANTEES: Guarantees = promises(
        NAME,
        Support::No("a row has one holder; strategy=lease has readers"),
        Support::No("a row has one holder; strategy=lease has permits"),
    );

    async fn limit(wire: &mut MySqlConnection, silence: Duration) -> sqlx::Result<()> {
        limit(wire, silence).await
    }

    async fn take(wire: &mut MySqlConnection, ask: &Ask, wait: bool) -> sqlx::Result<Taken> {
        let taking = sqlx::query_scalar::<_, i64>("CALL lockkeeper_hold(?, ?)");
        let taking = taking.bind(ask.key.as_str().as_bytes()).bind(wait);
        let held = taking.fetch_all(wire).await?;
        Ok(if held.first() == Some(&1) { Taken::Unfenced } else { Taken::Busy })
    }

    async fn mark(
        shared: &Sessions<MySqlConnection>,
        holder: &mut Dedicated<MySqlConnection>,
        ask: &Ask,
    ) -> Result<Marked> {
        let mut apart = shared.of(&ask.key).await?;
        let marking = sqlx::query_scalar::<_, Option<i64>>("CALL lockkeeper_bind(?, ?, ?, ?)")
            .bind(ask.key.as_str().as_bytes())
            .bind(holder.session.number)
            .bind(&*ask.who)
            .bind(&ask.note)
            .fetch_all(apart.wire());
        let answer = within(STATEMENT, marking).await;
        let rows = apart.settle(answer, "acquire a lock")?;
        Ok(Marked::from_column(rows.first().copied().flatten()))
    }

    /// A transaction that was rolled back has lost what it wrote.
    async fn beat(wire: &mut MySqlConnection, ask: &Ask) -> sqlx::Result<bool> {
        let asking =
            sqlx::query("SELECT 1 FROM lockkeeper_row WHERE name = ? AND pid = CONNECTION_ID()");
        let held = asking.bind(ask.key.as_str().as_bytes()).fetch_optional(wire).await?;
        Ok(held.is_some())
    }

    async fn give_back(wire: &mut MySqlConnection, ask: &Ask) -> sqlx::Result<bool> {
        let giving = sqlx::query_scalar::<_, i64>("CALL lockkeeper_unhold(?)");
        let held = giving.bind(ask.key.as_str().as_bytes()).fetch_all(wire).await?;
        Ok(held.first() == Some(&1))
    }

    async fn look(wire: &mut MySqlConnection, query: &Query) -> sqlx::Result<Looked> {
        macro_rules! rows {
            ($which:literal) => {
                concat!(
                    "SELECT CONVERT(r.name USING utf8mb4) AS name, r.pid AS holder,
                       COALESCE(b.fence, 0) AS fence, b.who, b.note, b.pid,
                       TIMESTAMPDIFF(MICROSECOND, b.since, SYSDATE(6)) AS age_us
                     FROM lockkeeper_row r LEFT JOIN lockkeeper_bound b ON b.name = r.name
                     WHERE r.pid IS NOT NULL AND ",
                    $which,
                    " ORDER BY r.name"
                )
            };
        }
        let (statement, text) = match query {
            Query::Key(key) => (rows!("r.name = ? AND ? IS NOT NULL"), key.as_str()),
            Query::Prefix(prefix) => (rows!("LEFT(r.name, LENGTH(?)) = ?"), prefix.as_str()),
        };
        // For the next statement alone.
        let dirty = sqlx::query("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED");
        dirty.execute(&mut *wire).await?;
        let asking = sqlx::query(statement).bind(text.as_bytes()).bind(text.as_bytes());
        let rows = asking.fetch_all(wire).await?;
        let seen =
            rows.iter().filter_map(|row| seen(row).transpose()).collect::<sqlx::Result<_>>()?;
        Ok(Looked { seen, unknown: Some("the server does not tell who waits for a row") })
    }
}
