//! Every client alone, ours among them, under the same faults: what is lost without fences, and
//! what with them?
//!
//! Nobody is judged here but ours: for the others the tables say what was seen. A client does well
//! if it passes its fence along, or refuses in time.

mod pauses;
mod queue;
mod redlock;
mod sentinel;
mod unlock;

use std::time::Duration;

use crate::driver::{Outcome, Program};
use crate::pairs::Run;

/// The lease or session of every client, unless a scene needs another.
const LEASE: Duration = Duration::from_secs(2);

/// How long the next client may take to get a lock whose holders are dead.
const PATIENCE: Duration = Duration::from_secs(60);

const NAME: &str = "peers";

/// A scene prints its table while it runs, and returns a verdict for each client.
type Scene = (&'static str, fn(&Run) -> Outcome<Vec<Verdict>>);

const SCENES: [Scene; 5] = [
    ("pauses", pauses::pauses),
    ("queue", queue::queue),
    ("unlock", unlock::unlock),
    ("redlock", redlock::redlock),
    ("sentinel", sentinel::sentinel),
];

/// A client of some library.
struct Peer {
    engine: &'static str,
    client: &'static str,
    /// The kind of lock, as its driver names it.
    kind: &'static str,
    program: Program,
}

/// What a scene has shown of a client.
struct Verdict {
    engine: &'static str,
    client: &'static str,
    text: String,
}

impl Peer {
    fn new(engine: &'static str, client: &'static str, program: Program) -> Self {
        Self { engine, client, kind: "mutex", program }
    }

    fn is_ours(&self) -> bool {
        self.client.starts_with("lockkeeper")
    }

    fn verdict(&self, text: impl Into<String>) -> Verdict {
        Verdict { engine: self.engine, client: self.client, text: text.into() }
    }
}

/// The clients of etcd, at this address.
fn of_etcd(run: &Run, hosts: &str) -> Vec<Peer> {
    vec![
        Peer::new("etcd", "lockkeeper", run.ours(&format!("etcd://{hosts}"))),
        Peer::new("etcd", "Go `concurrency.Mutex`", run.go("concurrency", hosts)),
    ]
}

/// The clients of ZooKeeper, at this address.
fn of_zookeeper(run: &Run, hosts: &str) -> Vec<Peer> {
    let (url, path) = (format!("zookeeper://{hosts}/locks"), format!("{hosts}/locks"));
    vec![
        Peer::new("ZooKeeper", "lockkeeper", run.ours(&url)),
        Peer::new("ZooKeeper", "Curator `InterProcessMutex`", run.java("CuratorDriver", &path)),
        Peer::new("ZooKeeper", "kazoo `Lock`", run.python("kazoo", &path)),
    ]
}

/// The clients of one Redis server, at this address.
fn of_redis(run: &Run, hosts: &str) -> Vec<Peer> {
    let redisson = run.java("RedissonDriver", hosts);
    let fenced = Peer::new("Redis", "Redisson `RFencedLock`", redisson.clone());
    vec![
        Peer::new("Redis", "lockkeeper", run.ours(&format!("redis://{hosts}"))),
        Peer::new("Redis", "Redisson `RLock`", redisson),
        Peer { kind: "fenced", ..fenced },
        Peer::new("Redis", "redis-py `Lock`", run.python("redis-py", hosts)),
        Peer::new("Redis", "node-redlock", run.node(hosts)),
        Peer::new("Redis", "redsync", run.go("redsync", hosts)),
        Peer::new("Redis", "rslock", run.rust(hosts)),
    ]
}

/// Runs these scenes, or all of them, and prints what was seen.
pub(crate) fn compare(run: &Run, wanted: &[&str]) -> Outcome {
    if let Some(stranger) = wanted.iter().find(|w| !SCENES.iter().any(|(name, _)| name == *w)) {
        let known: Vec<_> = SCENES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no scene is called {stranger:?}; there are {}", known.join(", ")));
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.contains(&name);
    let mut seen = Vec::new();
    for (name, scene) in SCENES.iter().filter(|(name, _)| is_wanted(name)) {
        println!("\n{name}\n");
        seen.push((*name, scene(run)?));
    }
    println!("\n{}", summary(&seen));
    Ok(())
}

/// One row for each client, one column for each scene.
fn summary(seen: &[(&str, Vec<Verdict>)]) -> String {
    let mut clients = Vec::new();
    for verdict in seen.iter().flat_map(|(_, verdicts)| verdicts) {
        if !clients.contains(&(verdict.engine, verdict.client)) {
            clients.push((verdict.engine, verdict.client));
        }
    }
    let names: Vec<_> = seen.iter().map(|(name, _)| *name).collect();
    let mut lines = vec![
        format!("| engine | client | {} |", names.join(" | ")),
        format!("|---|---|{}", "---|".repeat(names.len())),
    ];
    for (engine, client) in clients {
        let cells = seen.iter().map(|(_, verdicts)| {
            let of_it = |v: &&Verdict| (v.engine, v.client) == (engine, client);
            verdicts.iter().find(of_it).map_or("–", |verdict| verdict.text.as_str())
        });
        lines.push(format!("| {engine} | {client} | {} |", cells.collect::<Vec<_>>().join(" | ")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_a_row_for_each_client_and_a_column_for_each_scene() {
        let verdict = |client, text: &str| Verdict { engine: "E", client, text: text.to_owned() };
        let seen =
            [("one", vec![verdict("a", "1"), verdict("b", "2")]), ("two", vec![verdict("b", "3")])];
        assert_eq!(
            summary(&seen),
            "| engine | client | one | two |\n|---|---|---|---|\n| E | a | 1 | – |\n| E | b | 2 | 3 |"
        );
    }
}
