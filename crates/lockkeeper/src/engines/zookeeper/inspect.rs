//! Who holds and who waits, and what an operator can do about it.

use zookeeper_client as zk;

use super::data::owned_by_a_session;
use super::error::failed;
use super::layout::{Node, decode, line};
use super::record::{self, REVOKE};
use super::session::Session;
use super::{LEASES, LOCKS, Shared};
use crate::core::admission::{self, Turn};
use crate::engine::{Entry, Fence, Mode, Query, Snapshot};
use crate::error::Result;
use crate::key::Key;

/// How many requests are under way at a time.
const BATCH: usize = 500;

pub(super) async fn inspect(shared: &Shared, query: &Query) -> Result<Vec<Snapshot>> {
    let session = shared.sessions.get().await?;
    let mut keys = match query {
        Query::Key(key) => vec![key.clone()],
        Query::Prefix(prefix) => {
            let top = shared.settings.root.is_empty();
            let children = session.list(shared.root()).await?;
            let keys = children.iter().filter_map(|name| decode(name, top));
            keys.filter(|key| key.as_str().starts_with(prefix)).collect()
        }
    };
    keys.sort();
    let mut snapshots = Vec::new();
    for batch in keys.chunks(BATCH) {
        let seen = look(shared, &session, batch).await?;
        snapshots.extend(seen.into_iter().filter_map(Seen::snapshot));
    }
    Ok(snapshots)
}

/// Deletes the nodes of everyone who holds a key.
pub(super) async fn break_lock(shared: &Shared, key: &Key) -> Result<Vec<Entry>> {
    let session = shared.sessions.get().await?;
    let seen = look(shared, &session, std::slice::from_ref(key)).await?;
    let mut broken = Vec::new();
    for entry in seen.into_iter().flat_map(|seen| seen.holders) {
        let deletions: Vec<_> =
            entry.paths.iter().map(|path| session.zk.delete(path, None)).collect();
        let mut any = false;
        for deletion in deletions {
            match deletion.await {
                Ok(()) => any = true,
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failed(format!("break {key:?}"))(error)),
            }
        }
        broken.extend(any.then_some(entry.entry));
    }
    Ok(broken)
}

/// Marks the nodes of everyone who holds a key, for them to see.
pub(super) async fn request_yield(shared: &Shared, key: &Key) -> Result<Vec<Entry>> {
    let session = shared.sessions.get().await?;
    let seen = look(shared, &session, std::slice::from_ref(key)).await?;
    let mut told = Vec::new();
    for entry in seen.into_iter().flat_map(|seen| seen.holders) {
        // The first node of a grant is the one that its holder watches.
        match session.zk.set_data(&entry.paths[0], REVOKE, None).await {
            Ok(_) => told.push(entry.entry),
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(failed(format!("ask for {key:?}"))(error)),
        }
    }
    Ok(told)
}

/// A lock as it was seen.
struct Seen {
    key: Key,
    holders: Vec<Standing>,
    waiters: Vec<Standing>,
}

/// Someone in line, and the nodes that make that so.
struct Standing {
    entry: Entry,
    paths: Vec<String>,
}

impl Seen {
    fn snapshot(self) -> Option<Snapshot> {
        if self.holders.is_empty() && self.waiters.is_empty() {
            return None;
        }
        let entries =
            |standing: Vec<Standing>| standing.into_iter().map(|one| one.entry).collect::<Vec<_>>();
        let holders = entries(self.holders);
        let fence: Option<Fence> = holders.iter().filter_map(|entry| entry.fence).max();
        // A waiter has a number already, but it is no fence before it is let in.
        let waiters = entries(self.waiters).into_iter();
        let waiters = Some(waiters.map(|entry| Entry { fence: None, ..entry }).collect());
        Some(Snapshot { key: self.key, holders, waiters, fence })
    }
}

