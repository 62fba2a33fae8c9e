//! `ls`, `show`, `watch`, `break`, `yield`: what the engine knows of its locks, for people and for machines.
//!
//! Identities can be secrets, so only their start is shown. Notes and names come from others, so what
//! could move a terminal's cursor is not printed as it is.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal};
use std::time::SystemTime;

use lockkeeper::engine::{self, Breaker, BrokenHold, Entry, Snapshot};
use lockkeeper::whoami;
use serde_json::{Value, json};

use crate::acquire::{Outage, interruptible};
use crate::args::{Break, Ls, Show, Watch, Yield};
use crate::config::Config;
use crate::detached::handle;
use crate::exit::{self, Failure};
use crate::output::{human, print, stderr, tell};
use crate::run::signals::Signals;
use crate::table::{Table, clipped, plain, short};

pub(crate) async fn ls(args: Ls) -> exit::Outcome {
    let client = Config::load()?.connect(&args.place).await?;
    if args.broken {
        return list_broken(&client.broken(&args.prefix).await?, args.json);
    }
    let mut snapshots = client.list(&*args.prefix).await?;
    add_leases_of_handles(&mut snapshots);
    if args.json {
        print(&format!("{}\n", Value::from_iter(snapshots.iter().map(to_json))))?;
    } else if snapshots.is_empty() {
        tell("no locks in use");
    } else {
        print(&table(&snapshots))?;
    }
    Ok(0)
}

fn list_broken(breaks: &[engine::Break], json: bool) -> exit::Outcome {
    if json {
        print(&format!("{}\n", Value::from_iter(breaks.iter().map(break_to_json))))?;
        return Ok(0);
    }
    if breaks.is_empty() {
        tell("no lock was broken lately");
        return Ok(0);
    }
    let mut table = Table::of_names(["KEY", "BROKEN", "BY", "WHY", "HELD BY"]);
    for one in breaks {
        let who = |hold: &BrokenHold| hold.who.clone().unwrap_or_else(|| "unknown".to_owned());
        let ago = SystemTime::now().duration_since(one.at).unwrap_or_default();
        table.row([
            one.key.to_string(),
            format!("{} ago", human(ago)),
            one.by.clone(),
            one.why.clone().unwrap_or_default(),
            one.holders.iter().map(who).collect::<Vec<_>>().join(", "),
        ]);
    }
    print(&table.to_string())?;
    Ok(0)
}

pub(crate) async fn show(args: Show) -> exit::Outcome {
    let client = Config::load()?.connect(&args.place).await?;
    let mut snapshot = client.inspect(&args.key).await?;
    add_leases_of_handles(snapshot.as_mut_slice());
    match &snapshot {
        _ if args.json => {
            let free = || json!({"key": args.key, "fence": null, "holders": [], "waiters": [], "waiters_unknown": null});
            print(&format!("{}\n", snapshot.as_ref().map_or_else(free, to_json)))?;
        }
        None => print("nobody holds it\n")?,
        Some(snapshot) => {
            print(&table(std::slice::from_ref(snapshot)))?;
            if snapshot.waiters.is_none() {
                print(&format!("{}\n", waiters_unknown(snapshot.unknown)))?;
            }
        }
    }
    Ok(u8::from(snapshot.is_none_or(|snapshot| snapshot.holders.iter().all(|holder| holder.kept))))
}

pub(crate) async fn watch(args: Watch) -> exit::Outcome {
    let signals = Signals::collect().map_err(|error| Failure::own("listen for signals", error))?;
    let client = Config::load()?.connect(&args.place).await?;
    let redraw = io::stdout().is_terminal() && !args.json;
    let follow = async {
        let mut before = Locks::new();
        let mut outage = Outage::default();
        loop {
            let Some(mut snapshots) = outage.judge(client.list(&*args.prefix).await)? else {
                tokio::time::sleep(args.interval).await;
                continue;
            };
            if redraw {
                add_leases_of_handles(&mut snapshots);
                let (width, height) = terminal_size::terminal_size()
                    .map_or((80, 24), |(width, height)| (width.0, height.0));
                let body = match snapshots.is_empty() {
                    true => "no locks in use\n".to_owned(),
                    // A line that wraps would scroll the first ones away.
                    false => fitted(&snapshots, height.into())
                        .lines()
                        .map(|line| clipped(line, width.into()) + "\n")
                        .collect(),
                };
                // Home, the text, then whatever is left of the last one.
                print(&format!("\x1b[H\x1b[2J{body}"))?;
            } else {
                let now: Locks =
                    snapshots.iter().map(|s| (s.key.to_string(), lasting(s))).collect();
                for line in changes(&before, &now, args.json) {
                    print(&line)?;
                }
                before = now;
            }
            tokio::time::sleep(args.interval).await;
        }
    };
    interruptible::<u8>(follow, &signals).await
}

