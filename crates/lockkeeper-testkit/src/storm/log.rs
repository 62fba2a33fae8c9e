//! The log of a process of the storm, one line per event, and how it is parsed.
//!
//! A line is written before anything else happens, in one call: a killed process has logged
//! everything but its last half line. All times are those of the machine's monotonic clock, which
//! its processes share.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use lockkeeper::engine::Mode;
use lockkeeper::{Guard, Release};
use nix::time::{ClockId, clock_gettime};

use crate::history::Acquisition;

/// Now, by a clock that all processes of this machine share.
pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock").into()
}

/// The log of one process.
#[derive(Debug)]
pub(crate) struct Log(Mutex<File>);

impl Log {
    pub(crate) fn create(path: &Path) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path);
        Self(Mutex::new(file.expect("the storm's directory can be written to")))
    }

    pub(crate) fn granted(
        &self,
        n: usize,
        guard: &Guard,
        owner: &str,
        called: Duration,
        ttl: Duration,
    ) {
        let (kind, take, limit) = match guard.mode() {
            Mode::Mutex => ("mutex", 0, 0),
            Mode::Read => ("read", 0, 0),
            Mode::Write => ("write", 0, 0),
            Mode::Permits { take, limit } => ("permits", take, limit),
            other => panic!("no line of the log is for the mode {other}"),
        };
        let slots: Vec<_> = guard.slots().iter().map(u32::to_string).collect();
        let (key, fence, called, returned) =
            (guard.key(), guard.fence(), called.as_nanos(), now().as_nanos());
        let (ttl, slots) = (ttl.as_nanos(), slots.join(","));
        self.write(&format!(
            "granted {n} {key} {kind} {take} {limit} {owner} {called} {returned} {fence} {ttl} {slots}"
        ));
    }

    /// The lock was valid at this moment, which was read before the check.
    pub(crate) fn vouched(&self, n: usize, at: Duration) {
        self.write(&format!("vouched {n} {}", at.as_nanos()));
    }

    /// The resource refused an access under this grant.
    pub(crate) fn refused(&self, n: usize) {
        self.write(&format!("refused {n} {}", now().as_nanos()));
    }

    /// The holder is about to release or drop its guard.
    pub(crate) fn releasing(&self, n: usize) {
        self.write(&format!("releasing {n} {}", now().as_nanos()));
    }

    pub(crate) fn released(&self, n: usize, outcome: Release) {
        self.write(&format!("released {n} {outcome:?}"));
    }

    /// The holder knows now that the lock is lost.
    pub(crate) fn lost(&self, n: usize, why: &str) {
        self.write(&format!("lost {n} {} {why}", now().as_nanos()));
    }

    /// The signal of a loss by the clock, which comes before the lock can pass to another client.
    pub(crate) fn expired(&self, n: usize) {
        self.write(&format!("expired {n} {}", now().as_nanos()));
    }

    /// A task no longer waits for a lock, without having got it.
    pub(crate) fn gave_up(&self, key: &str) {
        self.write(&format!("gave-up {key} {}", now().as_nanos()));
    }

    /// Something that faults explain.
    pub(crate) fn failed(&self, why: &str) {
        self.write(&format!("failed {why}"));
    }

    /// Something that no fault explains.
    pub(crate) fn surprise(&self, why: &str) {
        self.write(&format!("surprise {why}"));
    }

    fn write(&self, line: &str) {
        let line = format!("{}\n", line.replace('\n', " "));
        let mut file = self.0.lock().expect("nothing panics here");
        file.write_all(line.as_bytes()).expect("the storm's directory can be written to");
    }
}

