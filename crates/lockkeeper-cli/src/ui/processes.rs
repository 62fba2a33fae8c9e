//! Which processes of this machine are descendants of which.
//!
//! Only processes of this machine can be inspected, and only those in our own process namespace: a
//! container has another host name, so its processes are not taken for ours.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;

use super::blocking::Holders;
use super::model::Party;

/// One read of the process table. Nothing is read twice.
#[derive(Debug)]
pub(crate) struct Processes {
    host: String,
    parents: RefCell<HashMap<u32, Option<u32>>>,
}

/// How many processes are read at most.
const MOST_ASKED: usize = 2_000;

impl Processes {
    pub(crate) fn now() -> Self {
        let host = nix::unistd::gethostname().unwrap_or_default();
        Self { host: host.to_string_lossy().into_owned(), parents: RefCell::default() }
    }

    /// The ancestors of a process that hold something.
    pub(crate) fn above(&self, party: &Party, holders: &Holders) -> Vec<String> {
        let (Some(host), Some(pid)) = (&party.host, party.pid) else { return Vec::new() };
        if *host != self.host {
            return Vec::new();
        }
        let mut above = Vec::new();
        let mut next = self.parent(pid);
        while let Some(pid) = next.filter(|pid| *pid > 1) {
            above.extend(holders.get(&(host.clone(), pid)).cloned());
            next = self.parent(pid);
        }
        above
    }

    fn parent(&self, pid: u32) -> Option<u32> {
        let mut parents = self.parents.borrow_mut();
        if parents.len() >= MOST_ASKED && !parents.contains_key(&pid) {
            return None;
        }
        *parents.entry(pid).or_insert_with(|| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name before it is in parentheses and may contain anything.
            stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{at, entry};
    use super::*;
    use lockkeeper::engine::Mode;

    #[test]
    fn a_process_runs_below_its_parent_on_this_machine_only() {
        let processes = Processes::now();
        let parent = u32::try_from(nix::unistd::getppid().as_raw()).unwrap();
        let us = |host: &str| {
            let who = format!("me@{host} {}", std::process::id());
            Party::new(entry(&who, Mode::Mutex, None), at(0))
        };
        let here = processes.host.clone();
        let holder = |host: &str| ((host.to_owned(), parent), format!("me@{host} {parent}"));
        let holders = Holders::from([holder(&here), holder("elsewhere")]);
        assert_eq!(processes.above(&us(&here), &holders), [holder(&here).1]);
        assert!(processes.above(&us("elsewhere"), &holders).is_empty());
    }
}
