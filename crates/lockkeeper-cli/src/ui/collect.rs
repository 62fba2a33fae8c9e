//! One poller per engine, shared by all browsers.
//!
//! However many browsers are connected, an engine is polled once per interval, and less often if an
//! answer takes long: polling may take at most a twentieth of the time. Every poll is compared with
//! the last one, and only changes are sent on.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use lockkeeper::engine::{Break, Snapshot, Wakeup};
use lockkeeper::{Client, Error};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep, timeout};

use super::blocking::Blocking;
use super::episode::Interval;
use super::history::{History, Locks};
use super::model::{EngineName, Lock};
use super::processes::Processes;
use super::record::Recorder;
use super::rows::{Row, Strip};
use super::time;
use crate::output::tell;

/// How long an engine may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine that has not answered for this long is reported before its answer or failure is known,
/// unless its polls usually take a third of that or more.
const SLOW: Duration = Duration::from_secs(5);

/// The pause after a poll that was answered is at least this many times its duration.
const EASE: u32 = 19;

/// The shortest interval at which an engine is polled that notifies its clients of changes.
const PUSHING: Duration = Duration::from_secs(2);

/// The pause between polls grows with what they read, so that looking costs a store little compared
/// with the locks themselves.
const PER_LOCK: Duration = Duration::from_millis(4);
const PER_WAITER: Duration = Duration::from_micros(200);

/// How many messages a browser may fall behind before it is sent everything again.
const BEHIND: usize = 16;

/// What is known about all engines, and the subscribers to it.
#[derive(Debug)]
pub(crate) struct Collector {
    sources: Vec<Source>,
    interval: Duration,
    state: Mutex<State>,
    events: broadcast::Sender<Arc<str>>,
}

/// An engine to poll.
pub(crate) struct Source {
    /// The name of the configuration, or the URL without secrets.
    pub(crate) name: EngineName,
    /// With its secrets.
    pub(crate) url: String,
    pub(crate) client: Mutex<Option<Client>>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) engines: Vec<EngineState>,
    pub(crate) history: History,
    pub(crate) blocking: Blocking,
    rows: HashMap<(EngineName, String), Row>,
    recorder: Option<Recorder>,
    /// Why the history is not recorded, if that fails.
    pub(crate) record_error: Option<String>,
}

/// What the polls of one engine returned.
#[derive(Debug, Default, Serialize)]
pub(crate) struct EngineState {
    pub(crate) name: EngineName,
    /// `null` while it answers.
    pub(crate) error: Option<String>,
    /// The last poll that was answered.
    #[serde(serialize_with = "time::optional")]
    pub(crate) looked: Option<SystemTime>,
    /// How long that took, in seconds.
    pub(crate) took: f64,
    /// Whether the error only says that the current poll takes long.
    #[serde(skip)]
    slow: bool,
    #[serde(skip)]
    pub(crate) looks: u64,
    #[serde(skip)]
    pub(crate) failures: u64,
    #[serde(skip)]
    pub(crate) locks: Locks,
}

impl EngineState {
    /// Whether the last poll was answered.
    pub(crate) fn answers(&self) -> bool {
        self.looked.is_some() && self.error.is_none()
    }
}

/// One poll of an engine.
#[derive(Debug)]
struct Seen {
    snapshots: Vec<Snapshot>,
    breaks: Vec<Break>,
}

