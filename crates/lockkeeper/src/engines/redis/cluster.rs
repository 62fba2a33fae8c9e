//! A Cluster: which server owns which slot, and how to follow slots that move.
//!
//! The slot map is read again when a server reports that a slot has moved, and after a connection
//! broke. A call follows only a few redirections; if it still fails, the core repeats it with the
//! same token.
//!
//! Easy to get wrong: a slot that is being migrated. Its old server no longer creates keys in it.
//! Its new server refuses calls with several keys unless all of them exist there, and a lock
//! consists of several keys, most of which do not exist. So a call that meets such a slot first
//! migrates the keys it uses, as the migration itself would, and then runs at the new server with a
//! single declared key.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use redis::{FromRedisValue, RedisError, RedisResult, Value};
use tokio::task::JoinSet;

use super::batch::silent;
use super::connection::{Call, Connection, Reply};
use super::connector::{ConnectOptions, Connector};
use super::error::{code, is_fatal, met_a_moved_key};
use super::layout::{SLOTS, beside_queue, stem_of};

/// How many redirections one call follows.
const REDIRECTIONS: usize = 5;

/// Servers that share the slots.
#[derive(Debug)]
pub(in crate::engines) struct Cluster {
    seeds: Vec<(String, u16)>,
    options: ConnectOptions,
    map: Mutex<Map>,
    stale: AtomicBool,
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Map {
    links: HashMap<(String, u16), Arc<Connection>>,
    /// One per slot; empty before the map was read.
    owners: Vec<Option<Arc<Connection>>>,
    /// The version of the map, so that of many tasks that want a newer one only the first reads it.
    version: u64,
}

impl Cluster {
    /// A Cluster, reached through some of its servers.
    pub(in crate::engines) fn new(seeds: Vec<(String, u16)>, options: ConnectOptions) -> Self {
        Self {
            seeds,
            options,
            map: Mutex::default(),
            stale: AtomicBool::new(true),
            refreshing: tokio::sync::Mutex::default(),
        }
    }

    /// Calls a script at the server that owns the slot.
    pub(in crate::engines) async fn call(&self, slot: u16, call: &Call<'_>) -> RedisResult<Reply> {
        let mut link = self.owner(slot).await?;
        let mut trouble = None;
        for _ in 0..REDIRECTIONS {
            let answer = match link.call(call).await {
                Err(error) if is_moving(&error) => {
                    Box::pin(self.call_while_moving(&link, call, error)).await
                }
                answer => answer,
            };
            let error = match answer {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if is_fatal(&error) || code(&error) == Some("CLUSTERDOWN") {
                self.stale.store(true, Ordering::Relaxed);
            }
            let Some((_, address)) = redirection(&error) else { return Err(error) };
            self.stale.store(true, Ordering::Relaxed);
            let moved = self.link(address);
            link = self.owner(slot).await.unwrap_or(moved);
            trouble = Some(error);
        }
        Err(trouble.unwrap_or_else(silent))
    }

    /// Calls a script some of whose keys may be at the old server of a slot and some at the new
    /// one.
    ///
    /// Once they are migrated, the old server has none of them and will not create any. If they
    /// cannot be migrated, `trouble` is returned: it passes when the slot has moved.
    async fn call_while_moving(
        &self,
        old: &Connection,
        call: &Call<'_>,
        trouble: RedisError,
    ) -> RedisResult<Reply> {
        let mut keys = call.keys.to_vec();
        keys.extend(call.keys.iter().filter_map(|key| beside_queue(key)).flatten());
        let Some(address) = self.destination(old, &keys, &trouble).await else {
            return Err(trouble);
        };
        let new = self.link(address.clone());
        for pair in call.keys.windows(2) {
            let Some(stem) = stem_of(&pair[1]) else { continue };
            let lock = fields(old, &new, &pair[0]).await?;
            if !matches!(lock.get("mode").map(String::as_str), Some("read" | "write")) {
                continue;
            }
            let readers =
                lock.iter().filter_map(|(field, holds)| Some((field, holds.parse().ok()?)));
            keys.extend(readers.flat_map(|(field, holds): (_, u32)| {
                (1..=holds).map(move |n| format!("{stem}:{field}:rwlock_timeout:{n}"))
            }));
        }
        let mut migrate = redis::cmd("MIGRATE");
        let patience = (self.options.timeout / 2).as_millis();
        migrate.arg(&address.0).arg(address.1).arg("").arg(0).arg(patience.to_string());
        migrate.arg("REPLACE");
        match (&self.options.user, &self.options.password) {
            (Some(user), Some(password)) => drop(migrate.arg("AUTH2").arg(user).arg(password)),
            (None, Some(password)) => drop(migrate.arg("AUTH").arg(password)),
            _ => {}
        }
        if let Err(error) = old.command(migrate.arg("KEYS").arg(keys)).await {
            tracing::debug!(%error, "cannot move the keys of a lock with their slot");
            return Err(if redirection(&error).is_some() { error } else { trouble });
        }
        new.call_asking(call).await
    }

    /// The server that a slot is being migrated to.
    async fn destination(
        &self,
        old: &Connection,
        keys: &[String],
        error: &RedisError,
    ) -> Option<(String, u16)> {
        if let Some((_, address)) = redirection(error) {
            return Some(address);
        }
        // An unused name in the slot: the old server redirects it.
        let nobody = format!("{}:nobody", keys.iter().find(|key| stem_of(key).is_some())?);
        let answer = old.command(redis::cmd("EXISTS").arg(nobody)).await;
        redirection(&answer.err()?).map(|(_, address)| address)
    }

    /// The server that owns a slot.
    pub(in crate::engines) async fn owner(&self, slot: u16) -> RedisResult<Arc<Connection>> {
        if self.stale.load(Ordering::Relaxed) {
            self.refresh().await?;
        }
        let owner = self.lock().owners.get(usize::from(slot)).cloned().flatten();
        owner.ok_or_else(|| {
            self.stale.store(true, Ordering::Relaxed);
            std::io::Error::other(format!("no server of the cluster has slot {slot}")).into()
        })
    }

    /// Every server that owns slots.
    pub(in crate::engines) async fn owners(&self) -> RedisResult<Vec<Arc<Connection>>> {
        self.owner(0).await?;
        let mut owners: Vec<Arc<Connection>> = Vec::new();
        for owner in self.lock().owners.iter().flatten() {
            if !owners.iter().any(|known| Arc::ptr_eq(known, owner)) {
                owners.push(owner.clone());
            }
        }
        Ok(owners)
    }

    /// Every server that may have keys, in the order in which to look for them: the owners of
    /// slots, and then those to which slots are being migrated, of which some may own none yet. A
    /// key that moves meanwhile is found at one of the two.
    pub(in crate::engines) async fn keepers(&self) -> RedisResult<Vec<Arc<Connection>>> {
        let mut keepers = self.owners().await?;
        let mut importing = BTreeSet::new();
        for owner in &keepers {
            match owner.command(redis::cmd("CLUSTER").arg("NODES")).await {
                Ok(nodes) => importing.extend(migrating_to(&String::from_redis_value(nodes)?)),
                // A user may be allowed to read the slots alone.
                Err(error) if code(&error) == Some("NOPERM") => {}
                Err(error) => return Err(error),
            }
        }
        keepers.extend(importing.into_iter().map(|address| self.link(address)));
        Ok(keepers)
    }

    /// Closes all connections.
    pub(in crate::engines) fn close(&self) {
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
        // All at once, because a server that does not answer takes the whole timeout.
        let mut asked = JoinSet::new();
        for address in known.into_iter().chain(self.seeds.clone()) {
            let link = self.link(address.clone());
            asked.spawn(async move {
                (address.0, link.command(redis::cmd("CLUSTER").arg("SLOTS")).await)
            });
        }
        let mut trouble = silent();
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((host, Ok(map))) => return self.adopt(&host, map),
                Ok((_, Err(error))) => trouble = error,
                Err(_) => {}
            }
        }
        Err(trouble)
    }

