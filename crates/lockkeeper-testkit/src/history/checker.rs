//! Checks a history in n log n: sorted once per rule, and swept once.
//!
//! 1. *Resource*: accepted fences never decrease, one fence has one owner, every write has seen the
//!    one before.
//! 2. *Fences*: no two grants share one, and a grant requested after another was made has a higher
//!    one.
//! 3. *Exclusion*: the times in which holders considered their locks valid do not overlap.
//! 4. *Signal before admission*: a holder that lost a lock knew before the store granted the next.
//! 5. *Leaks*: nothing is left behind.

use std::collections::{BTreeMap, HashMap, HashSet};

use lockkeeper::engine::Mode;

use super::{Access, Acquisition, Eviction, History, Object, Violation};

/// All violations in a history; empty if it is correct.
pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    check_resource(&history.accesses, &mut found);
    let held = cut_at_evictions(history, &mut found);
    let mut keys: BTreeMap<&str, Vec<&Acquisition>> = BTreeMap::new();
    for acquisition in &held {
        keys.entry(&acquisition.key).or_default().push(acquisition);
    }
    for acquisitions in keys.into_values() {
        check_uniqueness(&acquisitions, &mut found);
        check_order(&acquisitions, &mut found);
        check_exclusion(&acquisitions, &mut found);
    }
    found.extend(history.left.iter().cloned().map(Violation::Leak));
    found
}

fn check_resource(accesses: &[Access], found: &mut Vec<Violation>) {
    #[derive(Default)]
    struct Seen<'a> {
        highest: u64,
        owner: Option<&'a str>,
        value: u64,
    }
    let mut objects: HashMap<&Object, Seen<'_>> = HashMap::new();
    for access in accesses.iter().filter(|access| access.accepted) {
        let seen = objects.entry(&access.object).or_default();
        if access.fence < seen.highest {
            let highest = seen.highest;
            found.push(Violation::StaleAccess { access: access.clone(), highest });
        }
        if access.fence > seen.highest {
            (seen.highest, seen.owner) = (access.fence, None);
        }
        if !access.shared && access.fence == seen.highest {
            let first = *seen.owner.get_or_insert(&access.owner);
            if first != access.owner {
                let first = first.to_owned();
                found.push(Violation::SharedFence { access: access.clone(), first });
            }
        }
        if let Some((saw, wrote)) = access.write {
            if saw != seen.value {
                let lost = seen.value;
                found.push(Violation::LostUpdate { access: access.clone(), lost });
            }
            seen.value = wrote;
        }
    }
}

/// Ends the holds of evicted holders, which could not be signalled at once. But they must have
/// stopped when the lease they had at that moment was over.
fn cut_at_evictions(history: &History, found: &mut Vec<Violation>) -> Vec<Acquisition> {
    let mut evictions: BTreeMap<(&str, u64), &Eviction> = BTreeMap::new();
    for eviction in &history.evictions {
        evictions.entry((&eviction.key, eviction.fence)).or_insert(eviction);
    }
    let mut held = history.acquisitions.clone();
    for acquisition in &mut held {
        let (key, fence) = (acquisition.key.as_str(), acquisition.fence);
        let before = evictions.range((key, 0)..=(key, fence)).next_back();
        // The evicted holder may have got the lock from another task of its client.
        let Some((_, eviction)) = before.filter(|(_, eviction)| fence <= eviction.last) else {
            continue;
        };
        let claimed = acquisition.claimed();
        // Readers share a fence, even with one that arrived after the eviction.
        let surely = acquisition.mode != Mode::Read;
        if surely && claimed.end > eviction.at + acquisition.ttl {
            let holder = Box::new(acquisition.clone());
            found.push(Violation::NotTold { holder, evicted: eviction.at });
        }
        if claimed.end > eviction.at {
            acquisition.deadline = Some(eviction.at);
        }
    }
    held
}

/// Grants with the same fence belong to one owner, or are readers and their last writer.
fn check_uniqueness(acquisitions: &[&Acquisition], found: &mut Vec<Violation>) {
    let mut fences: HashMap<u64, &Acquisition> = HashMap::new();
    for acquisition in acquisitions.iter().filter(|a| a.mode != Mode::Read) {
        let first = *fences.entry(acquisition.fence).or_insert(acquisition);
        if first.owner != acquisition.owner {
            found.push(Violation::RepeatedFence(pair(first, acquisition)));
        }
    }
}

