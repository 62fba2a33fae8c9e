//! `/metrics`: Prometheus' text format. Keys only on request, because they may be many or
//! confidential.

use std::fmt::Write;
use std::time::SystemTime;

use super::collect::State;
use super::model::{Lock, Party};

pub(crate) fn text(state: &State, browsers: usize, keys: bool, now: SystemTime) -> String {
    let mut out = String::new();
    let mut page = Page { out: &mut out };
    let engines = || state.engines.iter();
    let label = |name: &str| format!("engine={}", quoted(name));
    page.gauge("lockkeeper_engine_up", "Whether the last look at the engine was answered.");
    for engine in engines() {
        let up = f64::from(u8::from(engine.answers()));
        page.sample("lockkeeper_engine_up", &label(&engine.name), up);
    }
    // Absent, not zero, while an engine does not answer.
    let answering = || engines().filter(|engine| engine.answers());
    page.gauge("lockkeeper_locks_held", "Locks that somebody holds.");
    for engine in answering() {
        let held = engine.locks.values().filter(|lock| !lock.holders.is_empty()).count();
        page.sample("lockkeeper_locks_held", &label(&engine.name), held as f64);
    }
    page.gauge("lockkeeper_waiters", "Waiters that the engine knows of.");
    for engine in answering() {
        let waiting: usize = engine.locks.values().map(|lock| lock.waiting().len()).sum();
        page.sample("lockkeeper_waiters", &label(&engine.name), waiting as f64);
    }
    page.gauge("lockkeeper_look_seconds", "How long the last look at the engine took.");
    for engine in engines() {
        page.sample("lockkeeper_look_seconds", &label(&engine.name), engine.took);
    }
    page.counter("lockkeeper_looks_total", "Looks at the engine.");
    for engine in engines() {
        page.sample("lockkeeper_looks_total", &label(&engine.name), engine.looks as f64);
    }
    page.counter("lockkeeper_look_failures_total", "Looks that were not answered.");
    for engine in engines() {
        page.sample("lockkeeper_look_failures_total", &label(&engine.name), engine.failures as f64);
    }
    let strip = state.strip(now);
    for (name, help, value) in [
        ("lockkeeper_lost_last_hour", "Holds that expired or were broken.", strip.lost_last_hour),
        ("lockkeeper_deadlocks", "Circles of processes that wait for each other.", strip.deadlocks),
        ("lockkeeper_ui_browsers", "Browsers that listen.", browsers),
    ] {
        page.gauge(name, help);
        page.sample(name, "", value as f64);
    }
    if let Some(slack) = strip.smallest_slack {
        page.gauge("lockkeeper_smallest_slack", "The smallest share of a lease that is left.");
        page.sample("lockkeeper_smallest_slack", "", slack.share);
    }
    if keys {
        per_key(&mut page, state, now);
    }
    out
}

fn per_key(page: &mut Page<'_>, state: &State, now: SystemTime) {
    let label = |lock: &Lock| format!("engine={},key={}", quoted(&lock.engine), quoted(&lock.key));
    page.gauge("lockkeeper_lock_holders", "Holders of the lock.");
    for lock in state.known_locks() {
        page.sample("lockkeeper_lock_holders", &label(lock), lock.holders.len() as f64);
    }
    page.gauge("lockkeeper_lock_waiters", "Waiters for the lock; absent where nobody knows.");
    for lock in state.known_locks() {
        if let Some(waiters) = &lock.waiters {
            page.sample("lockkeeper_lock_waiters", &label(lock), waiters.len() as f64);
        }
    }
    page.gauge("lockkeeper_lock_held_seconds", "For how long the lock has been held.");
    for lock in state.known_locks() {
        if let Some(began) = lock.holders.iter().map(Party::began).min() {
            let held = now.duration_since(began).unwrap_or_default();
            page.sample("lockkeeper_lock_held_seconds", &label(lock), held.as_secs_f64());
        }
    }
    page.gauge("lockkeeper_lock_lease_left_seconds", "What is left of its shortest lease.");
    for lock in state.known_locks() {
        if let Some(end) = lock.holders.iter().filter_map(|holder| holder.lease_ends).min() {
            let left = end.duration_since(now).unwrap_or_default();
            page.sample("lockkeeper_lock_lease_left_seconds", &label(lock), left.as_secs_f64());
        }
    }
}

struct Page<'a> {
    out: &'a mut String,
}

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str) {
        self.heading(name, help, "gauge");
    }

    fn counter(&mut self, name: &str, help: &str) {
        self.heading(name, help, "counter");
    }

    fn heading(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.out, "{name}{labels} {value}");
    }
}

/// The value of a label.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        assert_eq!(quoted("a\"} 1\nb\\"), r#""a\"} 1\nb\\""#);
    }
}
