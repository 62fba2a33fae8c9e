//! One listening connection per client: a release notifies the next waiter in the queue.
//!
//! Started by the first claim that has to wait. Notifications before that, or while the connection
//! was down, are made up for by polling: no claim relies on a notification alone.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::{Mutex as AsyncMutex, Notify, broadcast};
use tokio::task::JoinHandle;

use crate::engines::disconnections::Disconnections;
use crate::engines::sql::{STATEMENT, failed, within};
use crate::error::Result;
use crate::owner::random;

/// The channel of requests to give way, for all clients: the payload is the key.
const ASKED: &str = "lockkeeper_asked";

/// How many requests a holder may fall behind. Then it looks for its own.
const BEHIND: usize = 64;

/// Waits for notifications on behalf of all claims of a client.
pub(super) struct Listener {
    options: PgConnectOptions,
    channel: String,
    turns: Arc<Turns>,
    /// The keys whose holders are asked to give way.
    requests: broadcast::Sender<String>,
    task: AsyncMutex<Option<JoinHandle<()>>>,
    disconnections: Disconnections,
}

/// The waiting claims, by token.
#[derive(Default)]
struct Turns(Mutex<HashMap<String, Arc<Notify>>>);

/// One waiting claim.
pub(super) struct Turn {
    turns: Arc<Turns>,
    token: String,
    notify: Arc<Notify>,
}

impl Listener {
    pub(super) fn new(options: PgConnectOptions, disconnections: Disconnections) -> Self {
        let channel = format!("lockkeeper_{:032x}", random());
        let requests = broadcast::Sender::new(BEHIND);
        let (turns, task) = (Arc::default(), AsyncMutex::default());
        Self { options, channel, turns, requests, task, disconnections }
    }

    /// The channel of this client.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Delivers notifications with this token to the claim from now on, until it is dropped.
    pub(super) fn register(&self, token: &str) -> Turn {
        let notify = self.turns.lock().entry(token.to_owned()).or_default().clone();
        Turn { turns: self.turns.clone(), token: token.to_owned(), notify }
    }

    /// The requests to give way from now on, as [`LeaseTable::requests`](crate::engines::sql::LeaseTable::requests).
    pub(super) async fn requests(&self) -> Result<broadcast::Receiver<String>> {
        let requests = self.requests.subscribe();
        self.start().await?;
        Ok(requests)
    }

    /// Starts to listen. True if it did not before: then notifications may have been missed.
    ///
    /// # Cancel safety
    /// If it is dropped, it has no effect.
    pub(super) async fn start(&self) -> Result<bool> {
        let mut task = self.task.lock().await;
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return Ok(false);
        }
        let listening = async {
            let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None);
            let pool = pool.idle_timeout(None).connect_lazy_with(self.options.clone());
            let mut listener = PgListener::connect_with(&pool).await?;
            // A lost connection is reported at once, not when there is another.
            listener.eager_reconnect(false);
            listener.listen_all([&*self.channel, ASKED]).await?;
            Ok(listener)
        };
        let listener = within(STATEMENT, listening)
            .await
            .map_err(|error| failed::<sqlx::PgConnection>(error, "listen for released locks"))?;
        let (turns, requests) = (self.turns.clone(), self.requests.clone());
        let listening = listen(listener, turns, requests, self.disconnections.clone());
        *task = Some(tokio::spawn(listening));
        Ok(true)
    }
}

/// Ends with its connection; the next claim or holder that listens starts another.
async fn listen(
    mut listener: PgListener,
    turns: Arc<Turns>,
    requests: broadcast::Sender<String>,
    disconnections: Disconnections,
) {
    let everyone = || {
        turns.everyone();
        // There may be no holder that listens.
        let _ = requests.send(String::new());
    };
    loop {
        match listener.try_recv().await {
            Ok(Some(message)) if message.channel() == ASKED => {
                let _ = requests.send(message.payload().to_owned());
            }
            Ok(Some(message)) => {
                if let Some(turn) = turns.lock().get(message.payload()) {
                    turn.notify_one();
                }
            }
            ended => {
                let error = ended.err();
                tracing::debug!(?error, "no longer listening for released locks");
                disconnections.report();
                return everyone();
            }
        }
    }
}

impl Turns {
    fn everyone(&self) {
        self.lock().values().for_each(|turn| turn.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Notify>>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl Turn {
    /// Waits for a notification that its turn has come.
    pub(super) async fn notified(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.token);
    }
}

impl fmt::Debug for Turn {
    /// Without the token, which identifies a claim.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

impl fmt::Debug for Listener {
    /// Without the options: they contain the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("channel", &self.channel).finish_non_exhaustive()
    }
}