/// The contents of one log.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) acquisitions: Vec<Acquisition>,
    /// When the resource refused an access, and by which acquisition.
    pub(crate) refused: Vec<(Duration, usize)>,
    /// The acquisitions that were lost by the clock, as their holders were signalled.
    pub(crate) expired: Vec<usize>,
    /// When tasks stopped waiting for fair locks, and for which.
    pub(crate) gave_up: Vec<(String, Duration)>,
    pub(crate) released: Vec<String>,
    pub(crate) lost: Vec<String>,
    pub(crate) failed: Vec<String>,
    pub(crate) surprises: Vec<String>,
}

/// Counts grants in a log that grows.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    read: u64,
    grants: usize,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read: 0, grants: 0 }
    }

    /// How many grants the process has had so far.
    pub(crate) fn grants(&mut self) -> usize {
        // The process may not have started it yet.
        if let Ok(mut file) = File::open(&self.path) {
            let mut new = Vec::new();
            let read =
                file.seek(SeekFrom::Start(self.read)).and_then(|_| file.read_to_end(&mut new));
            let whole = new.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            if read.is_ok() {
                self.read += whole as u64;
                let lines = new[..whole].split(|byte| *byte == b'\n');
                self.grants += lines.filter(|line| line.starts_with(b"granted ")).count();
            }
        }
        self.grants
    }

    /// The end of the log.
    pub(crate) fn last_words(&self) -> String {
        last_words(&self.path)
    }
}

/// The end of a process's log.
fn last_words(path: &Path) -> String {
    let text = text(path);
    let lines: Vec<_> = text.lines().rev().take(5).collect();
    lines.join(" | ")
}

pub(crate) fn read(path: &Path) -> Said {
    let text = text(path);
    // A killed process may have left half a line at the end.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut said = Said::default();
    let mut at = HashMap::new();
    for line in whole.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (n, what) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "granted" => {
                at.insert(n.to_owned(), said.acquisitions.len());
                said.acquisitions.push(acquisition(what));
            }
            "vouched" => said.acquisitions[at[n]].deadline = Some(nanos(what)),
            "refused" => said.refused.push((nanos(what), at[n])),
            "releasing" => said.acquisitions[at[n]].release = Some(nanos(what)),
            "expired" => {
                said.acquisitions[at[n]].lost = Some(nanos(what));
                said.expired.push(at[n]);
                said.lost.push(lockkeeper::Loss::Expired.to_string());
            }
            "released" => said.released.push(what.to_owned()),
            "lost" => {
                let (when, why) = what.split_once(' ').unwrap_or((what, ""));
                said.acquisitions[at[n]].lost = Some(nanos(when));
                said.lost.push(why.to_owned());
            }
            "gave-up" => said.gave_up.push((n.to_owned(), nanos(what))),
            "failed" => said.failed.push(rest.to_owned()),
            "surprise" => said.surprises.push(rest.to_owned()),
            _ => said.surprises.push(format!("a line of the log makes no sense: {line:?}")),
        }
    }
    said
}

fn acquisition(line: &str) -> Acquisition {
    let words: Vec<_> = line.split(' ').collect();
    let [key, kind, take, limit, owner, called, returned, fence, ttl, slots] = words[..] else {
        panic!("not a grant: {line:?}")
    };
    let number = |text: &str| text.parse::<u32>().expect("the log has numbers here");
    let returned = nanos(returned);
    Acquisition {
        key: key.to_owned(),
        mode: match kind {
            "mutex" => Mode::Mutex,
            "read" => Mode::Read,
            "write" => Mode::Write,
            _ => Mode::Permits { take: number(take), limit: number(limit) },
        },
        owner: owner.to_owned(),
        called: nanos(called),
        admitted: None,
        returned,
        fence: fence.parse().expect("the log has a fence here"),
        slots: slots.split(',').filter(|slot| !slot.is_empty()).map(number).collect(),
        ttl: nanos(ttl),
        last_use: None,
        release: None,
        released: None,
        lost: None,
        // Nothing is claimed beyond what the holder recorded.
        deadline: Some(returned),
    }
}

fn nanos(text: &str) -> Duration {
    Duration::from_nanos(text.parse().expect("the log has a time here"))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