pub(crate) async fn break_lock(args: Break) -> exit::Outcome {
    let client = Config::load()?.connect(&args.place).await?;
    if !args.yes {
        if !io::stdin().is_terminal() {
            return Err(Failure::usage(
                "break asks before it acts, and there is no terminal to ask at; say --yes",
            ));
        }
        let holders = client.inspect(&args.key).await?.map(|snapshot| snapshot.holders);
        let holders = holders.unwrap_or_default();
        if holders.is_empty() && !args.json {
            tell(format_args!("nobody held lock {:?}", args.key));
            return Ok(0);
        }
        for holder in holders {
            tell(format_args!("held by {}", describe(&holder)));
        }
        stderr(&format!(
            "lockkeeper: break lock {:?}? Its holder may still be at work. [y/N] ",
            args.key
        ));
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map_err(|e| Failure::own("read an answer", e))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::new(1, "nothing was broken"));
        }
    }
    let broken = client.break_lock_because(&args.key, &args.why).await?;
    let why = recorded_reason(&args.why);
    if args.json {
        let broken: Vec<_> = broken.iter().map(entry_to_json).collect();
        print(&format!("{}\n", json!({"key": args.key, "why": why, "broken": broken})))?;
    } else if broken.is_empty() {
        tell(format_args!("nobody held lock {:?}", args.key));
    } else {
        for holder in &broken {
            print(&format!("broke lock {:?}: was held by {}\n", args.key, describe(holder)))?;
        }
        tell(format_args!("broken because: {}", plain(&why)));
    }
    client.close().await;
    Ok(0)
}

/// A reason as it is recorded with a break or a request: one line, with recognisable secrets masked.
pub(crate) fn recorded_reason(why: &str) -> String {
    Breaker::new(whoami().into(), Some(why)).why.unwrap_or_default()
}

pub(crate) async fn ask_to_yield(args: Yield) -> exit::Outcome {
    let client = Config::load()?.connect(&args.place).await?;
    let asked = match &args.why {
        Some(why) => client.request_yield_because(&args.key, why).await?,
        None => client.request_yield(&args.key).await?,
    };
    if args.json {
        let why = args.why.as_deref().map(recorded_reason);
        let asked: Vec<_> = asked.iter().map(entry_to_json).collect();
        print(&format!("{}\n", json!({"key": args.key, "why": why, "asked": asked})))?;
    } else if asked.is_empty() {
        tell(format_args!("nobody holds lock {:?}", args.key));
    } else {
        for holder in &asked {
            print(&format!("asked for lock {:?}: held by {}\n", args.key, describe(holder)))?;
        }
    }
    client.close().await;
    Ok(0)
}

/// Puts in what the handles of this user have left.
fn add_leases_of_handles(snapshots: &mut [Snapshot]) {
    if snapshots.is_empty() {
        return;
    }
    for (key, fence, left) in handle::leases() {
        let named = snapshots.iter_mut().filter(|snapshot| snapshot.key.as_str() == key);
        let holders = named.flat_map(|snapshot| &mut snapshot.holders);
        for holder in holders.filter(|holder| holder.fence.is_some_and(|f| f.get() == fence)) {
            holder.left = left.or(holder.left);
        }
    }
}

