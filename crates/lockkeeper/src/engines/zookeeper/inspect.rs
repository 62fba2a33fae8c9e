//! Holders and waiters, and what an operator can do about them.

use zookeeper_client as zk;

use super::Shared;
use super::broken::change;
use super::error::failed;
use super::layout::{
    ASKED, Kind, LEASES, LOCKS, Node, REVOKE, decode, fence_of_readers, owned_by_a_session, queue,
    read_record,
};
use super::session::Session;
use crate::core::admission::Turn;
use crate::engine::broken::with_line;
use crate::engine::{Entry, Fence, Mode, Query, Snapshot, YieldRequest};
use crate::engines::queued;
use crate::error::Result;
use crate::key::Key;

/// How many requests are in progress at a time.
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

/// Marks the nodes of all holders of a key, which they watch. A list records who asks, and why.
pub(super) async fn request_yield(
    shared: &Shared,
    key: &Key,
    request: &YieldRequest,
) -> Result<Vec<Entry>> {
    let session = shared.sessions.get().await?;
    let seen = look(shared, &session, std::slice::from_ref(key)).await?;
    let mut asked = Vec::new();
    let list = shared.list(ASKED);
    for entry in seen.into_iter().flat_map(|seen| seen.holders) {
        // First of all: the holder may look at any time.
        let line = format!("{}\t{}", entry.paths[0], request.line());
        if let Err(error) = change(shared, &session, &list, |text| with_line(text, &line)).await {
            tracing::warn!(%error, %key, "who asks for a lock could not be recorded");
        }
        // The first node of a grant is the one that its holder watches.
        match session.zk.set_data(&entry.paths[0], REVOKE, None).await {
            Ok(_) => asked.push(entry.entry),
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(failed(format!("ask for {key:?}"))(error)),
        }
    }
    Ok(asked)
}

/// A lock as it was read.
pub(super) struct Seen {
    key: Key,
    pub(super) holders: Vec<Claimant>,
    waiters: Vec<Claimant>,
}

/// A holder or a waiter, and its nodes.
pub(super) struct Claimant {
    pub(super) entry: Entry,
    pub(super) paths: Vec<String>,
}

impl Seen {
    fn snapshot(self) -> Option<Snapshot> {
        if self.holders.is_empty() && self.waiters.is_empty() {
            return None;
        }
        let entries = |claimants: Vec<Claimant>| {
            claimants.into_iter().map(|claimant| claimant.entry).collect::<Vec<_>>()
        };
        let holders = entries(self.holders);
        let fence: Option<Fence> = holders.iter().filter_map(|entry| entry.fence).max();
        // A waiter has a number already, but it is no fence before the grant.
        let waiters = entries(self.waiters).into_iter();
        let waiters = Some(waiters.map(|entry| Entry { fence: None, ..entry }).collect());
        Some(Snapshot { holders, waiters, fence, ..Snapshot::new(self.key) })
    }
}