impl Collector {
    pub(crate) fn new(
        sources: Vec<Source>,
        interval: Duration,
        history: History,
        recorder: Option<Recorder>,
    ) -> Self {
        let engine =
            |source: &Source| EngineState { name: source.name.clone(), ..EngineState::default() };
        let state = State {
            engines: sources.iter().map(engine).collect(),
            history,
            blocking: Blocking::default(),
            rows: HashMap::new(),
            recorder,
            record_error: None,
        };
        let events = broadcast::Sender::new(BEHIND);
        Self { sources, interval, state: Mutex::new(state), events }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn source(&self, name: &str) -> Option<&Source> {
        self.sources.iter().find(|source| &*source.name == name)
    }

    /// The number of engines, each of which wants a [`poll`](Self::poll).
    pub(crate) fn engines(&self) -> usize {
        self.sources.len()
    }

    /// The current state, and the events after it.
    pub(crate) fn subscribe(&self) -> (Arc<str>, broadcast::Receiver<Arc<str>>) {
        let state = self.state();
        (state.everything().to_string().into(), self.events.subscribe())
    }

    /// Polls an engine forever.
    pub(crate) async fn poll(&self, n: usize) {
        loop {
            let started = Instant::now();
            let answered = self.look(n).await;
            // What took long to fail was no work for the store.
            let ease = if answered { EASE * started.elapsed() } else { Duration::ZERO };
            sleep(self.pause(n).max(ease)).await;
        }
    }

    /// The least pause before the next poll of an engine.
    fn pause(&self, n: usize) -> Duration {
        let pushes = self.sources[n].pushes();
        let state = self.state();
        let locks = &state.engines[n].locks;
        let waiters: usize = locks.values().map(|lock| lock.waiting().len()).sum();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let work =
            PER_LOCK.saturating_mul(count(locks.len())) + PER_WAITER.saturating_mul(count(waiters));
        let least = if pushes { PUSHING } else { Duration::ZERO };
        self.interval.max(work).max(least)
    }

    /// Polls an engine once. False if it does not answer.
    pub(crate) async fn look(&self, n: usize) -> bool {
        let started = Instant::now();
        let mut listing = std::pin::pin!(self.sources[n].list());
        let usual = Duration::from_secs_f64(self.state().engines[n].took);
        let slow = SLOW.max(3 * usual).min(PATIENCE);
        let seen = match timeout(slow, &mut listing).await {
            Ok(seen) => Ok(seen),
            Err(_) => {
                self.publish(&self.state().note_silence(n, slow, SystemTime::now()));
                timeout(PATIENCE - slow, listing).await
            }
        };
        let seen = match seen {
            Ok(Ok(seen)) => Ok(seen),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer for {} s", PATIENCE.as_secs())),
        };
        let answered = seen.is_ok();
        self.publish(&self.state().note(n, seen, SystemTime::now(), started.elapsed()));
        answered
    }

    fn publish(&self, message: &Value) {
        // There may be no subscriber.
        let _ = self.events.send(message.to_string().into());
    }
}

impl Source {
    /// The client, connected on demand: an engine that is down does not keep the page from loading.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        let known = || self.client.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(client) = known().clone() {
            return Ok(client);
        }
        let client = Client::connect(&self.url).await?;
        Ok(known().get_or_insert(client).clone())
    }

    /// Whether the engine notifies clients of changes, or is not connected, so that nobody knows.
    fn pushes(&self) -> bool {
        let known = self.client.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.as_ref().is_none_or(|client| client.guarantees().wakeup == Wakeup::Push)
    }

    /// The locks, and then the breaks: whatever a break ended is among them.
    async fn list(&self) -> Result<Seen, Error> {
        let client = self.client().await?;
        let snapshots = client.list("").await?;
        let breaks = match client.broken("").await {
            // The store keeps no such list, or this user may not read it.
            Err(error) if !error.is_retryable() => Vec::new(),
            breaks => breaks?,
        };
        Ok(Seen { snapshots, breaks })
    }
}

impl fmt::Debug for Source {
    /// Without the URL, which may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

impl State {
    pub(crate) fn locks(&self) -> impl Iterator<Item = &Lock> + Clone {
        self.engines.iter().flat_map(|engine| engine.locks.values())
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        let deadlocked = self.blocking.deadlocked();
        self.engines.iter().flat_map(move |engine| {
            let deadlocked = deadlocked.clone();
            let stale = !engine.answers();
            engine.locks.values().map(move |lock| Row::new(lock, &deadlocked, stale))
        })
    }

