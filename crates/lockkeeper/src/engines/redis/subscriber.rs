//! Notification of releases: one pub/sub connection per server, for all keys of the client.
//!
//! Listening to a channel returns a [`Subscription`]. It is notified once when the server has
//! confirmed the subscription, so that the waiter checks the lock again: a release before that was
//! missed. It is notified when the connection is gone, for the same reason. A message notifies one
//! subscription per channel; on a channel of this client alone, the one that it is addressed to, which
//! then has the message.
//!
//! Only `PING` shares this connection: a server that migrates a slot away ends its subscriptions
//! unasked, which the client crate would take for the answer to another command. The `PING` is
//! needed because a connection that only receives does not detect that its peer is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult, Value,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

use super::batch::silent;
use super::connector::Connector;
use super::message::Message;

/// A channel without listeners stays subscribed for the next one, for this many messages.
const UNHEARD: u32 = 16;

/// How many channels stay subscribed without listeners, until the connection is next quiet.
const KEPT: usize = 256;

/// How long the connection may be quiet before the server is pinged.
const QUIET: Duration = Duration::from_secs(1);

/// Listens to one server.
#[derive(Debug)]
pub(in crate::engines) struct Subscriber {
    connector: Connector,
    connection: Mutex<Option<Arc<PubSubConnection>>>,
    /// The connection attempt in progress. It continues if the waiters give up, so that a server
    /// that takes longer than their timeout is reached all the same.
    dialing: Mutex<Option<watch::Receiver<Dialed>>>,
}

/// The outcome of connecting, once it is known.
type Dialed = Option<RedisResult<Arc<PubSubConnection>>>;

/// A channel that is subscribed until this is dropped.
#[derive(Debug)]
pub(in crate::engines) struct Subscription {
    connection: Arc<PubSubConnection>,
    channel: String,
    /// Whether other waiters will want the channel too.
    shared: bool,
    listener: Arc<Listener>,
}

/// What a subscription waits with.
#[derive(Debug, Default)]
struct Listener {
    notify: Notify,
    /// The claim whose messages it receives; empty if all messages are alike.
    claim: String,
    message: Mutex<Option<Message>>,
}

/// One pub/sub connection.
#[derive(Debug)]
struct PubSubConnection {
    channels: Mutex<Channels>,
    changes: mpsc::UnboundedSender<Change>,
    /// Of the server that it was made to.
    generation: OnceLock<(Connector, u64)>,
}

#[derive(Debug, Default)]
struct Channels {
    by_name: HashMap<String, Channel>,
    /// Why the connection has ended.
    closed: Option<Option<RedisError>>,
}

#[derive(Debug, Default)]
struct Channel {
    live: bool,
    waiters: Vec<Arc<Listener>>,
    unheard: u32,
}

#[derive(Debug)]
enum Change {
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

impl Subscriber {
    pub(in crate::engines) fn new(connector: Connector) -> Self {
        Self { connector, connection: Mutex::default(), dialing: Mutex::default() }
    }

    /// Starts to listen to a channel. `shared` means that other waiters will want it too; `claim` is
    /// the addressee of the messages to receive, or empty.
    ///
    /// # Cancel safety
    /// May be dropped at any await.
    pub(in crate::engines) async fn listen(
        self: &Arc<Self>,
        channel: String,
        shared: bool,
        claim: String,
        sharded: bool,
    ) -> RedisResult<Subscription> {
        loop {
            let connection = self.connect(sharded).await?;
            if let Some(subscription) = connection.listen(&channel, shared, &claim) {
                return Ok(subscription);
            }
            self.lock().take_if(|current| Arc::ptr_eq(current, &connection));
        }
    }

    /// Listens to a channel that is still subscribed for its next listener. It is not notified before
    /// there is a message.
    pub(in crate::engines) fn listen_at_once(
        &self,
        channel: &str,
        claim: &str,
    ) -> Option<Subscription> {
        let connection = self.current()?;
        let mut channels = connection.lock();
        let found = channels.by_name.get_mut(channel).filter(|channel| channel.live)?;
        let listener = Arc::new(Listener { claim: claim.to_owned(), ..Listener::default() });
        found.waiters.push(listener.clone());
        found.unheard = 0;
        drop(channels);
        Some(Subscription { connection, channel: channel.to_owned(), shared: true, listener })
    }

