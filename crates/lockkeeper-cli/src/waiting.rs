//! The progress of a wait for a lock: the holder, our place in the queue, the time waited.
//!
//! On a terminal that is one line on stderr, redrawn every second and removed when the wait is
//! over. Elsewhere it is one line when the wait has started, and one per minute.

use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::time::Duration;

use lockkeeper::engine::{Entry, Order, Snapshot};
use lockkeeper::{Client, whoami};
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::time::Instant;

use crate::inspect::describe;
use crate::output::{Say, human, stderr, tell};
use crate::table::{clipped, plain, shortened};

/// A shorter wait is not reported.
pub(crate) const WORTH_A_WORD: Duration = Duration::from_millis(500);

/// How often the line is redrawn, and how often the engine is queried for it.
const DRAWN: Duration = Duration::from_secs(1);
const ASKED: Duration = Duration::from_secs(2);

/// How often a wait is reported if nothing can be drawn.
const TOLD: Duration = Duration::from_secs(60);

/// How much of a lock's name is shown where all of it leaves no room for the holder.
const NAME: usize = 24;

/// How long the engine may take to report the holder.
const PATIENCE: Duration = Duration::from_secs(2);

/// A wait for a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting<'a> {
    pub(crate) key: &'a str,
    pub(crate) since: Instant,
    pub(crate) until: Option<Instant>,
    /// Whether there is a terminal to draw on.
    pub(crate) drawn: bool,
}

impl Waiting<'_> {
    /// Reports the progress of the wait as long as it lasts, in several lengths, the longest first.
    pub(crate) async fn tell(
        &self,
        client: &Client,
        mut tell: impl FnMut(&[String]),
    ) -> Infallible {
        tokio::time::sleep_until(self.since + WORTH_A_WORD).await;
        let mut asked: Option<(Instant, Seen)> = None;
        loop {
            let now = Instant::now();
            let known = asked.take().filter(|(at, _)| self.drawn && now - *at < ASKED);
            let (at, seen) = match known {
                Some(known) => known,
                None => (now, self.look(client).await),
            };
            tell(&self.lines(&seen));
            asked = Some((at, seen));
            tokio::time::sleep(if self.drawn { DRAWN } else { TOLD }).await;
        }
    }

    /// What is left out first is what `show` tells as well; the holder stays to the end.
    fn lines(&self, seen: &Seen) -> [String; 8] {
        let (key, time) = (self.key, self.time());
        let Seen { place, brief_place, holders: [all, age, command, who] } = seen;
        let name = shortened(&format!("{key:?}"), NAME);
        [
            format!("waiting for lock {key:?} for {time}{place}{all}"),
            format!("waiting for lock {key:?} for {time}{place}{age}"),
            format!("waiting for {name} {time}{brief_place}{command}"),
            format!("{name} {time}{brief_place}{command}"),
            format!("waiting for {name} {time}{brief_place}{who}"),
            format!("{name} {time}{brief_place}{who}"),
            format!("waiting for {name} {time}{who}"),
            format!("{name}{who}"),
        ]
    }

    /// The holders and waiters, or why the engine does not report them.
    async fn look(&self, client: &Client) -> Seen {
        match tokio::time::timeout(PATIENCE, client.inspect(self.key)).await {
            Ok(Ok(Some(snapshot))) => {
                let ordered = !matches!(client.guarantees().order, Order::Chance(_));
                Seen::of(&snapshot, ordered)
            }
            Ok(Ok(None)) => Seen::default(),
            Ok(Err(error)) => Seen::none(format!(": {error}")),
            Err(_) => Seen::none(format!(": no answer from {}", client.place())),
        }
    }

    fn time(&self) -> String {
        let waited = human(whole(self.since.elapsed()));
        match self.until {
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                format!("{waited} ({} left)", human(whole(left)))
            }
            None => waited,
        }
    }
}

/// What the engine reports about the lock.
#[derive(Debug, Default)]
struct Seen {
    /// Our place among the waiters, if there is an order.
    place: String,
    /// The same, in fewer words.
    brief_place: String,
    /// The holders: with all that is known, with their age, with their command, and only who they
    /// are.
    holders: [String; 4],
}

impl Seen {
    fn of(snapshot: &Snapshot, ordered: bool) -> Self {
        let briefly = |holder: &Entry| {
            let mut holder = holder.clone();
            (holder.command, holder.note) = (None, None);
            holder
        };
        let with_command = |holder: &Entry| {
            let mut holder = holder.clone();
            (holder.since, holder.note) = (None, None);
            holder
        };
        let only_who = |holder: &Entry| {
            let mut holder = briefly(holder);
            holder.since = None;
            holder
        };
        let parts = [&Entry::clone as &dyn Fn(&Entry) -> Entry, &briefly, &with_command, &only_who];
        let holders = parts.map(|part| match snapshot.holders.as_slice() {
            [] => String::new(),
            [one] => format!("; held by {}", describe(&part(one))),
            [first, others @ ..] => {
                format!("; held by {} and {} more", describe(&part(first)), others.len())
            }
        });
        let us = whoami();
        let waiters = snapshot.waiters.as_deref().unwrap_or_default();
        let ours = |waiter: &Entry| waiter.who.as_ref() == Some(&us);
        let (brief_place, rest) = match (waiters.len(), waiters.iter().position(ours)) {
            (0, _) => (String::new(), ""),
            (all, Some(at)) if ordered => (format!(", {} of {all}", at + 1), " in the queue"),
            (all, _) => (format!(", {all} waiting"), ""),
        };
        Self { place: format!("{brief_place}{rest}"), brief_place, holders }
    }

