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

use crate::inspect::{age, describe};
use crate::output::{Say, human, stderr, tell};
use crate::table::{clipped, cut, plain, shortened};

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
    fn lines(&self, seen: &Seen) -> Vec<String> {
        let (key, [time, brief_time]) = (self.key, self.times());
        let Seen { place, brief_place, holders, brief_holders } = seen;
        let name = shortened(&format!("{key:?}"), NAME);
        let mut lines = vec![format!("waiting for lock {key:?} for {time}{place}{holders}")];
        let time = brief_time;
        if let [all, .., who] = brief_holders.as_slice() {
            lines.push(format!("waiting for lock {name} {time}{brief_place}{all}"));
            let brief = |holders: &String| format!("lock {name} {time}{brief_place}{holders}");
            lines.extend(brief_holders.iter().map(brief));
            lines.push(format!("lock {name} {time}{who}"));
            lines.push(format!("{name}{who}"));
        } else {
            lines.push(format!("lock {name} {time}{brief_place}{holders}"));
        }
        lines
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

    /// The time waited and the time left, and the same in fewer words.
    fn times(&self) -> [String; 2] {
        let waited = human(whole(self.since.elapsed()));
        let Some(until) = self.until else { return [waited.clone(), waited] };
        let left = until.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
        let left = human(Duration::from_secs_f64(left));
        let brief = left.split(' ').next().unwrap_or(&left);
        [left.as_str(), brief].map(|left| format!("{waited} ({left} left)"))
    }
}

/// What the engine reports about the lock.
#[derive(Debug, Default)]
struct Seen {
    /// Our place among the waiters, if there is an order.
    place: String,
    /// The same, in fewer words.
    brief_place: String,
    /// The holders, with all that is known, or why they are not known.
    holders: String,
    /// The holders in fewer and fewer words. The last one has only who they are.
    brief_holders: Vec<String>,
}

/// How much of a command is shown where there is not enough room for all of it.
const COMMANDS: [usize; 5] = [usize::MAX, 48, 32, 20, 12];