/// The table in so many lines: with as many waiters of each lock as fit, and holders before waiters.
fn fitted(snapshots: &[Snapshot], height: usize) -> String {
    let room = height.saturating_sub(1).max(2);
    let most = [usize::MAX, 10, 3, 1, 0].into_iter().map(|waiters| table_of(snapshots, waiters));
    let mut text = String::new();
    for table in most {
        text = table;
        if text.lines().count() <= room {
            return text;
        }
    }
    let left = text.lines().count() - (room - 1);
    let lines = text.lines().take(room - 1).map(|line| format!("{line}\n"));
    lines.collect::<String>() + &format!("… and {left} more\n")
}

fn table(snapshots: &[Snapshot]) -> String {
    table_of(snapshots, usize::MAX)
}

/// With at most so many waiters of each lock; of the others only their number.
fn table_of(snapshots: &[Snapshot], most_waiters: usize) -> String {
    let mut table = Table::of_names([
        "KEY",
        "STATE",
        "MODE",
        "WHO",
        "AGE",
        "LEASE LEFT",
        "FENCE",
        "COMMAND",
        "NOTE",
    ]);
    for snapshot in snapshots {
        let waiters = snapshot.waiters.iter().flatten().enumerate().take(most_waiters);
        let waiting = snapshot.waiters.as_ref().map_or(0, Vec::len);
        let state = |holder: &Entry| if holder.kept { "kept" } else { "held" };
        let rows = snapshot.holders.iter().map(|holder| (state(holder).to_owned(), holder));
        for (state, entry) in rows.chain(waiters.map(|(n, e)| (format!("waits {}", n + 1), e))) {
            let unknown = || "unknown".to_owned();
            let held = matches!(state.as_str(), "held" | "kept");
            table.row([
                snapshot.key.to_string(),
                state,
                entry.mode.to_string(),
                entry.who.clone().unwrap_or_else(|| format!("{}…", start_of(&entry.identity))),
                age(entry).map_or_else(unknown, human),
                if held { entry.left.map_or("none".to_owned(), human) } else { String::new() },
                match entry.fence {
                    Some(fence) => fence.to_string(),
                    None if held => unknown(),
                    None => String::new(),
                },
                entry.command.clone().unwrap_or_default(),
                entry.note.clone().unwrap_or_default(),
            ]);
        }
        if waiting > most_waiters {
            let mut row = [const { String::new() }; 9];
            row[0] = snapshot.key.to_string();
            row[1] = format!("{} more wait", waiting - most_waiters);
            table.row(row);
        }
    }
    table.to_string()
}

/// That the waiters of a lock are not known, and why.
pub(crate) fn waiters_unknown(why: Option<&str>) -> String {
    let why = why.unwrap_or("this engine does not see all of them");
    format!("waiters are unknown: {why}")
}

/// Who, doing what, for how long, and why, in one line.
pub(crate) fn describe(entry: &Entry) -> String {
    let who = entry.who.clone().unwrap_or_else(|| format!("{}…", start_of(&entry.identity)));
    let command = entry.command.as_ref();
    let command = command.map(|command| format!(" running {command:?}")).unwrap_or_default();
    let since = age(entry).map(|age| format!(" for {}", human(age))).unwrap_or_default();
    let note = entry.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    short(&plain(&format!("{who}{command}{since}{note}")))
}

fn to_json(snapshot: &Snapshot) -> Value {
    let entries = |entries: &[Entry]| entries.iter().map(entry_to_json).collect::<Vec<_>>();
    json!({
        "key": snapshot.key.as_str(),
        "fence": snapshot.fence.map(|fence| fence.get()),
        "holders": entries(&snapshot.holders),
        "waiters": snapshot.waiters.as_deref().map(entries),
        "waiters_unknown": snapshot.unknown,
    })
}

fn entry_to_json(entry: &Entry) -> Value {
    json!({
        "identity": start_of(&entry.identity),
        "mode": entry.mode.kind(),
        "who": entry.who,
        "command": entry.command,
        "note": entry.note,
        "since": entry.since.map(|since| humantime::format_rfc3339_millis(since).to_string()),
        "age": age(entry).map(|age| age.as_secs_f64()),
        "lease_left": entry.left.map(|left| left.as_secs_f64()),
        "fence": entry.fence.map(|fence| fence.get()),
        "slots": entry.slots,
        "kept": entry.kept,
    })
}

