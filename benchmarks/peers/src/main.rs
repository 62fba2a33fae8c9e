//! Workers for lock libraries written in Rust, and for floors; `lockkeeper_benchmarks` has the protocol.
//! Each is used as its documentation says.

mod etcd;
mod file;
mod postgres;
mod redis;
mod zookeeper;

use lockkeeper_benchmarks::{Failure, Order, serve};

fn main() -> Result<(), Failure> {
    let order = Order::from_arguments()?;
    let client = order.client.as_str();
    let runtime = order.runtime(matches!(client, "flock" | "fd-lock"))?;
    runtime.block_on(async {
        match client {
            "set-nx" => serve(&order, redis::plain(&order).await?).await,
            "rslock" => serve(&order, redis::rslock(&order)).await,
            "create" | "zookeeper-client" => serve(&order, zookeeper::connect(&order).await?).await,
            "put" | "lock-service" => serve(&order, etcd::connect(&order).await?).await,
            "sqlx-advisory" => serve(&order, postgres::advisory(&order).await?).await,
            "naive-table" => serve(&order, postgres::table(&order).await?).await,
            "flock" => serve(&order, file::flock(&order)).await,
            "fd-lock" => serve(&order, file::fd_lock(&order)?).await,
            _ => Err(format!("there is no client {client}").into()),
        }
    })
}

/// What a connected client makes of each of its tasks.
fn contenders<T, C: Clone>(order: &Order, client: &C, make: impl Fn(C, String) -> T) -> Vec<T> {
    (0..order.tasks).map(|task| make(client.clone(), order.key(task))).collect()
}
