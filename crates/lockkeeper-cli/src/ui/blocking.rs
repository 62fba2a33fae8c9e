//! Which process waits for which, across keys and engines, and whether they wait in a cycle.
//!
//! The nodes are processes. One waits for another because it wants a lock that the other one holds,
//! or because it holds a lock for one of its descendants (`lockkeeper run a -- lockkeeper run b --
//! …`). A poll is not atomic across many keys, so only what two polls in a row saw counts as a
//! deadlock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use lockkeeper::engine::Mode;
use serde::Serialize;

use super::model::{EngineName, Lock, Party};

/// The dependencies, and the deadlocks.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Blocking {
    /// One tree per process that others wait for and that itself waits for none.
    pub(crate) trees: Vec<Node>,
    pub(crate) deadlocks: Vec<Deadlock>,
    /// Whether there is more than is shown.
    pub(crate) truncated: bool,
}

/// A process, and those that wait for it.
#[derive(Debug, Serialize)]
pub(crate) struct Node {
    pub(crate) process: String,
    /// The first characters of its command line, if the store knows them.
    pub(crate) command: Option<String>,
    /// Why it waits for the node above; `null` at the top.
    pub(crate) waits: Option<Reason>,
    pub(crate) blocks: Vec<Node>,
}

/// Why one process waits for another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "for", rename_all = "snake_case")]
pub(crate) enum Reason {
    /// The other one holds a lock.
    Lock { engine: EngineName, key: String },
    /// The other one is its descendant.
    Child,
}

/// Processes that wait for each other in a cycle.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Deadlock {
    /// Each waits for the next one, and the last one for the first.
    pub(crate) ring: Vec<Link>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Link {
    pub(crate) process: String,
    /// As for a [`Node`].
    pub(crate) command: Option<String>,
    pub(crate) waits: Reason,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, link) in self.ring.iter().enumerate() {
            let next = &self.ring[(n + 1) % self.ring.len()].process;
            let separator = if n == 0 { "" } else { "; " };
            match &link.waits {
                Reason::Lock { key, .. } => {
                    write!(f, "{separator}{} waits for {key:?} of {next}", link.process)?;
                }
                Reason::Child => {
                    write!(f, "{separator}{} waits for its child {next}", link.process)?
                }
            }
        }
        Ok(())
    }
}

/// How many nodes are shown, and how deep.
const MOST_NODES: usize = 2_000;
const DEEPEST: usize = 32;
/// How many processes are searched for cycles at most.
const MOST_STUCK: usize = 500;

type Name = String;

/// The processes that hold something, by host and process id.
pub(crate) type Holders = HashMap<(String, u32), Name>;

#[derive(Debug, Default)]
struct Graph {
    /// The commands of the processes, as far as they are known.
    commands: HashMap<Name, String>,
    /// What each process waits for: all of these.
    waits: BTreeMap<Name, Vec<Wait>>,
}

#[derive(Debug)]
struct Wait {
    reason: Reason,
    /// The processes that block it.
    on: BTreeSet<Name>,
    /// Whether one of them going away is enough.
    any: bool,
    /// Whether the previous poll saw the same.
    lasting: bool,
}

impl Blocking {
    /// `parents` returns which of some processes on this machine are ancestors of a process.
    pub(crate) fn of<'a>(
        locks: impl Iterator<Item = &'a Lock> + Clone,
        parents: impl Fn(&Party, &Holders) -> Vec<Name>,
    ) -> Self {
        let graph = Graph::new(locks, parents);
        let mut blocking = Self { deadlocks: graph.deadlocks(), ..Self::default() };
        let mut left = MOST_NODES;
        let blocked_by = graph.reversed();
        for process in blocked_by.keys().filter(|process| !graph.waits.contains_key(**process)) {
            let tree = graph.grow(process, None, &blocked_by, &mut Vec::new(), &mut left);
            blocking.trees.extend(tree);
        }
        blocking.truncated = left == 0;
        blocking
    }

    /// The deadlocks that a lock is part of.
    pub(crate) fn deadlocks_of(&self, engine: &str, key: &str) -> impl Iterator<Item = &Deadlock> {
        let is_it = move |link: &Link| match &link.waits {
            Reason::Lock { engine: other, key: lock } => **other == *engine && *lock == *key,
            Reason::Child => false,
        };
        self.deadlocks.iter().filter(move |deadlock| deadlock.ring.iter().any(is_it))
    }

    /// The locks that are part of a deadlock.
    pub(crate) fn deadlocked(&self) -> HashSet<(&str, &str)> {
        let links = self.deadlocks.iter().flat_map(|deadlock| &deadlock.ring);
        links
            .filter_map(|link| match &link.waits {
                Reason::Lock { engine, key } => Some((&**engine, key.as_str())),
                Reason::Child => None,
            })
            .collect()
    }
}