    /// Nothing, and the reason.
    fn none(why: String) -> Self {
        let holders = [why.clone(), why.clone(), why.clone(), why];
        Self { place: String::new(), brief_place: String::new(), holders }
    }
}

/// Without the fraction of a second, which would flicker.
fn whole(time: Duration) -> Duration {
    match time.as_secs() {
        0 => time,
        seconds => Duration::from_secs(seconds),
    }
}

/// Where a wait is reported.
#[derive(Debug)]
pub(crate) struct Line {
    quiet: bool,
    pub(crate) drawn: bool,
    /// Whether it shows something.
    used: bool,
}

impl Line {
    pub(crate) fn new(say: Say) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        Self { quiet: say.quiet, drawn: io::stderr().is_terminal() && !dumb, used: false }
    }

    /// Shows the longest of these texts that fits.
    pub(crate) fn show(&mut self, texts: &[String]) {
        let [longest, .., shortest] = texts else { return };
        if self.quiet {
        } else if !self.drawn {
            tell(plain(longest));
        } else if tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp()) {
            // In the background it would be drawn into what the user types.
            let width =
                terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| width.0);
            let line = |text: &String| format!("lockkeeper: {}", plain(text));
            let fits = |line: &String| clipped(line, width.into()) == *line;
            let line = texts.iter().map(line).find(fits).unwrap_or_else(|| line(shortest));
            stderr(&format!("\r{}\x1b[K", clipped(&line, width.into())));
            self.used = true;
        }
    }

    /// Removes the line, for other output.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.used) {
            stderr("\r\x1b[K");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Key, Mode};

    use super::*;

    fn entry(who: &str) -> Entry {
        Entry::new("identity", Mode::Mutex).by(who)
    }

    #[test]
    fn the_holders_and_our_place_are_named() {
        let mut snapshot = Snapshot::new(Key::new("k").unwrap());
        let held_by = |snapshot: &Snapshot, ordered| {
            let Seen { place, holders: [all, ..], .. } = Seen::of(snapshot, ordered);
            place + &all
        };
        assert_eq!(held_by(&snapshot, true), "");
        snapshot.holders = vec![entry("ann@web1 7 sleep 60")];
        assert_eq!(held_by(&snapshot, true), "; held by ann@web1 7 running \"sleep 60\"");
        assert_eq!(Seen::of(&snapshot, true).holders[3], "; held by ann@web1 7");
        snapshot.holders.push(entry("bob@web2 8"));
        snapshot.waiters = Some(vec![entry("eve@web3 9"), entry(&whoami())]);
        let both = "; held by ann@web1 7 running \"sleep 60\" and 1 more";
        assert_eq!(held_by(&snapshot, true), format!(", 2 of 2 in the queue{both}"));
        assert_eq!(held_by(&snapshot, false), format!(", 2 waiting{both}"));
    }

    #[test]
    fn eighty_columns_have_room_for_the_place_and_the_command() {
        let mut snapshot = Snapshot::new(Key::new("k").unwrap());
        snapshot.holders = vec![entry("ann@web1 7 sleep 60")];
        snapshot.waiters = Some(vec![entry(&whoami()), entry("eve@web3 9")]);
        let until = Some(Instant::now() + Duration::from_secs(60));
        let waiting = Waiting { key: "k", since: Instant::now(), until, drawn: true };
        let lines = waiting.lines(&Seen::of(&snapshot, true));
        let line = lines.iter().find(|line| "lockkeeper: ".len() + line.len() <= 80).unwrap();
        assert!(line.ends_with(", 1 of 2; held by ann@web1 7 running \"sleep 60\""), "{line}");
    }

    #[test]
    fn the_place_is_left_out_after_the_command() {
        let mut snapshot = Snapshot::new(Key::new("deploy/web").unwrap());
        snapshot.holders = vec![entry("root@vm 14934 sleep 900")];
        snapshot.waiters = Some(vec![entry("eve@web3 9"), entry(&whoami())]);
        let until = Some(Instant::now() + Duration::from_secs(1195));
        let waiting = Waiting { key: "deploy/web", since: Instant::now(), until, drawn: true };
        let lines = waiting.lines(&Seen::of(&snapshot, true));
        let line = lines.iter().find(|line| "lockkeeper: ".len() + line.len() <= 80).unwrap();
        assert!(line.ends_with(" left), 2 of 2; held by root@vm 14934"), "{line}");
    }
}
