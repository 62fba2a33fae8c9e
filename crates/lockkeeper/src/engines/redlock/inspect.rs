//! The holders of locks, as the servers report them together.
//!
//! A client holds a lock if a majority reports that, or could: servers that do not answer may know
//! more.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::broken::listed;
use crate::engine::{Break, Breaker, Entry, Query, Snapshot, YieldRequest};
use crate::error::{Error, Result};
use crate::key::Key;

use super::Quorum;
use super::fan_out::{FanOut, NodeCall, question};
use crate::engines::redis::{broken, inspect, yielding};

pub(super) async fn inspect(quorum: &Arc<Quorum>, query: &Query) -> Result<Vec<Snapshot>> {
    let query = Arc::new(query.clone());
    let questions = quorum.nodes.iter().enumerate().map(|(at, node)| {
        let (node, query) = (node.clone(), query.clone());
        let asked = async move { inspect::inspect(node.store(), &query).await };
        (at, question(asked))
    });
    let answers = all(quorum, "inspect locks", questions.collect()).await?;
    let heard = answers.len();
    let mut by_key: BTreeMap<Key, Vec<Snapshot>> = BTreeMap::new();
    for snapshot in answers.into_iter().flatten() {
        by_key.entry(snapshot.key.clone()).or_default().push(snapshot);
    }
    let needed = quorum.majority().saturating_sub(quorum.nodes.len() - heard).max(1);
    let merged = by_key.into_iter().map(|(key, seen)| merge(key, seen, needed));
    let is_of_interest = |snapshot: &Snapshot| {
        !snapshot.holders.is_empty() || snapshot.waiters.as_ref().is_some_and(|w| !w.is_empty())
    };
    Ok(merged.filter(is_of_interest).collect())
}

/// Breaks the lock at every server, and records that at every server.
pub(super) async fn break_lock(
    quorum: &Arc<Quorum>,
    key: &Key,
    by: &Breaker,
) -> Result<Vec<Entry>> {
    let held = inspect(quorum, &Query::Key(key.clone())).await?;
    let holders: Vec<_> = held.into_iter().flat_map(|snapshot| snapshot.holders).collect();
    let record = (!holders.is_empty()).then(|| by.breaks(key, &holders));
    let questions = quorum.nodes.iter().enumerate().map(|(at, node)| {
        let (node, key, record) = (node.clone(), key.clone(), record.clone());
        let asked =
            async move { broken::break_recorded(node.store(), &key, record.as_ref()).await };
        (at, question(asked))
    });
    all(quorum, &format!("break {key:?}"), questions.collect()).await?;
    Ok(holders)
}

/// The last breaks that any server recorded.
pub(super) async fn breaks(quorum: &Arc<Quorum>) -> Result<Vec<Break>> {
    let questions = quorum.nodes.iter().enumerate().map(|(at, node)| {
        let node = node.clone();
        (at, question(async move { broken::breaks(node.store()).await }))
    });
    // A majority had the lock, and has the record. A former holder does not wait for the others.
    let enough = quorum.majority();
    let answers = first(enough, quorum, "list broken locks", questions.collect()).await?;
    Ok(listed(answers.into_iter().flatten()))
}

/// Asks the holders at every server: they listen to all of them.
pub(super) async fn request_yield(
    quorum: &Arc<Quorum>,
    key: &Key,
    asked: &YieldRequest,
) -> Result<Vec<Entry>> {
    let held = inspect(quorum, &Query::Key(key.clone())).await?;
    let questions = quorum.nodes.iter().enumerate().map(|(at, node)| {
        let (node, key, asked) = (node.clone(), key.clone(), asked.clone());
        let asked = async move { yielding::request_yield(node.store(), &key, &asked).await };
        (at, question(asked))
    });
    all(quorum, &format!("ask for {key:?}"), questions.collect()).await?;
    Ok(held.into_iter().flat_map(|snapshot| snapshot.holders).collect())
}

/// The answers of all servers that answer; an error if that is no majority.
async fn all<T: Send + 'static>(
    quorum: &Quorum,
    doing: &str,
    questions: Vec<(usize, NodeCall<Result<T>>)>,
) -> Result<Vec<T>> {
    first(quorum.nodes.len(), quorum, doing, questions).await
}

/// The first answers, up to a number; an error if they are no majority.
async fn first<T: Send + 'static>(
    enough: usize,
    quorum: &Quorum,
    doing: &str,
    questions: Vec<(usize, NodeCall<Result<T>>)>,
) -> Result<Vec<T>> {
    let mut calls = FanOut::new(questions);
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    while answers.len() < enough
        && let Some((server, answer)) = calls.next().await
    {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(error) => silent.push((server, error)),
        }
    }
    calls.leave();
    if answers.len() >= quorum.majority() {
        return Ok(answers);
    }
    // Something that is no lock was certainly seen.
    let conflict = silent.iter().position(|(_, error)| matches!(error, Error::Conflict { .. }));
    Err(match conflict {
        Some(at) => silent.swap_remove(at).1,
        None => quorum.too_few(doing, silent),
    })
}