impl Seen {
    fn of(snapshot: &Snapshot, ordered: bool) -> Self {
        let (mut holders, mut brief_holders) = (String::new(), Vec::new());
        if let [first, others @ ..] = snapshot.holders.as_slice() {
            let more = match others.len() {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            holders = format!("; held by {}{more}", describe(first));
            let brief = |what: String| format!("; held by {what}{more}");
            brief_holders = in_brief(first).into_iter().map(brief).collect();
        }
        let us = whoami();
        let waiters = snapshot.waiters.as_deref().unwrap_or_default();
        let ours = |waiter: &Entry| waiter.who.as_ref() == Some(&us);
        let (brief_place, rest) = match (waiters.len(), waiters.iter().position(ours)) {
            (0, _) => (String::new(), ""),
            (all, Some(at)) if ordered => (format!(", {} of {all}", at + 1), " in the queue"),
            (all, _) => (format!(", {all} waiting"), ""),
        };
        Self { place: format!("{brief_place}{rest}"), brief_place, holders, brief_holders }
    }

    /// Nothing, and the reason.
    fn none(why: String) -> Self {
        Self { holders: why, ..Self::default() }
    }
}

/// A holder in fewer and fewer words: without its note, with less of its command, without its age.
fn in_brief(holder: &Entry) -> Vec<String> {
    let mut bare = holder.clone();
    (bare.command, bare.since, bare.note) = (None, None, None);
    let who = describe(&bare);
    let age = age(holder).map(|age| format!(" {}", human(whole(age)))).unwrap_or_default();
    let note = holder.note.as_ref().map(|note| format!(" ({note})"));
    let command = holder.command.as_deref();
    let commands = COMMANDS.into_iter().filter_map(|most| Some(cut(command?, most)));
    let mut forms: Vec<_> = commands.map(|command| format!("{who} {command:?}{age}")).collect();
    let shortest = COMMANDS.last().and_then(|most| Some(cut(command?, *most)));
    forms.extend(shortest.map(|command| format!("{who} {command:?}")));
    forms.extend([format!("{who}{age}"), who]);
    let all = note.and_then(|note| Some(format!("{}{note}", forms.first()?)));
    all.into_iter().chain(forms).collect()
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

    /// Shows the longest of these texts that fits. Only the first one says whose it is: the others
    /// need the room.
    pub(crate) fn show(&mut self, texts: &[String]) {
        let [longest, shorter @ ..] = texts else { return };
        if self.quiet {
        } else if !self.drawn {
            tell(plain(longest));
        } else if tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp()) {
            // In the background it would be drawn into what the user types.
            let width =
                terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| width.0);
            let mut lines: Vec<_> = shorter.iter().map(|text| plain(text)).collect();
            lines.insert(0, format!("lockkeeper: {}", plain(longest)));
            let fits = |line: &&String| clipped(line, width.into()) == **line;
            let Some(line) = lines.iter().find(fits).or(lines.last()) else { return };
            stderr(&format!("\r{}\x1b[K", clipped(line, width.into())));
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
    use std::time::SystemTime;

    use lockkeeper::{Key, Mode};

    use super::*;

    fn entry(who: &str) -> Entry {
        Entry::new("identity", Mode::Mutex).by(who)
    }

    #[test]
    fn the_holders_and_our_place_are_named() {
        let mut snapshot = Snapshot::new(Key::new("k").unwrap());
        let held_by = |snapshot: &Snapshot, ordered| {
            let Seen { place, holders, .. } = Seen::of(snapshot, ordered);
            place + &holders
        };
        assert_eq!(held_by(&snapshot, true), "");
        snapshot.holders = vec![entry("ann@web1 7 sleep 60")];
        assert_eq!(held_by(&snapshot, true), "; held by ann@web1 7 running \"sleep 60\"");
        assert_eq!(Seen::of(&snapshot, true).brief_holders.last().unwrap(), "; held by ann@web1 7");
        snapshot.holders.push(entry("bob@web2 8"));
        snapshot.waiters = Some(vec![entry("eve@web3 9"), entry(&whoami())]);
        let both = "; held by ann@web1 7 running \"sleep 60\" and 1 more";
        assert_eq!(held_by(&snapshot, true), format!(", 2 of 2 in the queue{both}"));
        assert_eq!(held_by(&snapshot, false), format!(", 2 waiting{both}"));
    }

    /// The line on a terminal of this width.
    fn drawn(key: &str, held_for: u64, command: &str, note: &str, width: usize) -> String {
        let mut snapshot = Snapshot::new(Key::new(key).unwrap());
        let mut holder = entry(&format!("root@vm 14934 {command}"));
        holder.since = SystemTime::now().checked_sub(Duration::from_secs(held_for));
        holder.note = (!note.is_empty()).then(|| note.to_owned());
        snapshot.holders = vec![holder];
        snapshot.waiters = Some(vec![entry("eve@web3 9"), entry(&whoami())]);
        let until = Some(Instant::now() + Duration::from_millis(1_194_500));
        let waiting = Waiting { key, since: Instant::now(), until, drawn: true };
        let lines = waiting.lines(&Seen::of(&snapshot, true));
        lines.into_iter().find(|line| clipped(line, width) == *line).expect("a line that fits")
    }

    #[test]
    fn eighty_columns_have_room_for_everything_but_the_note() {
        let line = drawn("deploy", 240, "sleep 9", "nightly run", 80);
        let rest = " (19m left), 2 of 2; held by root@vm 14934 \"sleep 9\" 4m";
        assert!(line.starts_with("lock \"deploy\" 0ms") && line.ends_with(rest), "{line}");
        let line = drawn("k", 240, "sh", "nightly", 80);
        assert!(line.ends_with(" \"sh\" 4m (nightly)"), "{line}");
    }

    #[test]
    fn the_holder_stays_to_the_end() {
        let command = "tar --create --file /backup/monday.tar /home";
        let line = drawn("deploy/web", 240, command, "", 80);
        assert!(line.ends_with("; held by root@vm 14934 4m"), "{line}");
        let line = drawn("db", 240, command, "", 80);
        assert!(line.ends_with(", 2 of 2; held by root@vm 14934 \"tar --creat…\" 4m"), "{line}");
        let line = drawn("deploy/web", 240, command, "", 40);
        assert_eq!(line, "\"deploy/web\"; held by root@vm 14934");
    }
}
