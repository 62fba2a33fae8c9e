//! Sentinels: all of them are watched at once, so that the current master is always known.
//!
//! One task per sentinel keeps a subscription, and queries the sentinel after every event of a
//! failover and once a second. The answer with the highest configuration epoch counts, even if the
//! sentinel that gave it no longer answers: the others learn of a failover from the one that leads
//! it.
//!
//! Easy to get wrong: in a planned failover, the old master accepts writes for ten seconds or more
//! after another one was promoted, and none of them survives. So from the moment at which a
//! sentinel starts to select a replica there is no master until that replica is promoted, and
//! answers of the old master do not count. The event arrives two ticks of the sentinel's timer
//! (about 0.1 s) before the replica leaves its master.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use redis::aio::SendError;
use redis::{
    AsyncConnectionConfig, FromRedisValue, ProtocolVersion, PushInfo, PushKind, RedisError,
    RedisResult, Value,
};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::batch::silent;
use super::connector::Connector;
use super::opinion::{Address, Opinion, View, decide, said};

/// How often a sentinel is polled; also the delay before it is retried after a failure.
const PERIOD: Duration = Duration::from_secs(1);

/// After a silence this long, we assume that this process was stopped.
const BEHIND: Duration = Duration::from_secs(2);

/// How long the newest configuration counts without a sentinel that still knows it. Sentinels
/// exchange it every two seconds, so a configuration that no other sentinel has adopted by then is
/// void.
const KEPT: Duration = Duration::from_secs(10);

/// From this event on, the old master must not be used.
const BEGIN: &str = "+failover-state-select-slave";

/// The events after which a sentinel is queried.
const EVENTS: [&str; 6] = [
    BEGIN,
    "+failover-state-reconf-slaves",
    "+switch-master",
    "-failover-abort-no-good-slave",
    "-failover-abort-slave-timeout",
    "-failover-abort-master-is-back",
];

/// The states that a sentinel reports while it leads a failover whose new master is not yet
/// promoted.
const PROMOTING: [&str; 3] = ["select_slave", "send_slaveof_noone", "wait_promotion"];

/// The sentinels of one master.
#[derive(Debug)]
pub(super) struct Sentinels {
    dials: Vec<Connector>,
    master: String,
    timeout: Duration,
    state: Mutex<State>,
    /// Counts the changes of the master, to identify outdated connections.
    generation: AtomicU64,
    /// Signals every message of a sentinel, and when it arrived.
    heard: watch::Sender<Instant>,
}

#[derive(Debug)]
struct State {
    opinions: Vec<Opinion>,
    /// The master and the configuration that names it; `None` before the first answer and while
    /// another one is being promoted.
    master: Option<View>,
    /// The newest configuration, and when a sentinel last reported it.
    newest: Option<(View, Instant)>,
    tasks: Vec<AbortHandle>,
}

impl Sentinels {
    pub(super) fn new(dials: Vec<Connector>, master: String, timeout: Duration) -> Self {
        let opinions = vec![Opinion::Unknown; dials.len()];
        let state = State { opinions, master: None, newest: None, tasks: Vec::new() };
        let (heard, generation) = (watch::Sender::new(Instant::now()), AtomicU64::new(0));
        Self { dials, master, timeout, state: Mutex::new(state), generation, heard }
    }

    /// The current master, and the generation it belongs to.
    ///
    /// Waits while a new one is being promoted, and until all sentinels have answered, because one
    /// of them knows first; if some do not answer, for a quarter of the timeout.
    pub(super) async fn master(self: &Arc<Self>) -> RedisResult<(Address, u64)> {
        self.watch();
        let first = tokio::time::timeout(self.timeout / 4, self.until_known(false)).await;
        match first {
            Ok(known) => known,
            Err(_) => tokio::time::timeout(self.timeout, self.until_known(true))
                .await
                .unwrap_or_else(|_| Err(silent())),
        }
    }

    /// Whether the master of this generation is still the master.
    pub(super) fn is_current(&self, generation: u64) -> bool {
        self.generation() == generation && !self.is_behind()
    }

