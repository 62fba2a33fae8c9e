//! What processes left in the store.

use std::time::Duration;

use lockkeeper::{Client, Error};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{Kind, Storm};

impl Storm {
    /// What a client cannot acquire after all others are gone, and what the store lists then.
    pub(super) async fn left(&self, url: &str) -> Vec<String> {
        let client = match Client::connect(url).await {
            Ok(client) => client,
            Err(error) => return vec![format!("a fresh client cannot connect: {error}")],
        };
        // A killed process keeps its locks for a lease, or for a session of the server.
        let limit = self.plan.ttl * 2 + Duration::from_secs(30);
        let mut tries = JoinSet::new();
        for (kind, key) in self.plan.keys() {
            let client = client.clone();
            tries.spawn(async move { unavailable(&client, kind, &key, limit).await });
        }
        let mut left: Vec<_> = tries.join_all().await.into_iter().flatten().collect();
        left.extend(self.still_listed(&client, limit).await);
        client.close().await;
        left
    }

    /// What the store still lists after this time. What a killed process left in it expires.
    async fn still_listed(&self, client: &Client, limit: Duration) -> Option<String> {
        let started = Instant::now();
        loop {
            match client.list(&self.plan.prefix).await {
                Ok(listed) if listed.is_empty() => return None,
                Ok(listed) if started.elapsed() > limit => {
                    return Some(format!("after {limit:?}, the store lists {listed:?}"));
                }
                Err(Error::Unsupported { .. }) => return None,
                Err(error) if started.elapsed() > limit => {
                    return Some(format!("the store lists nothing: {error}"));
                }
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

/// Why this lock cannot be had within this time.
async fn unavailable(client: &Client, kind: Kind, key: &str, limit: Duration) -> Option<String> {
    let lock = match kind {
        Kind::Fair => client.mutex(key).fair(),
        Kind::ReadWrite => client.write(key),
        Kind::Permits => client.semaphore(key, Kind::LIMIT).permits(Kind::LIMIT),
        Kind::Election => {
            return match timeout(limit, client.election(key).campaign()).await {
                Ok(Ok(term)) => {
                    drop(term.step_down().await);
                    None
                }
                Ok(Err(error)) => Some(format!("{key}: {error}")),
                Err(_) => Some(format!("{key}: not elected within {limit:?}")),
            };
        }
        Kind::Mutex | Kind::Reentrant | Kind::Multi => client.mutex(key),
    };
    match lock.acquire_within(limit).await {
        Ok(guard) => {
            drop(guard.release().await);
            None
        }
        Err(error) => Some(format!("{key}: {error}")),
    }
}
