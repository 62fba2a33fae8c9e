//! A Cluster: which server has which slot, and how to follow when slots move.
//!
//! The map is asked for again when a server says that a slot has moved, and after a connection broke.
//! A call is redirected a few times at most; what still fails then is the core's to repeat, with the
//! same token.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use redis::{FromRedisValue, RedisError, RedisResult, Value};

use super::dial::{Dial, Manner};
use super::error::is_fatal;
use super::link::{Call, Link, Reply};
use super::names::SLOTS;

/// How often one call follows a redirection.
const REDIRECTIONS: usize = 5;

/// Servers that share the slots among them.
#[derive(Debug)]
pub(super) struct Cluster {
    seeds: Vec<(String, u16)>,
    manner: Manner,
    map: Mutex<Map>,
    stale: AtomicBool,
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Map {
    links: HashMap<(String, u16), Arc<Link>>,
    /// One per slot; empty before the map was asked for.
    owners: Vec<Option<Arc<Link>>>,
    /// Counts the maps, so that of many who want a newer one only the first asks for it.
    version: u64,
}

impl Cluster {
    /// A Cluster that some of its servers lead to.
    pub(super) fn new(seeds: Vec<(String, u16)>, manner: Manner) -> Self {
        Self {
            seeds,
            manner,
            map: Mutex::default(),
            stale: AtomicBool::new(true),
            refreshing: tokio::sync::Mutex::default(),
        }
    }

    /// Calls a script at the server that has the slot.
    pub(super) async fn call(&self, slot: u16, call: Call<'_>) -> RedisResult<Reply> {
        let mut link = self.owner(slot).await?;
        for _ in 0..REDIRECTIONS {
            let error = match link.call(call).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            match redirection(&error) {
                Some((false, address)) => {
                    self.stale.store(true, Ordering::Relaxed);
                    let moved = self.link(address);
                    link = self.owner(slot).await.unwrap_or(moved);
                }
                Some((true, address)) => return self.link(address).call_asking(call).await,
                None => {
                    if is_fatal(&error) || error.code() == Some("CLUSTERDOWN") {
                        self.stale.store(true, Ordering::Relaxed);
                    }
                    return Err(error);
                }
            }
        }
        Err(std::io::Error::other("the servers of the cluster send us in circles").into())
    }

    /// The server that has a slot.
    pub(super) async fn owner(&self, slot: u16) -> RedisResult<Arc<Link>> {
        if self.stale.load(Ordering::Relaxed) {
            self.refresh().await?;
        }
        let owner = self.lock().owners.get(usize::from(slot)).cloned().flatten();
        owner.ok_or_else(|| {
            self.stale.store(true, Ordering::Relaxed);
            std::io::Error::other(format!("no server of the cluster has slot {slot}")).into()
        })
    }

    /// Every server that has slots.
    pub(super) async fn owners(&self) -> RedisResult<Vec<Arc<Link>>> {
        self.owner(0).await?;
        let mut owners: Vec<Arc<Link>> = Vec::new();
        for owner in self.lock().owners.iter().flatten() {
            if !owners.iter().any(|known| Arc::ptr_eq(known, owner)) {
                owners.push(owner.clone());
            }
        }
        Ok(owners)
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        let links = std::mem::take(&mut *self.lock()).links;
        links.values().for_each(|link| link.close());
    }

    async fn refresh(&self) -> RedisResult<()> {
        let before = self.lock().version;
        let _one_at_a_time = self.refreshing.lock().await;
        if self.lock().version != before {
            return Ok(());
        }
        let known: Vec<_> = self.lock().links.keys().cloned().collect();
        let mut trouble = RedisError::from(std::io::Error::other("no server is named"));
        for address in known.into_iter().chain(self.seeds.clone()) {
            let link = self.link(address.clone());
            match link.command(redis::cmd("CLUSTER").arg("SLOTS")).await {
                Ok(answer) => return self.adopt(&address.0, answer),
                Err(error) => trouble = error,
            }
        }
        Err(trouble)
    }

    /// Takes over a new map. `asked` is the host that gave it, for servers that do not name themselves.
    fn adopt(&self, asked: &str, answer: Value) -> RedisResult<()> {
        let ranges = Vec::<Vec<Value>>::from_redis_value(answer)?;
        let mut owners = vec![None; usize::from(SLOTS)];
        for range in ranges {
            let [from, to, master, ..] = range.as_slice() else { continue };
            let (from, to) = (u16::from_redis_value_ref(from)?, u16::from_redis_value_ref(to)?);
            let Value::Array(master) = master else { continue };
            let [host, port, ..] = master.as_slice() else { continue };
            let host =
                Option::<String>::from_redis_value_ref(host)?.filter(|host| !host.is_empty());
            let port = u16::from_redis_value_ref(port)?;
            let link = self.link((host.unwrap_or_else(|| asked.to_owned()), port));
            for slot in from..=to.min(SLOTS - 1) {
                owners[usize::from(slot)] = Some(link.clone());
            }
        }
        let mut map = self.lock();
        let unchanged = map.owners.len() == owners.len()
            && map.owners.iter().zip(&owners).all(|(old, new)| match (old, new) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (None, None) => true,
                _ => false,
            });
        if !unchanged {
            // Whoever has a new slot may have taken it over from a server that died.
            map.links.values().for_each(|link| link.doubt());
        }
        map.links.retain(|_, link| owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, link)));
        map.owners = owners;
        map.version += 1;
        self.stale.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn link(&self, address: (String, u16)) -> Arc<Link> {
        let mut map = self.lock();
        let link = map.links.entry(address.clone()).or_insert_with(|| {
            Arc::new(Link::new(Dial::server(&address.0, address.1, &self.manner)))
        });
        link.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().expect("nothing panics under this lock")
    }
}

/// Where a server sends us, and whether for this one call only.
fn redirection(error: &RedisError) -> Option<(bool, (String, u16))> {
    let once = match error.code()? {
        "ASK" => true,
        "MOVED" => false,
        _ => return None,
    };
    let (host, port) = error.detail()?.split_whitespace().nth(1)?.rsplit_once(':')?;
    Some((once, (host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?)))
}