impl Graph {
    fn new<'a>(
        locks: impl Iterator<Item = &'a Lock> + Clone,
        parents: impl Fn(&Party, &Holders) -> Vec<Name>,
    ) -> Self {
        let mut graph = Self::default();
        let place = |holder: &Party| Some(((holder.host.clone()?, holder.pid?), holder.name()));
        let holders: Holders =
            locks.clone().flat_map(|lock| &lock.holders).filter_map(place).collect();
        for lock in locks {
            let waiters = lock.waiting();
            for party in lock.holders.iter().chain(waiters) {
                if let Some(command) = &party.command {
                    graph.commands.entry(party.name()).or_insert_with(|| command.clone());
                }
            }
            for (n, waiter) in waiters.iter().enumerate() {
                graph.add_wait(lock, waiter, &waiters[..n]);
                for parent in parents(waiter, &holders) {
                    graph.waits.entry(parent).or_default().push(Wait {
                        reason: Reason::Child,
                        on: BTreeSet::from([waiter.name()]),
                        any: false,
                        lasting: true,
                    });
                }
            }
        }
        graph
    }

    /// The tree of the processes that wait for a process. A process that is its own ancestor is left
    /// out there.
    fn grow(
        &self,
        process: &str,
        waits: Option<Reason>,
        blocked_by: &BTreeMap<&str, Vec<(&str, &Reason)>>,
        above: &mut Vec<Name>,
        left: &mut usize,
    ) -> Option<Node> {
        if *left == 0 || above.len() >= DEEPEST || above.iter().any(|name| name == process) {
            return None;
        }
        *left -= 1;
        above.push(process.to_owned());
        let below = blocked_by.get(process).into_iter().flatten();
        let grow = |(name, reason): &(&str, &Reason)| {
            self.grow(name, Some((*reason).clone()), blocked_by, above, left)
        };
        let blocks = below.filter_map(grow).collect();
        above.pop();
        let command = self.commands.get(process).cloned();
        Some(Node { process: process.to_owned(), command, waits, blocks })
    }

    fn add_wait(&mut self, lock: &Lock, waiter: &Party, ahead: &[Party]) {
        let in_the_way = |others: &[Party]| -> BTreeSet<Name> {
            let others = others.iter().filter(|other| !goes_with(waiter.mode, other.mode));
            // Another task of the same process will release it.
            others.map(Party::name).filter(|name| *name != waiter.name()).collect()
        };
        let mut on = in_the_way(&lock.holders);
        // A reader behind a waiting writer.
        if on.is_empty() {
            on = in_the_way(ahead);
        }
        if on.is_empty() {
            return;
        }
        let looks_before = |party: &Party| party.seen < lock.looked;
        let lasting = looks_before(waiter)
            && lock.holders.iter().filter(|holder| on.contains(&holder.name())).all(looks_before);
        let reason = Reason::Lock { engine: lock.engine.clone(), key: lock.key.clone() };
        let any = matches!(waiter.mode, Mode::Permits { .. });
        self.waits.entry(waiter.name()).or_default().push(Wait { reason, on, any, lasting });
    }

    fn reversed(&self) -> BTreeMap<&str, Vec<(&str, &Reason)>> {
        let mut reversed: BTreeMap<&str, Vec<(&str, &Reason)>> = BTreeMap::new();
        for (process, waits) in &self.waits {
            for wait in waits {
                for on in &wait.on {
                    reversed.entry(on).or_default().push((process, &wait.reason));
                }
            }
        }
        reversed
    }

    fn deadlocks(&self) -> Vec<Deadlock> {
        let stuck = self.stuck();
        if stuck.len() > MOST_STUCK {
            return Vec::new();
        }
        let mut found: Vec<Deadlock> = Vec::new();
        let mut done: HashSet<&str> = HashSet::new();
        for start in &stuck {
            if done.contains(start) {
                continue;
            }
            if let Some(ring) = self.shortest_ring(start, &stuck) {
                done.extend(ring.iter().map(|(process, _)| *process));
                let link = |(process, waits): (&str, &Reason)| Link {
                    process: process.to_owned(),
                    command: self.commands.get(process).cloned(),
                    waits: waits.clone(),
                };
                found.push(Deadlock { ring: ring.into_iter().map(link).collect() });
            }
        }
        found
    }

    /// The processes that can proceed in no order of events: all others are removed in turn.
    fn stuck(&self) -> BTreeSet<&str> {
        let mut stuck: BTreeSet<&str> = self.waits.keys().map(String::as_str).collect();
        loop {
            let goes_on = |wait: &Wait| {
                let mut free = wait.on.iter().map(|on| !stuck.contains(on.as_str()));
                !wait.lasting
                    || if wait.any { free.any(|free| free) } else { free.all(|free| free) }
            };
            let freed: Vec<_> = stuck
                .iter()
                .copied()
                .filter(|process| self.waits[*process].iter().all(goes_on))
                .collect();
            if freed.is_empty() {
                return stuck;
            }
            freed.iter().for_each(|process| {
                stuck.remove(process);
            });
        }
    }

    /// The shortest path from a process back to itself, among those that are stuck.
    fn shortest_ring<'a>(
        &'a self,
        start: &'a str,
        stuck: &BTreeSet<&'a str>,
    ) -> Option<Vec<(&'a str, &'a Reason)>> {
        // How each process was reached.
        let mut from: BTreeMap<&str, (&str, &Reason)> = BTreeMap::new();
        let mut edge = vec![start];
        while !edge.is_empty() && !from.contains_key(start) {
            let mut next = Vec::new();
            for process in edge {
                let lasting = self.waits[process].iter().filter(|wait| wait.lasting);
                for (on, reason) in lasting.flat_map(|w| w.on.iter().map(move |on| (on, &w.reason)))
                {
                    if stuck.contains(on.as_str()) && !from.contains_key(on.as_str()) {
                        from.insert(on, (process, reason));
                        next.push(on.as_str());
                    }
                }
            }
            edge = next;
        }
        let mut ring = vec![*from.get(start)?];
        while let Some((process, _)) = ring.last()
            && *process != start
        {
            ring.push(from[process]);
        }
        ring.reverse();
        Some(ring)
    }
}

/// Whether two modes can be held at once.
fn goes_with(one: Mode, other: Mode) -> bool {
    one == Mode::Read && other == Mode::Read
}

#[cfg(test)]
mod tests;