    /// Whether there is a connection.
    pub(in crate::engines) fn is_connected(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether a channel is subscribed.
    pub(in crate::engines) fn hears(&self, channel: &str) -> bool {
        self.current().is_some_and(|connection| {
            connection.lock().by_name.get(channel).is_some_and(|channel| channel.live)
        })
    }

    /// Closes the connection and notifies all listeners.
    pub(in crate::engines) fn close(&self) {
        let connection = self.lock().take();
        if let Some(connection) = connection {
            connection.close(None);
        }
    }

    async fn connect(self: &Arc<Self>, sharded: bool) -> RedisResult<Arc<PubSubConnection>> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut dialing = self.dialing(sharded);
        let dialed = dialing.wait_for(Option::is_some).await.map(|dialed| dialed.clone());
        // The attempt ends without a result if the runtime is gone.
        dialed.ok().flatten().unwrap_or_else(|| Err(silent()))
    }

    /// The connection attempt in progress, which is started if there is none.
    fn dialing(self: &Arc<Self>, sharded: bool) -> watch::Receiver<Dialed> {
        let mut dialing = self.dialing.lock().expect("nothing panics under this lock");
        if let Some(under_way) = dialing.as_ref().filter(|told| told.has_changed().is_ok()) {
            return under_way.clone();
        }
        let (tell, told) = watch::channel(None);
        let subscriber = self.clone();
        tokio::spawn(async move {
            let dialed = subscriber.dial(sharded).await;
            // Before the result is sent: what is kept here would keep the connection alive.
            *subscriber.dialing.lock().expect("nothing panics under this lock") = None;
            let _ = tell.send(Some(dialed));
        });
        dialing.insert(told).clone()
    }

    async fn dial(&self, sharded: bool) -> RedisResult<Arc<PubSubConnection>> {
        let (changes, queue) = mpsc::unbounded_channel();
        let connection = Arc::new(PubSubConnection {
            channels: Mutex::default(),
            changes,
            generation: OnceLock::new(),
        });
        let heard = Arc::downgrade(&connection);
        let timeout = self.connector.timeout();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout))
            .set_push_sender(move |push: PushInfo| {
                let connection = heard.upgrade().ok_or(SendError)?;
                connection.hear(push);
                Ok::<_, SendError>(())
            });
        let (transport, generation) =
            self.connector.connect(config, ProtocolVersion::RESP3).await?;
        let _ = connection.generation.set((self.connector.clone(), generation));
        let (heard, connector) = (Arc::downgrade(&connection), self.connector.clone());
        tokio::spawn(async move {
            let trouble = tokio::select! {
                trouble = keep_subscribed(transport, queue, &heard, sharded) => trouble,
                () = connector.outdated(generation) => None,
            };
            if let Some(connection) = heard.upgrade() {
                connection.close(trouble);
            }
        });
        *self.lock() = Some(connection.clone());
        Ok(connection)
    }

    fn current(&self) -> Option<Arc<PubSubConnection>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<PubSubConnection>>> {
        self.connection.lock().expect("nothing panics under this lock")
    }
}

impl Subscription {
    /// Whether the connection is alive; if not, why.
    pub(in crate::engines) fn check(&self) -> Result<(), Option<RedisError>> {
        self.connection.lock().closed.clone().map_or(Ok(()), Err)
    }

    /// Whether the server has confirmed it, and still counts: messages that it sends now arrive.
    pub(in crate::engines) fn is_live(&self) -> bool {
        let live = self.connection.lock().by_name.get(&self.channel).is_some_and(|it| it.live);
        live && self.connection.is_current()
    }

    /// The last message to the claim, if it came from a server that still counts.
    pub(super) fn take_message(&self) -> Option<Message> {
        self.listener.inbox().take().filter(|_| self.connection.is_current())
    }

    /// Waits for a notification.
    ///
    /// # Cancel safety
    /// May be dropped at any await; a notification is not lost.
    pub(in crate::engines) async fn notified(&self) {
        self.listener.notify.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.connection.leave(self);
    }
}

impl Listener {
    fn inbox(&self) -> MutexGuard<'_, Option<Message>> {
        self.message.lock().expect("nothing panics under this lock")
    }
}

impl PubSubConnection {
    /// Whether its server was not replaced.
    fn is_current(&self) -> bool {
        self.generation
            .get()
            .is_some_and(|(connector, generation)| connector.is_current(*generation))
    }

    /// `None` if the connection is gone.
    fn listen(self: &Arc<Self>, name: &str, shared: bool, claim: &str) -> Option<Subscription> {
        let listener = Arc::new(Listener { claim: claim.to_owned(), ..Listener::default() });
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

    fn leave(&self, subscription: &Subscription) {
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

    fn hear(&self, push: PushInfo) {
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

    fn close(&self, why: Option<RedisError>) {
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

    fn lock(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().expect("nothing panics under this lock")
    }
}

/// Sends (un)subscribe commands in order. Ends with the connection, and returns why.
async fn keep_subscribed(
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
