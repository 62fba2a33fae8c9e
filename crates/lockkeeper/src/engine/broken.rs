//! Locks that were broken: by whom, when and why.
//!
//! A store keeps the last few breaks as lines of text in one place beside its locks, so that people
//! can list them, and the former holder can be told who took its lock away. Nothing about exclusion
//! depends on these lines: a lock that cannot be recorded is broken nevertheless.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Entry, Fence};
use crate::key::Key;
use crate::who::{one_line, take_apart};

/// How many breaks a store keeps.
pub(crate) const KEPT: usize = 50;

/// How long a break is listed.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// How much the clock of a client may be behind ours.
const SKEW: Duration = Duration::from_secs(60);

/// How many holders of a broken lock are recorded.
const MOST_HOLDERS: usize = 8;

/// How many characters of a reason are recorded.
pub(super) const LONGEST_REASON: usize = 200;

/// Who breaks a lock, and why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Breaker {
    /// Recorded as it is, like [`Request::who`](super::Request::who).
    pub who: Arc<str>,
    /// The reason, in one line.
    pub why: Option<String>,
}

impl Breaker {
    /// A reason is reduced to one line of limited length, with recognisable secrets masked.
    pub fn new(who: Arc<str>, why: Option<&str>) -> Self {
        let why = why.map(|why| one_line(why, LONGEST_REASON)).filter(|why| !why.is_empty());
        Self { who, why }
    }

    /// The break of a lock that these hold, now.
    pub fn breaks(&self, key: &Key, holders: &[Entry]) -> Break {
        let (by, command) = take_apart(&self.who);
        let hold = |holder: &Entry| BrokenHold {
            who: holder.who.clone(),
            command: holder.command.clone(),
            fence: holder.fence,
        };
        Break {
            key: key.clone(),
            at: SystemTime::now(),
            by: by.to_owned(),
            command: command.map(str::to_owned),
            why: self.why.clone(),
            holders: holders.iter().take(MOST_HOLDERS).map(hold).collect(),
        }
    }
}

/// One break of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Break {
    /// The key of the lock.
    pub key: Key,
    /// When, by the wall clock of the client that broke it.
    pub at: SystemTime,
    /// Who broke it: `user@host pid`.
    pub by: String,
    /// The first characters of the command line of that process.
    pub command: Option<String>,
    /// The reason.
    pub why: Option<String>,
    /// Its holders, up to eight of them.
    pub holders: Vec<BrokenHold>,
}

/// A hold that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokenHold {
    /// `user@host pid`, if the store knew it.
    pub who: Option<String>,
    /// The first characters of the command line of that process.
    pub command: Option<String>,
    /// Its fence, if the store knew it.
    pub fence: Option<Fence>,
}

impl Break {
    /// Whether it ended a hold of ours that began at this time, by our clock.
    ///
    /// Readers share a fence, some stores know only the start of `who`, and some do not know the
    /// fence. Clocks differ.
    pub(crate) fn ended(&self, key: &Key, fence: Fence, who: &str, since: SystemTime) -> bool {
        let is_it = |hold: &BrokenHold| {
            hold.fence.is_none_or(|of| of == fence)
                && hold.who.as_ref().is_none_or(|of| who.starts_with(of))
        };
        self.key == *key && self.at + SKEW > since && self.holders.iter().any(is_it)
    }

    /// The line that a store keeps.
    #[allow(dead_code, reason = "memory: alone keeps no text")]
    pub(crate) fn line(&self) -> String {
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let signature = |who: &str, command: &Option<String>| match command {
            Some(command) => format!("{who} {command}"),
            None => who.to_owned(),
        };
        let why = self.why.clone().unwrap_or_default();
        let mut parts =
            vec![at.to_string(), self.key.to_string(), signature(&self.by, &self.command), why];
        parts.extend(self.holders.iter().map(|hold| {
            let fence = hold.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
            let who = hold.who.as_deref().map(|who| signature(who, &hold.command));
            format!("{fence} {}", who.unwrap_or_default())
        }));
        let clean = |part: &String| part.replace(char::is_control, " ");
        parts.iter().map(clean).collect::<Vec<_>>().join("\t")
    }

    /// Reads a line; `None` if it is malformed.
    #[allow(dead_code, reason = "memory: alone keeps no text")]
    pub(crate) fn parse(line: &str) -> Option<Self> {
        // Anyone who may write to the store can write such a line.
        let line: String = line.replace(|c: char| c.is_control() && c != '\t', " ");
        let mut parts = line.split('\t');
        let at = UNIX_EPOCH.checked_add(Duration::from_micros(parts.next()?.parse().ok()?))?;
        let key = Key::new(parts.next()?).ok()?;
        let (by, command) = take_apart(parts.next()?);
        let why = Some(parts.next()?.to_owned()).filter(|why| !why.is_empty());
        let holders = parts.take(MOST_HOLDERS).map(|hold| {
            let (fence, who) = hold.split_once(' ').unwrap_or((hold, ""));
            let (who, command) = take_apart(who);
            BrokenHold {
                who: Some(who.to_owned()).filter(|who| !who.is_empty()),
                command: command.map(str::to_owned),
                fence: fence.parse().ok(),
            }
        });
        let (by, command) = (by.to_owned(), command.map(str::to_owned));
        Some(Self { key, at, by, command, why, holders: holders.collect() })
    }
}