    /// Which master it is, and in which configuration.
    pub(super) fn origin(&self) -> String {
        let master = self.lock().master.clone();
        master.map_or_else(String::new, |View { address: (host, port), epoch, .. }| {
            format!("{host}:{port} {epoch}")
        })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Whether this process was stopped, and may have missed something. The silence of a single
    /// sentinel is detected by its task.
    fn is_behind(&self) -> bool {
        self.heard.borrow().elapsed() > BEHIND && self.lock().said().next().is_some()
    }

    /// Resolves when the master is no longer the one of this generation.
    pub(super) async fn changed(&self, generation: u64) {
        let mut heard = self.heard.subscribe();
        while self.generation() == generation {
            if heard.changed().await.is_err() {
                return;
            }
        }
    }

    /// Stops watching until the master is needed again.
    pub(super) fn close(&self) {
        self.lock().tasks.drain(..).for_each(|task| task.abort());
    }

    async fn until_known(&self, any: bool) -> RedisResult<(Address, u64)> {
        let mut heard = self.heard.subscribe();
        loop {
            if let Some(known) = self.known(any) {
                return known;
            }
            let _ = heard.changed().await;
        }
    }

    /// `None` if it is worth waiting for more answers; with `any`, one sentinel is enough.
    fn known(&self, any: bool) -> Option<RedisResult<(Address, u64)>> {
        if self.is_behind() {
            return None;
        }
        let state = self.lock();
        let said = state.said().count();
        let all = !state.opinions.iter().any(|opinion| matches!(opinion, Opinion::Unknown));
        if !(all || any && said > 0) {
            return None;
        }
        if said > 0 {
            let master = state.master.as_ref()?;
            return Some(Ok((master.address.clone(), self.generation())));
        }
        // A sentinel that answered gives the better reason.
        let ignorant = state.opinions.iter().any(|o| matches!(o, Opinion::Ignorant));
        let trouble = state.opinions.iter().find_map(|opinion| match opinion {
            Opinion::Silent(error) if !ignorant => Some(error.clone()),
            _ => None,
        });
        Some(Err(trouble.unwrap_or_else(|| {
            let unknown = format!("the sentinels know no master {:?}", self.master);
            std::io::Error::other(unknown).into()
        })))
    }

    /// Makes sure that every sentinel is watched; if the runtime ended, so did its tasks.
    fn watch(self: &Arc<Self>) {
        let mut state = self.lock();
        if !state.tasks.is_empty() && state.tasks.iter().all(|task| !task.is_finished()) {
            return;
        }
        state.tasks.drain(..).for_each(|task| task.abort());
        for opinion in &mut state.opinions {
            *opinion = Opinion::Unknown;
        }
        for at in 0..self.dials.len() {
            let task = tokio::spawn(follow(Arc::downgrade(self), at));
            state.tasks.push(task.abort_handle());
        }
    }

    fn heard_from(&self, at: usize, opinion: Opinion) {
        self.update(|opinions| opinions[at] = opinion);
    }

    /// A sentinel starts to select a replica. Acts without querying it first, because every moment
    /// counts.
    fn begin(&self, at: usize) {
        self.update(|opinions| {
            if let Opinion::Said(view) = &mut opinions[at] {
                view.promoting = true;
            }
        });
    }

    fn update(&self, change: impl FnOnce(&mut [Opinion])) {
        let mut state = self.lock();
        change(&mut state.opinions);
        let heard = said(&state.opinions).max_by_key(|view| view.epoch).cloned();
        let kept = state.newest.take_if(|(_, at)| at.elapsed() < KEPT);
        state.newest = match (heard, kept) {
            (Some(heard), Some(kept)) if heard.epoch < kept.0.epoch => Some(kept),
            (Some(heard), _) => Some((heard, Instant::now())),
            (None, kept) => kept,
        };
        let newest = state.newest.as_ref().map(|(view, _)| view);
        // If no sentinel is left, the last answer counts.
        if let Some(master) = decide(&state.opinions, newest)
            && master != state.master
        {
            tracing::debug!(?master, "the sentinels name another master");
            state.master = master;
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
        drop(state);
        self.heard.send_replace(Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        self.close();
    }
}

impl State {
    fn said(&self) -> impl Iterator<Item = &View> {
        said(&self.opinions)
    }
}

/// Watches one sentinel as long as the master is needed.
async fn follow(sentinels: Weak<Sentinels>, at: usize) {
    loop {
        let trouble = converse(&sentinels, at).await;
        let Some(sentinels) = sentinels.upgrade() else { return };
        sentinels.heard_from(at, trouble);
        drop(sentinels);
        tokio::time::sleep(PERIOD).await;
    }
}

/// Listens to one sentinel until the connection ends, and returns why.
async fn converse(sentinels: &Weak<Sentinels>, at: usize) -> Opinion {
    let Some(this) = sentinels.upgrade() else { return Opinion::Unknown };
    let (dial, master, timeout) = (this.dials[at].clone(), this.master.clone(), this.timeout);
    drop(this);
    let events = Arc::new(Notify::new());
    let (event, listener, name) = (events.clone(), sentinels.clone(), master.clone());
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout))
        .set_push_sender(move |push: PushInfo| {
            let listener = listener.upgrade().ok_or(SendError)?;
            if begins(&push, &name) {
                listener.begin(at);
            }
            event.notify_one();
            Ok::<_, SendError>(())
        });
    let talk = async {
        let connecting = dial.connect(config, ProtocolVersion::RESP3);
        let connecting = tokio::time::timeout(timeout, connecting);
        let mut connection = connecting.await.map_err(|_| silent())??.0;
        // Subscribed first: whatever happens before the answer is in the answer.
        connection.subscribe(&EVENTS).await?;
        let mut asking = redis::pipe();
        asking.cmd("SENTINEL").arg("master").arg(&master);
        asking.cmd("SENTINEL").arg("get-master-addr-by-name").arg(&master);
        loop {
            let answers = connection.send_packed_commands(&asking, 0, 2).await?;
            let [details, address] = answers.as_slice() else { return Err(silent()) };
            if let Value::ServerError(refusal) = address {
                return Err(refusal.clone().into());
            }
            let address = Option::<Address>::from_redis_value_ref(address)?;
            let (Some(address), Some(this)) = (address, sentinels.upgrade()) else {
                return Ok(Opinion::Ignorant);
            };
            let details = HashMap::<String, String>::from_redis_value_ref(details)?;
            let epoch = details.get("config-epoch").and_then(|epoch| epoch.parse().ok());
            let promoting =
                details.get("failover-state").is_some_and(|now| PROMOTING.contains(&now.as_str()));
            let view = View { epoch: epoch.unwrap_or(0), address, promoting };
            this.heard_from(at, Opinion::Said(view));
            drop(this);
            let _ = tokio::time::timeout(PERIOD, events.notified()).await;
        }
    };
    talk.await.unwrap_or_else(|error: RedisError| Opinion::Silent(error))
}

/// Whether a sentinel starts to replace our master.
fn begins(push: &PushInfo, master: &str) -> bool {
    let [Value::BulkString(channel), Value::BulkString(text)] = push.data.as_slice() else {
        return false;
    };
    let name = text.split(|byte| *byte == b' ').nth(1);
    push.kind == PushKind::Message
        && channel == BEGIN.as_bytes()
        && name.is_some_and(|name| name == master.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::opinion::tests::{says, silence};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_configuration_never_goes_back_when_the_only_up_to_date_sentinel_falls_silent() {
        let sentinels = Sentinels::new(Vec::new(), "main".to_owned(), PERIOD);
        sentinels.lock().opinions = vec![Opinion::Unknown; 2];
        let master = || sentinels.lock().master.as_ref().map(|view| view.address.1);
        sentinels.heard_from(0, says(3, 1, false));
        sentinels.heard_from(1, says(3, 1, false));
        sentinels.heard_from(0, says(4, 2, false));
        sentinels.heard_from(0, silence());
        sentinels.heard_from(1, says(3, 1, false));
        assert_eq!(master(), Some(2));
        // The other sentinels never adopted it: it is void together with the sentinel that led it.
        tokio::time::advance(KEPT).await;
        sentinels.heard_from(1, says(3, 1, false));
        assert_eq!(master(), Some(1));
    }
}