    /// The locks of the engines that answer: the others may have changed.
    pub(crate) fn known_locks(&self) -> impl Iterator<Item = &Lock> + Clone {
        self.engines.iter().filter(|engine| engine.answers()).flat_map(|one| one.locks.values())
    }

    pub(crate) fn strip(&self, now: SystemTime) -> Strip {
        let silent = self.engines.iter().filter(|engine| engine.error.is_some()).count();
        let (lost, deadlocks) = (self.history.lost(now), self.blocking.deadlocks.len());
        Strip::new(self.known_locks(), silent, lost, deadlocks)
    }

    /// The first message to a new browser.
    fn everything(&self) -> Value {
        let now = SystemTime::now();
        let mut message = self.heading(now);
        message["all"] = json!(true);
        message["locks"] = json!(self.rows.values().collect::<Vec<_>>());
        message["removed"] = json!([]);
        message
    }

    fn heading(&self, now: SystemTime) -> Value {
        json!({
            "now": time::text(now),
            "all": false,
            "strip": self.strip(now),
            "engines": self.engines,
            "record_error": self.record_error,
        })
    }

    /// A poll has not been answered for some time, and may still be.
    fn note_silence(&mut self, n: usize, waited: Duration, now: SystemTime) -> Value {
        let engine = &mut self.engines[n];
        if engine.error.is_none() {
            engine.error = Some(format!("no answer for {} s", waited.as_secs()));
            engine.slow = true;
        }
        self.changes(now)
    }

    /// Processes the result of a poll, and returns what changed.
    fn note(
        &mut self,
        n: usize,
        seen: Result<Seen, String>,
        now: SystemTime,
        took: Duration,
    ) -> Value {
        let engine = &mut self.engines[n];
        engine.looks += 1;
        match seen {
            Ok(Seen { snapshots, breaks }) => {
                let fresh = |snapshot: Snapshot| {
                    let before = engine.locks.get(snapshot.key.as_str());
                    Lock::seen(&engine.name, snapshot, before, now)
                };
                let locks: Locks =
                    snapshots.into_iter().map(fresh).map(|lock| (lock.key.clone(), lock)).collect();
                let before = std::mem::replace(&mut engine.locks, locks);
                let blind = engine.error.take().is_some() && !engine.slow;
                engine.slow = false;
                let interval = Interval { from: engine.looked, to: now, blind };
                (engine.looked, engine.took) = (Some(now), took.as_secs_f64());
                self.history.observe(&engine.name, &before, &engine.locks, &breaks, interval);
                let processes = Processes::now();
                let blocking =
                    Blocking::of(self.locks(), |party, holders| processes.above(party, holders));
                self.blocking = blocking;
                self.record();
            }
            Err(error) => {
                engine.failures += 1;
                (engine.error, engine.slow) = (Some(error), false);
            }
        }
        self.changes(now)
    }

    /// What changed since the last message.
    fn changes(&mut self, now: SystemTime) -> Value {
        let rows: BTreeMap<_, _> =
            self.rows().map(|row| ((row.engine.clone(), row.key.clone()), row)).collect();
        let changed: Vec<_> = rows
            .iter()
            .filter(|(name, row)| self.rows.get(name) != Some(row))
            .map(|(_, r)| r)
            .collect();
        let removed: Vec<_> = self.rows.keys().filter(|name| !rows.contains_key(name)).collect();
        let mut message = self.heading(now);
        message["locks"] = json!(changed);
        message["removed"] = json!(removed);
        self.rows = rows.into_iter().collect();
        message
    }

    fn record(&mut self) {
        let unsaved = self.history.take_unsaved();
        let Some(recorder) = self.recorder.as_mut().filter(|_| !unsaved.is_empty()) else { return };
        let outcome = recorder.append(&unsaved, self.history.saved());
        match (outcome, &self.record_error) {
            (Err(error), None) => {
                tell(format_args!("the history is not recorded: {error}"));
                self.record_error = Some(error.to_string());
            }
            (Ok(()), Some(_)) => {
                tell("the history is recorded again");
                self.record_error = None;
            }
            _ => {}
        }
    }
}
