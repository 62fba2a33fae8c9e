//! One pub/sub connection: its channels, and whom a message notifies.
//!
//! Only `PING` shares this connection: a server that migrates a slot away ends its subscriptions
//! unasked, which the client crate would take for the answer to another command. The `PING` is
//! needed because a connection that only receives does not detect that its peer is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::connector::Connector;
use super::message::Message;
use super::subscriber::Subscription;

/// A channel without listeners stays subscribed for the next one, for this many messages.
const UNHEARD: u32 = 16;

/// How many channels stay subscribed without listeners, until the connection is next quiet.
const KEPT: usize = 256;

/// How long the connection may be quiet before the server is pinged.
const QUIET: Duration = Duration::from_secs(1);

/// One pub/sub connection.
#[derive(Debug)]
pub(super) struct PubSubConnection {
    pub(super) channels: Mutex<Channels>,
    pub(super) changes: mpsc::UnboundedSender<Change>,
    /// Of the server that it was made to.
    pub(super) generation: OnceLock<(Connector, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct Channels {
    pub(super) by_name: HashMap<String, Channel>,
    /// Why the connection has ended.
    pub(super) closed: Option<Option<RedisError>>,
}

#[derive(Debug, Default)]
pub(super) struct Channel {
    pub(super) live: bool,
    pub(super) waiters: Vec<Arc<Listener>>,
    pub(super) unheard: u32,
}

#[derive(Debug)]
pub(super) enum Change {
    Subscribe(String),
    Unsubscribe(String),
}

impl Change {
    fn command(&self, sharded: bool) -> Cmd {
        let (name, channel) = match (self, sharded) {
            (Change::Subscribe(channel), false) => ("SUBSCRIBE", channel),
            (Change::Subscribe(channel), true) => ("SSUBSCRIBE", channel),
            (Change::Unsubscribe(channel), false) => ("UNSUBSCRIBE", channel),
            (Change::Unsubscribe(channel), true) => ("SUNSUBSCRIBE", channel),
        };
        let mut command = redis::cmd(name);
        command.arg(channel);
        command
    }
}

/// What a subscription waits with.
#[derive(Debug, Default)]
pub(super) struct Listener {
    pub(super) notify: Notify,
    /// The claim whose messages it receives; empty if all messages are alike.
    pub(super) claim: String,
    message: Mutex<Option<Message>>,
}

impl Listener {
    pub(super) fn of(claim: &str) -> Self {
        Self { claim: claim.to_owned(), ..Self::default() }
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Option<Message>> {
        self.message.lock().expect("nothing panics under this lock")
    }
}

impl PubSubConnection {
    /// Whether its server was not replaced.
    pub(super) fn is_current(&self) -> bool {
        self.generation
            .get()
            .is_some_and(|(connector, generation)| connector.is_current(*generation))
    }

    /// `None` if the connection is gone.
    pub(super) fn listen(
        self: &Arc<Self>,
        name: &str,
        shared: bool,
        claim: &str,
    ) -> Option<Subscription> {
        let listener = Arc::new(Listener::of(claim));
        let mut channels = self.lock();
        if channels.closed.is_some() {
            return None;
        }
        if !channels.by_name.contains_key(name) {
            channels.by_name.insert(name.to_owned(), Channel::default());
            let _ = self.changes.send(Change::Subscribe(name.to_owned()));
        }
        let channel = channels.by_name.get_mut(name).expect("it was just put there");
        channel.unheard = 0;
        if channel.live {
            listener.notify.notify_one();
        }
        channel.waiters.push(listener.clone());
        drop(channels);
        Some(Subscription { connection: self.clone(), channel: name.to_owned(), shared, listener })
    }

    pub(super) fn leave(&self, subscription: &Subscription) {
        let mut channels = self.lock();
        let kept = channels.by_name.len() <= KEPT;
        let Some(channel) = channels.by_name.get_mut(&subscription.channel) else { return };
        channel.waiters.retain(|other| !Arc::ptr_eq(other, &subscription.listener));
        match channel.waiters.first() {
            // A notification that the dropped subscription did not consume must not be lost.
            Some(next) if subscription.listener.claim.is_empty() => next.notify.notify_one(),
            Some(_) => {}
            None if subscription.shared && kept => {}
            None => self.forget(&mut channels, &subscription.channel),
        }
    }

    fn forget(&self, channels: &mut Channels, name: &str) {
        channels.by_name.remove(name);
        let _ = self.changes.send(Change::Unsubscribe(name.to_owned()));
    }

    pub(super) fn hear(&self, push: PushInfo) {
        let name = match push.data.first() {
            Some(Value::BulkString(name)) => String::from_utf8_lossy(name),
            _ => "".into(),
        };
        let mut channels = self.lock();
        let channel = channels.by_name.get_mut(&*name);
        match (push.kind, channel) {
            (PushKind::Disconnection, _) => {
                drop(channels);
                self.close(None);
                if let Some((connector, _)) = self.generation.get() {
                    connector.disconnected();
                }
            }
            (PushKind::Subscribe | PushKind::SSubscribe, Some(channel)) => {
                channel.live = true;
                channel.waiters.iter().for_each(|listener| listener.notify.notify_one());
            }
            // Not at our request: the slot moved to another server.
            (PushKind::SUnsubscribe, Some(channel)) if channel.live => {
                drop(channels);
                self.close(None);
            }
            (PushKind::Message | PushKind::SMessage, Some(channel)) => {
                match channel.waiters.as_slice() {
                    [] => {
                        channel.unheard += 1;
                        if channel.unheard >= UNHEARD {
                            self.forget(&mut channels, &name);
                        }
                    }
                    [first, ..] if first.claim.is_empty() => first.notify.notify_one(),
                    waiters => {
                        let text = match push.data.get(1) {
                            Some(Value::BulkString(text)) => String::from_utf8_lossy(text),
                            _ => "".into(),
                        };
                        let (claim, text) = text.split_once(' ').unwrap_or_default();
                        let addressee = waiters.iter().find(|listener| listener.claim == claim);
                        if let (Some(listener), Some(message)) = (addressee, Message::read(text)) {
                            message.deliver(&mut listener.inbox());
                            listener.notify.notify_one();
                        }
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn close(&self, why: Option<RedisError>) {
        let mut channels = self.lock();
        if channels.closed.is_none() {
            channels.closed = Some(why);
        }
        for (_, channel) in channels.by_name.drain() {
            channel.waiters.iter().for_each(|listener| listener.notify.notify_one());
        }
    }

    /// Ends the subscriptions that nobody listens to.
    fn forget_idle(&self) {
        let mut channels = self.lock();
        let is_idle = |channel: &Channel| channel.live && channel.waiters.is_empty();
        let idle = channels.by_name.iter().filter(|(_, channel)| is_idle(channel));
        let idle: Vec<_> = idle.map(|(name, _)| name.clone()).collect();
        idle.iter().for_each(|name| self.forget(&mut channels, name));
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().expect("nothing panics under this lock")
    }
}

/// Sends (un)subscribe commands in order. Ends with the connection, and returns why.
pub(super) async fn keep_subscribed(
    mut connection: MultiplexedConnection,
    mut changes: mpsc::UnboundedReceiver<Change>,
    heard: &Weak<PubSubConnection>,
    sharded: bool,
) -> Option<RedisError> {
    loop {
        let command = match timeout(QUIET, changes.recv()).await {
            Ok(None) => return None,
            Ok(Some(change)) => change.command(sharded),
            Err(_) => {
                if let Some(connection) = heard.upgrade() {
                    connection.forget_idle();
                }
                redis::cmd("PING")
            }
        };
        match connection.send_packed_command(&command).await {
            Ok(Value::ServerError(error)) => return Some(error.into()),
            Ok(_) => {}
            Err(error) => return Some(error),
        }
    }
}
