//! rslock, and the two commands that every lock on Redis needs.

use std::time::Duration;

use lockkeeper_benchmarks::{Contender, Failure, Order, Section};
use redis::aio::MultiplexedConnection;
use rslock::LockManager;

use crate::contenders;

const LEASE: Duration = Duration::from_secs(30);

pub(crate) struct Rslock {
    manager: LockManager,
    key: String,
}

pub(crate) fn rslock(order: &Order) -> Vec<Rslock> {
    let managers = (0..order.clients).flat_map(|_| {
        let uris = order.address.split(',').map(|address| format!("redis://{address}")).collect();
        contenders(order, &LockManager::new(uris), |manager, key| Rslock { manager, key })
    });
    managers.collect()
}

impl Contender for Rslock {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        let guard = self.manager.acquire(self.key.as_str(), LEASE).await?;
        section.enter().await?;
        guard.release().await;
        Ok(())
    }
}

/// Without waiting, and without a library.
pub(crate) struct Plain {
    connection: MultiplexedConnection,
    key: String,
    release: redis::Script,
}

pub(crate) async fn plain(order: &Order) -> Result<Vec<Plain>, Failure> {
    const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
        return redis.call('del', KEYS[1]) end return 0";
    let mut all = Vec::new();
    for _ in 0..order.clients {
        let client = redis::Client::open(format!("redis://{}", order.address))?;
        let connection = client.get_multiplexed_async_connection().await?;
        all.extend(contenders(order, &connection, |connection, key| Plain {
            connection,
            key,
            release: redis::Script::new(RELEASE),
        }));
    }
    Ok(all)
}

impl Contender for Plain {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        let mut take = redis::cmd("SET");
        take.arg(&self.key).arg("token").arg("NX").arg("PX").arg(LEASE.as_millis() as u64);
        let _: Option<String> = take.query_async(&mut self.connection).await?;
        section.enter().await?;
        let mut release = self.release.key(&self.key);
        let _: i64 = release.arg("token").invoke_async(&mut self.connection).await?;
        Ok(())
    }
}