fn break_to_json(one: &engine::Break) -> Value {
    let hold = |hold: &BrokenHold| {
        let fence = hold.fence.map(|fence| fence.get());
        json!({"who": hold.who, "command": hold.command, "fence": fence})
    };
    json!({
        "key": one.key.as_str(),
        "at": humantime::format_rfc3339_millis(one.at).to_string(),
        "by": one.by,
        "command": one.command,
        "why": one.why,
        "holders": one.holders.iter().map(hold).collect::<Vec<_>>(),
    })
}

/// The part of a snapshot that does not change by itself.
fn lasting(snapshot: &Snapshot) -> Value {
    let mut value = to_json(snapshot);
    for list in ["holders", "waiters"] {
        for entry in value[list].as_array_mut().into_iter().flatten() {
            entry.as_object_mut().map(|entry| (entry.remove("age"), entry.remove("lease_left")));
        }
    }
    value
}

/// Locks by their keys.
type Locks = BTreeMap<String, Value>;

/// One line per lock that changed.
fn changes(before: &Locks, now: &Locks, json: bool) -> Vec<String> {
    let gone = before
        .iter()
        .filter(|(key, _)| !now.contains_key(*key))
        .map(|(key, _)| (key, json!({"key": key, "fence": null, "holders": [], "waiters": [], "waiters_unknown": null})));
    let changed = now
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(value))
        .map(|(key, value)| (key, value.clone()));
    gone.chain(changed)
        .map(|(key, value)| {
            let time = humantime::format_rfc3339_seconds(SystemTime::now());
            if json {
                let mut told = json!({"time": time.to_string()});
                if let (Some(told), Some(value)) = (told.as_object_mut(), value.as_object()) {
                    told.extend(value.clone());
                }
                return format!("{told}\n");
            }
            let names = |list: &str| {
                let who = |e: &Value| e["who"].as_str().or(e["identity"].as_str()).map(plain);
                value[list].as_array().into_iter().flatten().filter_map(who).collect::<Vec<_>>()
            };
            let key = plain(key);
            let kept =
                |all: &Vec<Value>| !all.is_empty() && all.iter().all(|one| one["kept"] == true);
            let held = if value["holders"].as_array().is_some_and(kept) { "kept" } else { "held" };
            match (names("holders"), names("waiters").len()) {
                (holders, 0) if holders.is_empty() => format!("{time} {key}: free\n"),
                (holders, 0) => format!("{time} {key}: {held} by {}\n", holders.join(", ")),
                (holders, n) => {
                    format!("{time} {key}: {held} by {}; {n} waiting\n", holders.join(", "))
                }
            }
        })
        .collect()
}

pub(crate) fn age(entry: &Entry) -> Option<std::time::Duration> {
    entry.since.and_then(|since| SystemTime::now().duration_since(since).ok())
}

fn start_of(identity: &str) -> String {
    identity.chars().take(8).collect()
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Key, Mode};

    use super::*;

    fn lock(key: &str, waiters: usize) -> Snapshot {
        let mut snapshot = Snapshot::new(Key::new(key).unwrap());
        let entry = |who: String| Entry::new("identity", Mode::Mutex).by(&who);
        snapshot.holders = vec![entry(format!("holder@{key} 1"))];
        snapshot.waiters = Some((0..waiters).map(|n| entry(format!("waiter@host {n}"))).collect());
        snapshot
    }

    #[test]
    fn holders_stay_on_a_screen_that_is_too_small_for_all_who_wait() {
        let locks = [lock("a", 50), lock("b", 2), lock("c", 0)];
        assert_eq!(fitted(&locks, 100), table(&locks));
        for height in [24, 10, 7] {
            let shown = fitted(&locks, height);
            assert!(shown.lines().count() < height, "{shown}");
            for key in ["a", "b", "c"] {
                assert!(shown.contains(&format!("holder@{key} 1")), "{height}: {shown}");
            }
            assert!(shown.contains("more wait"), "{shown}");
        }
        let many: Vec<_> = (0..50).map(|n| lock(&format!("{n:02}"), 1)).collect();
        let shown = fitted(&many, 24);
        assert_eq!(shown.lines().count(), 23, "{shown}");
        assert!(shown.ends_with("more\n"), "{shown}");
    }
}
