//! The lease or session of a client ends while it waits, because it is stopped.

use std::time::Duration;

use super::{LEASE, NAME, PATIENCE, Peer, Verdict, of_etcd, of_zookeeper};
use crate::driver::Outcome;
use crate::pairs::Run;
use crate::store::Store;

/// How long a client that was told wrongly that it holds a lock takes to say so.
const WORD: Duration = Duration::from_secs(3);

pub(super) fn queue(run: &Run) -> Outcome<Vec<Verdict>> {
    println!("| engine | waiter | once it continues, beside the holder |");
    println!("|---|---|---|");
    let mut verdicts = Vec::new();
    let etcd = Store::etcd()?;
    verdicts.extend(all(&etcd, &of_etcd(run, &etcd.hosts()))?);
    drop(etcd);
    let zookeeper = Store::zookeeper()?;
    verdicts.extend(all(&zookeeper, &of_zookeeper(run, &zookeeper.hosts()))?);
    Ok(verdicts)
}

/// The first of them is ours, which holds the lock.
fn all(store: &Store, peers: &[Peer]) -> Outcome<Vec<Verdict>> {
    peers.iter().map(|peer| overslept(store, &peers[0], peer)).collect()
}

fn overslept(store: &Store, ours: &Peer, peer: &Peer) -> Outcome<Verdict> {
    let (mut holder, mut next) = (ours.program.start(LEASE)?, ours.program.start(LEASE)?);
    let mut waiter = peer.program.start(LEASE)?;
    let name = format!("{NAME}-{}", fastrand::u32(..));
    holder.expect(&format!("acquire mutex {name}"), "held")?;
    waiter.tell(&format!("acquire mutex {name}"))?;
    store.until_waited_for(&name, 1)?;
    waiter.stop(true);
    holder.expect(&format!("release mutex {name}"), "released")?;
    // Only once the waiter's place is gone.
    next.tell(&format!("acquire mutex {name}"))?;
    next.answer(PATIENCE)?;
    waiter.stop(false);
    let seen = waiter.answer(WORD);
    let text = match &seen {
        Ok(answer) => format!("**told that it holds the lock** (`{answer}`)"),
        Err(why) if why.contains("did not answer") => "waits on".to_owned(),
        Err(_) => "refused, with an error".to_owned(),
    };
    println!("| {} | {} | {text} |", peer.engine, peer.client);
    match peer.is_ours() && seen.is_ok() {
        true => Err("ours was told that it holds the lock of another".to_owned()),
        false => Ok(peer.verdict(text)),
    }
}