/// The breaks in these lines that are to be listed, the last one first.
pub(crate) fn listed(breaks: impl IntoIterator<Item = Break>) -> Vec<Break> {
    let now = SystemTime::now();
    let is_recent =
        |one: &Break| now.duration_since(one.at).is_ok_and(|age| age < KEPT_FOR) || one.at > now;
    let mut breaks: Vec<_> = breaks.into_iter().filter(is_recent).collect();
    breaks.sort_by_key(|one| std::cmp::Reverse(one.at));
    // Several servers may have the same.
    breaks.dedup();
    breaks.truncate(KEPT);
    breaks
}

/// A text that keeps breaks, one per line, oldest first: with one more.
#[allow(dead_code, reason = "it depends on the features which engines are there to use it")]
pub(crate) fn with_line(text: &str, line: &str) -> String {
    let lines: Vec<_> = text.lines().chain([line]).collect();
    let first = lines.len().saturating_sub(KEPT);
    lines[first..].join("\n") + "\n"
}

/// The same text without a line.
#[allow(dead_code, reason = "it depends on the features which engines are there to use it")]
pub(crate) fn without_line(text: &str, line: &str) -> String {
    text.lines().filter(|other| *other != line).map(|line| line.to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Mode;

    fn broken(why: &str) -> Break {
        let holder = Entry {
            fence: Some(Fence::new(7)),
            ..Entry::new("secret", Mode::Mutex).by("ann@web 12 sh -c 'make deploy'")
        };
        let unknown = Entry::new("secret", Mode::Mutex);
        let breaker = Breaker::new("ops@hq 3 lockkeeper break k".into(), Some(why));
        breaker.breaks(&Key::new("orders/42").unwrap(), &[holder, unknown])
    }

    #[test]
    fn a_line_is_read_back() {
        let mut one = broken("deploy stuck");
        let text = one.line();
        assert!(!text.contains("secret"), "{text}");
        let back = Break::parse(&text).unwrap();
        one.at = back.at;
        assert_eq!(back, one);
    }

    #[test]
    fn only_the_hold_that_was_broken_is_told() {
        let mut one = broken("deploy stuck");
        one.holders.truncate(1);
        let (key, fence, now) = (one.key.clone(), Fence::new(7), one.at);
        assert!(one.ended(&key, fence, "ann@web 12", now));
        assert!(!one.ended(&key, fence, "bob@web 12", now));
        assert!(!one.ended(&key, Fence::new(8), "ann@web 12", now));
        assert!(!one.ended(&Key::new("orders").unwrap(), fence, "ann@web 12", now));
        assert!(!one.ended(&key, fence, "ann@web 12", now + SKEW));
        one.holders[0].fence = None;
        assert!(one.ended(&key, fence, "ann@web 12", now));
    }

    #[test]
    fn garbage_is_left_out() {
        for garbage in ["", "x", "1\t", "1\tkey\twho", "\t\t\t\t"] {
            assert_eq!(Break::parse(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_reason_is_one_short_line_without_secrets() {
        let why = broken("a\tb\n\u{1b}[2J --password hunter2").why.unwrap();
        assert_eq!(why, "a b [2J --password ***");
        assert_eq!(broken(&"é".repeat(1000)).why.unwrap().chars().count(), LONGEST_REASON);
        assert_eq!(broken(" \n").why, None);
    }

    #[test]
    fn a_text_keeps_the_last_lines() {
        let mut text = String::new();
        for n in 0..2 * KEPT {
            text = with_line(&text, &n.to_string());
        }
        assert_eq!(text.lines().count(), KEPT);
        assert_eq!(text.lines().last(), Some((2 * KEPT - 1).to_string().as_str()));
        assert!(!without_line(&text, "77").contains("77"));
    }

    #[test]
    fn old_breaks_are_not_listed_and_the_last_comes_first() {
        let at = |ago: Duration| Break { at: SystemTime::now() - ago, ..broken("x") };
        let hour = Duration::from_secs(3600);
        let twice = at(hour);
        let all = listed([twice.clone(), at(KEPT_FOR + hour), at(hour * 2), twice]);
        assert_eq!(all.len(), 2);
        assert!(all[0].at > all[1].at);
    }
}
