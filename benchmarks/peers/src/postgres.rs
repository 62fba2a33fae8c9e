//! sqlx's advisory locks, and a table of locks as one writes it in five minutes.

use std::time::Duration;

use lockkeeper_benchmarks::{Contender, Failure, Order, Section};
use sqlx::postgres::PgAdvisoryLock;
use sqlx::{Connection, PgConnection};

pub(crate) struct Advisory {
    lock: PgAdvisoryLock,
    connection: PgConnection,
}

/// An advisory lock belongs to a connection, so every contender has one.
pub(crate) async fn advisory(order: &Order) -> Result<Vec<Advisory>, Failure> {
    let mut all = Vec::new();
    for n in 0..order.clients * order.tasks {
        let lock = PgAdvisoryLock::new(order.key(n % order.tasks));
        all.push(Advisory { lock, connection: PgConnection::connect(&order.address).await? });
    }
    Ok(all)
}

impl Contender for Advisory {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        let guard = self.lock.acquire(&mut self.connection).await?;
        section.enter().await?;
        guard.release_now().await?;
        Ok(())
    }
}

/// How long a waiter sleeps before it tries again.
const POLL: Duration = Duration::from_millis(10);

pub(crate) struct Table {
    connection: PgConnection,
    key: String,
}

pub(crate) async fn table(order: &Order) -> Result<Vec<Table>, Failure> {
    let mut all = Vec::new();
    for n in 0..order.clients * order.tasks {
        let mut connection = PgConnection::connect(&order.address).await?;
        // Eight processes that create it at the same time: all but one may fail, and it is there.
        let create =
            "CREATE TABLE IF NOT EXISTS naive (key text PRIMARY KEY, until timestamptz NOT NULL)";
        let created = sqlx::query(create).execute(&mut connection).await;
        if created.is_err() {
            sqlx::query("SELECT 1 FROM naive").execute(&mut connection).await?;
        }
        all.push(Table { connection, key: order.key(n % order.tasks) });
    }
    Ok(all)
}

impl Contender for Table {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        let insert =
            "INSERT INTO naive VALUES ($1, now() + interval '30 s') ON CONFLICT DO NOTHING";
        while sqlx::query(insert)
            .bind(&self.key)
            .execute(&mut self.connection)
            .await?
            .rows_affected()
            == 0
        {
            tokio::time::sleep(POLL).await;
        }
        section.enter().await?;
        let delete = "DELETE FROM naive WHERE key = $1";
        sqlx::query(delete).bind(&self.key).execute(&mut self.connection).await?;
        Ok(())
    }
}