/// One view from what several servers reported about a lock.
fn merge(key: Key, seen: Vec<Snapshot>, needed: usize) -> Snapshot {
    let mut waiters: Option<Vec<Entry>> = None;
    let mut holders: Vec<Vec<Entry>> = Vec::new();
    let highest = seen.iter().filter_map(|snapshot| snapshot.fence).max();
    for snapshot in seen {
        for entry in snapshot.holders {
            match holders.iter_mut().find(|views| is_same(&views[0], &entry)) {
                Some(views) => views.push(entry),
                None => holders.push(vec![entry]),
            }
        }
        if let Some(queue) = snapshot.waiters {
            let known = waiters.get_or_insert_default();
            for entry in queue {
                if !known.iter().any(|other| is_same(other, &entry)) {
                    known.push(entry);
                }
            }
        }
    }
    holders.retain(|views| views.len() >= needed);
    settle(&mut holders);
    let holders = holders.into_iter().map(|mut views| {
        // A majority agreed on the fence and the end of the lease, so the median is right.
        let middle = views.len() / 2;
        views.sort_by_key(|entry| entry.left);
        let left = views[middle].left;
        views.sort_by_key(|entry| entry.fence);
        Entry { left, ..views.swap_remove(middle) }
    });
    let holders: Vec<_> = holders.collect();
    // The counter of one server may be ahead of what a majority granted.
    let fence = holders.iter().filter_map(|holder| holder.fence).max().or(highest);
    // Waiters for a quorum are in no queue; an existing queue is that of others.
    let waiters = waiters.filter(|queue| !queue.is_empty());
    let unknown = waiters.is_none().then_some("waiters for a quorum leave no trace on its servers");
    Snapshot { holders, waiters, unknown, fence, ..Snapshot::new(key) }
}

/// Leaves out holders that conflict with the one that most servers reported, or of equals the later
/// one.
///
/// A lock that changes hands is reported with both holders, by servers that were asked before and
/// after.
fn settle(holders: &mut Vec<Vec<Entry>>) {
    let fence = |views: &[Entry]| views.iter().filter_map(|entry| entry.fence).max();
    let surest = holders.iter().max_by_key(|views| (views.len(), fence(views)));
    let Some(surest) = surest.map(|views| views[0].clone()) else { return };
    holders.retain(|views| match surest.mode.is_exclusive() {
        true => is_same(&views[0], &surest),
        false => !views[0].mode.is_exclusive(),
    });
}

fn is_same(one: &Entry, other: &Entry) -> bool {
    one.identity == other.identity && one.mode == other.mode
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Fence, Mode};

    /// What a server reported: the number of each holder, which is its fence too, and its mode.
    fn seen(holders: &[(u64, Mode)]) -> Snapshot {
        let entry = |(number, mode): &(u64, Mode)| Entry {
            fence: Some(Fence::new(*number)),
            ..Entry::new(number.to_string(), *mode)
        };
        let holders = holders.iter().map(entry).collect();
        Snapshot { holders, ..Snapshot::new(Key::new("key").unwrap()) }
    }

    #[test]
    fn a_lock_that_changes_hands_has_one_holder() {
        use Mode::{Mutex, Read, Write};
        for (views, expected) in [
            (vec![seen(&[(1, Mutex)]), seen(&[(2, Mutex)])], vec!["2"]),
            (vec![seen(&[(1, Mutex)]), seen(&[(2, Mutex)]), seen(&[(1, Mutex)])], vec!["1"]),
            (vec![seen(&[(1, Read), (2, Read)]), seen(&[(3, Write)])], vec!["3"]),
            (vec![seen(&[(1, Write)]), seen(&[(2, Read), (3, Read)])], vec!["2", "3"]),
            (vec![], vec![]),
        ] {
            let merged = merge(Key::new("key").unwrap(), views, 1);
            let found: Vec<_> = merged.holders.iter().map(|entry| &entry.identity).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_fence_of_a_lock_is_that_of_its_grant() {
        let counts = |number, snapshot| Snapshot { fence: Some(Fence::new(number)), ..snapshot };
        let held = || seen(&[(5, Mode::Mutex)]);
        let views = vec![counts(5, held()), counts(9, held()), counts(5, held())];
        assert_eq!(merge(Key::new("key").unwrap(), views, 2).fence, Some(Fence::new(5)));
        let free = vec![counts(5, seen(&[])), counts(9, seen(&[]))];
        assert_eq!(merge(Key::new("key").unwrap(), free, 2).fence, Some(Fence::new(9)));
    }
}