/// Reads locks: all requests of one sort are sent together.
pub(super) async fn look(shared: &Shared, session: &Session, keys: &[Key]) -> Result<Vec<Seen>> {
    let dirs: Vec<_> = keys.iter().map(|key| shared.dir(key)).collect();
    let within = |name: &str| dirs.iter().map(|dir| format!("{dir}/{name}")).collect::<Vec<_>>();
    // Everything done before this call is seen, at whichever server it was done.
    let sync = session.zk.sync(shared.root());
    let bases = session.list_all(&dirs);
    sync.await.map_err(failed("look at locks"))?;
    let bases = bases.await?;
    let is_semaphore = bases.iter().flatten().any(|name| name == LOCKS || name == LEASES);
    let none = || vec![Vec::new(); keys.len()];
    let (locks, leases) = match is_semaphore {
        // In this order: a waiter that is granted meanwhile is seen twice rather than not at all.
        true => {
            let (locks, leases) =
                (session.list_all(&within(LOCKS)), session.list_all(&within(LEASES)));
            (locks.await?, leases.await?)
        }
        false => (none(), none()),
    };
    let mut all = Vec::new();
    for (n, (key, dir)) in keys.iter().zip(&dirs).enumerate() {
        let (base, leases) = (queue(&bases[n]), queue(&leases[n]));
        let mut waiting = queue(&locks[n]);
        waiting.retain(|node| leases.iter().all(|lease| lease.id() != node.id()));
        let turn = |at| queued::turn(base.iter().map(|node| node.kind.mode()), at);
        let (holders, waiters): (Vec<_>, Vec<_>) =
            (0..base.len()).partition(|at| turn(*at) == Turn::In);
        let nodes = |ats: Vec<usize>| {
            ats.into_iter().map(|at| (format!("{dir}/{}", base[at].name), base[at].clone()))
        };
        let permit = |node: Node| (format!("{dir}/{LEASES}/{}", node.name), node);
        let waiter =
            |node: Node| (format!("{dir}/{LOCKS}/{}", node.name), node.waiting_for_permits());
        // Readers carry the last writer's fence, which is the data of the directory.
        let shared = base.iter().any(|node| node.kind == Kind::Read);
        let written = shared.then(|| session.zk.get_data(dir));
        let holders = nodes(holders).chain(leases.into_iter().map(permit)).collect();
        let waiters = nodes(waiters).chain(waiting.into_iter().map(waiter)).collect();
        all.push((key.clone(), session.read_all(holders), session.read_all(waiters), written));
    }
    let mut seen = Vec::new();
    for (key, holders, waiters, written) in all {
        let mut seen_here = Seen { key, holders: holders.await?, waiters: waiters.await? };
        if let Some(written) = written {
            let fence = match written.await {
                Ok((data, stat)) => fence_of_readers(&data, &stat),
                Err(zk::Error::NoNode) => None,
                Err(error) => return Err(failed("look at locks")(error)),
            };
            let readers = seen_here.holders.iter_mut().map(|holder| &mut holder.entry);
            readers.filter(|entry| entry.mode == Mode::Read).for_each(|entry| entry.fence = fence);
        }
        seen.push(seen_here);
    }
    Ok(seen)
}

impl Session {
    /// Lists many directories. The requests are sent now.
    fn list_all(
        &self,
        dirs: &[String],
    ) -> impl Future<Output = Result<Vec<Vec<String>>>> + Send + use<> {
        let lists: Vec<_> = dirs.iter().map(|dir| self.list(dir)).collect();
        async move {
            let mut all = Vec::new();
            for list in lists {
                all.push(list.await?);
            }
            Ok(all)
        }
    }

    /// Reads the data of nodes, grouped by claim. The requests are sent now.
    fn read_all(
        &self,
        nodes: Vec<(String, Node)>,
    ) -> impl Future<Output = Result<Vec<Claimant>>> + Send + use<> {
        let reads: Vec<_> = nodes.iter().map(|(path, _)| self.zk.get_data(path)).collect();
        async move {
            let mut all: Vec<(Node, Claimant)> = Vec::new();
            for ((path, node), read) in nodes.into_iter().zip(reads) {
                let (data, stat) = match read.await {
                    Ok(read) => read,
                    // Gone meanwhile.
                    Err(zk::Error::NoNode) => continue,
                    Err(error) => return Err(failed(format!("look at {path:?}"))(error)),
                };
                // A lock ends with its session. A node that does not is application data.
                if !owned_by_a_session(&stat) {
                    continue;
                }
                let slot = node.permit().map(|(slot, _)| slot);
                if let Some((_, same)) = all.iter_mut().find(|(other, _)| other.id() == node.id()) {
                    same.entry.slots.extend(slot);
                    same.paths.push(path);
                    continue;
                }
                let mut entry = read_record(&node.name, node.kind.mode(), &data, &stat);
                if let (Some((_, limit)), Mode::Permits { limit: 0, .. }) =
                    (node.permit(), entry.mode)
                {
                    entry.mode = Mode::Permits { take: 1, limit };
                }
                entry.slots.extend(slot);
                all.push((node, Claimant { entry, paths: vec![path] }));
            }
            Ok(all.into_iter().map(|(_, claimant)| claimant).collect())
        }
    }
}