    /// Adopts a new map. `asked` is the host that returned it, for servers that do not name
    /// themselves.
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
        map.links.retain(|_, link| owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, link)));
        map.owners = owners;
        map.version += 1;
        self.stale.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn link(&self, address: (String, u16)) -> Arc<Connection> {
        let mut map = self.lock();
        let link = map.links.entry(address.clone()).or_insert_with(|| {
            Arc::new(Connection::one_of_many(Connector::server(
                &address.0,
                address.1,
                &self.options,
            )))
        });
        link.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().expect("nothing panics under this lock")
    }
}

/// The fields of a lock, at whichever server it is by now.
async fn fields(
    old: &Connection,
    new: &Connection,
    lock: &str,
) -> RedisResult<HashMap<String, String>> {
    let mut all = redis::cmd("HGETALL");
    all.arg(lock);
    let fields = match old.command(&all).await {
        Err(error) if redirection(&error).is_some() => new.command_asking(all).await,
        answer => answer,
    };
    match fields {
        // Something else is at the key, and has no readers.
        Err(error) if code(&error) == Some("WRONGTYPE") => Ok(HashMap::new()),
        fields => Ok(HashMap::from_redis_value(fields?)?),
    }
}

/// The servers to which one server migrates slots, by its own list of servers.
fn migrating_to(nodes: &str) -> Vec<(String, u16)> {
    let lines = || nodes.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mine = lines().find(|line| line.get(2).is_some_and(|flags| flags.contains("myself")));
    let slots = mine.into_iter().flat_map(|line| line.into_iter().skip(8));
    let ids: Vec<_> = slots
        .filter_map(|slot| Some(slot.strip_suffix(']')?.split_once("->-")?.1.to_owned()))
        .collect();
    let address = |line: Vec<&str>| {
        let (host, port) = line.get(1)?.split('@').next()?.rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    };
    lines().filter(|line| ids.iter().any(|id| id == line[0])).filter_map(address).collect()
}

/// Whether an error shows that the slot is being migrated.
fn is_moving(error: &RedisError) -> bool {
    matches!(code(error), Some("ASK" | "TRYAGAIN")) || met_a_moved_key(error)
}

/// The server we are redirected to, and whether for this one call only.
fn redirection(error: &RedisError) -> Option<(bool, (String, u16))> {
    let once = match error.code()? {
        "ASK" => true,
        "MOVED" => false,
        _ => return None,
    };
    let (host, port) = error.detail()?.split_whitespace().nth(1)?.rsplit_once(':')?;
    Some((once, (host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_tells_where_it_migrates_slots() {
        let nodes = "\
07c37 127.0.0.1:30004@31004,host master - 0 1426238317239 4 connected 0-99 [7->-e7d1e]
67ed2 ::1:30002@31002 myself,master - 0 0 2 connected 5461-10922 [5461->-e7d1e] [9-<-07c37]
e7d1e 127.0.0.1:30001@31001,,shard-id=1 master - 0 1426238318243 1 connected
";
        assert_eq!(migrating_to(nodes), [("127.0.0.1".to_owned(), 30001)]);
        assert!(migrating_to("").is_empty());
        assert!(migrating_to("e7d1e :0 myself\n").is_empty());
    }
}