/// A grant that was requested after another was made has the higher fence, unless it re-enters its
/// own lock.
fn check_order(acquisitions: &[&Acquisition], found: &mut Vec<Violation>) {
    let mut by_call = acquisitions.to_vec();
    let mut by_return = acquisitions.to_vec();
    by_call.sort_by_key(|acquisition| acquisition.called);
    by_return.sort_by_key(|acquisition| acquisition.returned);
    let mut before = by_return.into_iter().peekable();
    let mut highest: Option<&Acquisition> = None;
    let mut given = HashSet::new();
    for later in by_call {
        while let Some(earlier) = before.next_if(|earlier| earlier.returned < later.called) {
            // Of equal fences, one that must not be repeated outranks that of a reader.
            let counts = |a: &Acquisition| (a.fence, a.mode != Mode::Read);
            if highest.is_none_or(|highest| counts(earlier) > counts(highest)) {
                highest = Some(earlier);
            }
            given.insert((earlier.fence, &earlier.owner));
        }
        let Some(highest) = highest else { continue };
        let again = given.contains(&(later.fence, &later.owner));
        let beside = later.mode == Mode::Read && later.fence == highest.fence;
        if later.fence <= highest.fence && !again && !beside {
            found.push(Violation::FenceOrder(pair(highest, later)));
        }
    }
}

/// Sweeps over the times in which locks were held, and checks each new holder against the current
/// ones.
fn check_exclusion(acquisitions: &[&Acquisition], found: &mut Vec<Violation>) {
    let entered = |a: &Acquisition| a.admitted.unwrap_or(a.returned);
    let mut entries: Vec<_> =
        acquisitions.iter().copied().filter(|a| entered(a) < a.claimed().end).collect();
    let mut exits = entries.clone();
    entries.sort_by_key(|a| entered(a));
    exits.sort_by_key(|a| a.claimed().end);
    let mut exits = exits.into_iter().peekable();
    let mut inside = Inside::default();
    for entrant in entries {
        while let Some(gone) = exits.next_if(|a| a.claimed().end <= entered(entrant)) {
            inside.leave(gone);
        }
        inside.enter(entrant, found);
    }
}

/// The holders at one moment of the sweep.
#[derive(Default)]
struct Inside<'a> {
    alone: Vec<&'a Acquisition>,
    readers: BTreeMap<&'a str, Vec<&'a Acquisition>>,
    slots: HashMap<u32, &'a Acquisition>,
    permits: u32,
}

impl<'a> Inside<'a> {
    fn enter(&mut self, entrant: &'a Acquisition, found: &mut Vec<Violation>) {
        let others = |held: &&&Acquisition| held.owner != entrant.owner;
        let mut conflict = self.alone.iter().find(others).copied();
        match entrant.mode {
            Mode::Mutex | Mode::Write => {
                let readers = self.readers.iter().find(|(owner, _)| **owner != entrant.owner);
                conflict = conflict.or(readers.and_then(|(_, held)| held.first().copied()));
                self.alone.push(entrant);
            }
            Mode::Read => self.readers.entry(&entrant.owner).or_default().push(entrant),
            Mode::Permits { take, limit } => {
                self.permits += take;
                if self.permits > limit {
                    let last = Box::new(entrant.clone());
                    found.push(Violation::TooManyPermits { last, held: self.permits });
                }
                for slot in &entrant.slots {
                    if let Some(other) = self.slots.insert(*slot, entrant) {
                        found.push(Violation::SharedSlot(pair(other, entrant)));
                    }
                }
            }
            other => panic!("no rule knows the mode {other}"),
        }
        if let Some(other) = conflict {
            found.push(match other.claimed().end > entrant.returned {
                true => Violation::Overlap(pair(other, entrant)),
                false => Violation::LateSignal(pair(other, entrant)),
            });
        }
    }

    fn leave(&mut self, gone: &'a Acquisition) {
        let is_gone = |held: &&Acquisition| std::ptr::eq(*held, gone);
        match gone.mode {
            Mode::Mutex | Mode::Write => self.alone.retain(|held| !is_gone(held)),
            Mode::Read => {
                let mine = self.readers.entry(&gone.owner).or_default();
                mine.retain(|held| !is_gone(held));
                if mine.is_empty() {
                    self.readers.remove(gone.owner.as_str());
                }
            }
            Mode::Permits { take, .. } => {
                self.permits -= take;
                self.slots.retain(|_, held| !is_gone(held));
            }
            other => panic!("no rule knows the mode {other}"),
        }
    }
}

fn pair(a: &Acquisition, b: &Acquisition) -> Box<[Acquisition; 2]> {
    Box::new([a.clone(), b.clone()])
}

#[cfg(test)]
mod tests;