/// Looks at locks: all questions of one sort leave together.
async fn look(shared: &Shared, session: &Session, keys: &[Key]) -> Result<Vec<Seen>> {
    let dirs: Vec<_> = keys.iter().map(|key| shared.dir(key)).collect();
    let within = |name: &str| dirs.iter().map(|dir| format!("{dir}/{name}")).collect::<Vec<_>>();
    // What was done before this call is seen, by whichever server it was done.
    let sync = session.zk.sync(shared.root());
    let bases = session.list_all(&dirs);
    sync.await.map_err(failed("look at locks"))?;
    let bases = bases.await?;
    let semaphore = bases.iter().flatten().any(|name| name == LOCKS || name == LEASES);
    let none = || vec![Vec::new(); keys.len()];
    let (gates, leases) = match semaphore {
        // In this order: someone who is let in meanwhile is seen twice rather than not at all.
        true => {
            let (gates, leases) =
                (session.list_all(&within(LOCKS)), session.list_all(&within(LEASES)));
            (gates.await?, leases.await?)
        }
        false => (none(), none()),
    };
    let mut all = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let base = line(&bases[n]);
        let (leases, mut gates) = (line(&leases[n]), line(&gates[n]));
        gates.retain(|gate| leases.iter().all(|lease| lease.id() != gate.id()));
        let nodes = [(dirs[n].clone(), base), (format!("{}/{LEASES}", dirs[n]), leases)];
        let mut holders = Vec::new();
        let mut waiters = Vec::new();
        let [(dir, base), (leases_dir, leases)] = nodes;
        let places: Vec<_> = base
            .iter()
            .map(|node| admission::Queued {
                owner: &node.name,
                mode: node.kind.mode(),
                granted: false,
            })
            .collect();
        for (at, node) in base.iter().enumerate() {
            match admission::turn(&places, at) {
                Turn::In => holders.push((format!("{dir}/{}", node.name), node.clone())),
                _ => waiters.push((format!("{dir}/{}", node.name), node.clone())),
            }
        }
        let path = |node: Node| (format!("{leases_dir}/{}", node.name), node);
        holders.extend(leases.into_iter().map(path));
        let gate =
            |node: Node| (format!("{dir}/{LOCKS}/{}", node.name), node.waiting_for_permits());
        waiters.extend(gates.into_iter().map(gate));
        all.push((key.clone(), session.read_all(holders), session.read_all(waiters)));
    }
    let mut seen = Vec::new();
    for (key, holders, waiters) in all {
        seen.push(Seen { key, holders: holders.await?, waiters: waiters.await? });
    }
    Ok(seen)
}

impl Session {
    /// The children of a node, which may not be there.
    async fn list(&self, dir: &str) -> Result<Vec<String>> {
        Ok(self.list_all(&[dir.to_owned()]).await?.remove(0))
    }

    /// The children of many nodes. The requests leave now, not when the answer is awaited.
    fn list_all(
        &self,
        dirs: &[String],
    ) -> impl Future<Output = Result<Vec<Vec<String>>>> + Send + use<> {
        let lists: Vec<_> = dirs.iter().map(|dir| self.zk.get_children(dir)).collect();
        async move {
            let mut all = Vec::new();
            for list in lists {
                match list.await {
                    Ok((children, _)) => all.push(children),
                    Err(zk::Error::NoNode) => all.push(Vec::new()),
                    Err(error) => return Err(failed("list locks")(error)),
                }
            }
            Ok(all)
        }
    }

    /// What nodes say of themselves, those of one claim together. The requests leave now.
    fn read_all(
        &self,
        nodes: Vec<(String, Node)>,
    ) -> impl Future<Output = Result<Vec<Standing>>> + Send + use<> {
        let reads: Vec<_> = nodes.iter().map(|(path, _)| self.zk.get_data(path)).collect();
        async move {
            let mut all: Vec<(Node, Standing)> = Vec::new();
            for ((path, node), read) in nodes.into_iter().zip(reads) {
                let (data, stat) = match read.await {
                    Ok(read) => read,
                    // Gone meanwhile.
                    Err(zk::Error::NoNode) => continue,
                    Err(error) => return Err(failed(format!("look at {path:?}"))(error)),
                };
                // A lock ends with its session. What stays is an application's data.
                if !owned_by_a_session(&stat) {
                    continue;
                }
                let slot = node.permit().map(|(slot, _)| slot);
                if let Some((_, same)) = all.iter_mut().find(|(other, _)| other.id() == node.id()) {
                    same.entry.slots.extend(slot);
                    same.paths.push(path);
                    continue;
                }
                let mut entry = record::read(&node.name, node.kind.mode(), &data, &stat);
                if let (Some((_, limit)), Mode::Permits { limit: 0, .. }) =
                    (node.permit(), entry.mode)
                {
                    entry.mode = Mode::Permits { take: 1, limit };
                }
                entry.slots.extend(slot);
                all.push((node, Standing { entry, paths: vec![path] }));
            }
            Ok(all.into_iter().map(|(_, standing)| standing).collect())
        }
    }
}
