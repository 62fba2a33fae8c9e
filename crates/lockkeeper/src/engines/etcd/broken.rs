//! Breaks locks, and keeps a list of the last breaks in one key.

use super::client::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use super::error::NAME;
use super::inspect::{TRIES, read_queue, snapshot};
use super::layout::refuse_data;
use super::{Shared, nested};
use crate::engine::broken::{listed, with_line, without_line};
use crate::engine::{Break, Breaker, Entry};
use crate::error::{Error, Result};
use crate::key::Key;

/// Deletes the entries of all holders, if they are still the same ones.
pub(super) async fn break_lock(shared: &Shared, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
    let queue = read_queue(shared, key).await?;
    refuse_data(key, &queue)?;
    let holders = snapshot(shared, key.clone(), &queue).await?.holders;
    if holders.is_empty() {
        return Ok(holders);
    }
    // First of all: the holders watch their entries.
    let line = by.breaks(key, &holders).line();
    if let Err(error) = change(shared, |text| with_line(text, &line)).await {
        tracing::warn!(%error, %key, "a broken lock could not be recorded");
    }
    let mut broken = Vec::new();
    for (holder, entry) in holders.into_iter().zip(queue) {
        let same = Compare::created(entry.name.clone(), entry.created);
        let slots = holder.slots.iter().map(|slot| shared.names.slot(key, *slot));
        let doomed = std::iter::once(entry.name).chain(slots);
        let delete = doomed.map(RequestOp::delete).collect();
        let txn = TxnRequest::when([same], nested(delete));
        if shared.txn("break a lock", txn, &mut false).await?.succeeded {
            broken.push(holder);
        }
    }
    if broken.is_empty() {
        // All of them were faster, and released it.
        change(shared, |text| without_line(text, &line)).await?;
    }
    Ok(broken)
}

/// The last breaks.
pub(super) async fn breaks(shared: &Shared) -> Result<Vec<Break>> {
    let (text, _) = read(shared).await?;
    Ok(listed(text.lines().filter_map(Break::parse)))
}

/// The list, and the revision of its last change; zero if it does not exist.
async fn read(shared: &Shared) -> Result<(String, i64)> {
    let found = shared.get("list broken locks", RangeRequest::key(shared.names.broken())).await?;
    Ok(found.kvs.first().map_or_else(Default::default, |found| {
        (String::from_utf8_lossy(&found.value).into_owned(), found.mod_revision)
    }))
}

async fn change(shared: &Shared, change: impl Fn(&str) -> String) -> Result<()> {
    let name = shared.names.broken();
    for _ in 0..TRIES {
        let (text, revision) = read(shared).await?;
        let put = RequestOp::put(PutRequest::new(name.clone(), change(&text)));
        let same = Compare::changed(name.clone(), revision);
        let txn = TxnRequest::when([same], vec![put]);
        if shared.txn("list a broken lock", txn, &mut false).await?.succeeded {
            return Ok(());
        }
    }
    Err(Error::unreachable(NAME, "list a broken lock", "other clients were always faster"))
}
