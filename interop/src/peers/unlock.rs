//! The reply to an unlock is lost, another task of the same process acquires the lock anew, and the
//! unlock is repeated: by the library, or by the caller whom the library told of a failure.
//!
//! A repeated unlock must not delete the newer lock. A witness on a connection of its own sees that
//! the first unlock has taken effect, and in the end whether the newer lock is still there.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper_testkit::proxy::{Proxy, Way};
use tokio::runtime::Runtime;

use super::{NAME, PATIENCE, Peer, Verdict, of_etcd, of_redis, of_zookeeper};
use crate::driver::{Driver, Outcome};
use crate::pairs::Run;
use crate::scenes::LONG;
use crate::store::Store;

pub(super) fn unlock(run: &Run) -> Outcome<Vec<Verdict>> {
    println!("| engine | client | the unlock without a reply | the newer lock |");
    println!("|---|---|---|---|");
    let mut verdicts = Vec::new();
    let etcd = Store::etcd()?;
    verdicts.extend(all(run, &etcd, of_etcd)?);
    drop(etcd);
    let redis = Store::redis();
    verdicts.extend(all(run, &redis, of_redis)?);
    drop(redis);
    let zookeeper = Store::zookeeper()?;
    verdicts.extend(all(run, &zookeeper, of_zookeeper)?);
    Ok(verdicts)
}

type Peers = fn(&Run, &str) -> Vec<Peer>;

fn all(run: &Run, store: &Store, peers: Peers) -> Outcome<Vec<Verdict>> {
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    let address: SocketAddr =
        store.hosts().parse().map_err(|_| format!("{} is no address", store.hosts()))?;
    let witnesses = peers(run, &store.hosts());
    let mut verdicts = Vec::new();
    for (n, witness) in witnesses.iter().enumerate() {
        let proxy = runtime.block_on(Proxy::start(address));
        let peer = peers(run, &proxy.address().to_string()).swap_remove(n);
        verdicts.push(repeated(&runtime, &proxy, &peer, witness)?);
    }
    Ok(verdicts)
}

fn repeated(runtime: &Runtime, proxy: &Proxy, peer: &Peer, witness: &Peer) -> Outcome<Verdict> {
    let (kind, name) = (peer.kind, format!("{NAME}-{}", fastrand::u32(..)));
    let mut holder = peer.program.start(LONG)?;
    let mut witness = witness.program.start(LONG)?;
    holder.expect(&format!("acquire {kind} {name}"), "held")?;
    proxy.hold(Way::ToClient);
    holder.tell(&format!("release {kind} {name}"))?;
    witness.expect(&format!("acquire {kind} {name}"), "held")?;
    witness.expect(&format!("release {kind} {name}"), "released")?;
    // What was held back is lost with its connection.
    proxy.reset();
    runtime.block_on(proxy.heal());
    let answer = holder.answer(PATIENCE);
    insist(&mut holder, &format!("beside {kind} {name}"))?;
    let said = match &answer {
        Ok(_) => "is answered in the end",
        Err(_) => {
            // Whether this is an error too is up to the library.
            let _ = holder.ask(&format!("again {kind} {name}"));
            "fails, and the caller repeats it"
        }
    };
    let newer = witness.ask(&format!("try {kind} {name}"))?;
    let text = match newer.as_str() {
        "busy" => "is kept",
        _ => "**is deleted: two hold it**",
    };
    println!("| {} | {} | {said} | {text} |", peer.engine, peer.client);
    match peer.is_ours() && newer != "busy" {
        true => Err("a repeated release of ours deleted a newer lock".to_owned()),
        false => Ok(peer.verdict(format!("a newer lock {text}"))),
    }
}

/// A client whose connection was just lost may need another try.
fn insist(driver: &mut Driver, order: &str) -> Outcome {
    let started = Instant::now();
    loop {
        match driver.expect(order, "held") {
            Err(_) if started.elapsed() < PATIENCE => sleep(Duration::from_millis(50)),
            outcome => return outcome,
        }
    }
}
