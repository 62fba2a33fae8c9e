//! A transaction that a holder which lost its lock cannot commit, if lock and data are in one
//! database.
//!
//! The check and the write are one transaction, and the lock is granted to nobody else until it
//! ends. So there is no moment between "am I still the holder?" and the write in which another
//! client could interfere.
//!
//! `cargo run -p lockkeeper --features postgres --example guarded_transaction --
//! postgres://user@host/database` creates a table `lockkeeper_example` there, and removes it again.

use lockkeeper::{Client, Fence};
use sqlx::{Connection, PgConnection};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let url = std::env::args().nth(1).ok_or("say where: postgres://user@host/database")?;
    println!("in the end the order is {}", run(&url).await?);
    Ok(())
}

/// Runs the example; returns the final state of the order.
pub(crate) async fn run(url: &str) -> Outcome<String> {
    let (one, another) = (Client::connect(url).await?, Client::connect(url).await?);
    // Your own connection, or one of your pool: the lock does not depend on it.
    let mut database = PgConnection::connect(url).await?;
    let table = "CREATE TABLE lockkeeper_example (id int PRIMARY KEY, state text NOT NULL);
                 INSERT INTO lockkeeper_example VALUES (42, 'new')";
    sqlx::raw_sql(table).execute(&mut database).await?;

    let first = one.mutex("orders/42").acquire().await?;
    set_state(&mut database, first.fence(), "paid").await?;
    println!("fence {} writes \"paid\"", first.fence());

    // The first holder loses the lock: here to an operator, elsewhere by a pause or a network
    // failure.
    another.break_lock("orders/42").await?;
    let second = another.mutex("orders/42").acquire().await?;
    set_state(&mut database, second.fence(), "sent").await?;
    println!("fence {} writes \"sent\"", second.fence());

    match set_state(&mut database, first.fence(), "paid twice").await {
        Ok(()) => return Err("a stale holder has written".into()),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("LK001") => {
            println!("the first one comes back: {}", error.message());
        }
        Err(error) => return Err(error.into()),
    }

    let state = sqlx::query_scalar("SELECT state FROM lockkeeper_example WHERE id = 42");
    let state = state.fetch_one(&mut database).await?;
    sqlx::query("DROP TABLE lockkeeper_example").execute(&mut database).await?;
    Ok(state)
}

/// The guard comes first: everything after it in the transaction is protected.
async fn set_state(database: &mut PgConnection, fence: Fence, state: &str) -> sqlx::Result<()> {
    let mut transaction = database.begin().await?;
    sqlx::query("SELECT lockkeeper_guard('orders/42', $1)")
        .bind(fence.get().cast_signed())
        .execute(&mut *transaction)
        .await?;
    sqlx::query("UPDATE lockkeeper_example SET state = $1 WHERE id = 42")
        .bind(state)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}
