//! Notification of releases: one pub/sub connection per server, for all keys of the client.
//!
//! Listening to a channel returns a [`Subscription`]. It is notified once when the server has
//! confirmed the subscription, so that the waiter checks the lock again: a release before that was
//! missed. It is notified when the connection is gone, for the same reason. A message notifies one
//! subscription per channel; on a channel of this client alone, the one that it is addressed to, which
//! then has the message.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use redis::aio::SendError;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisError, RedisResult};
use tokio::sync::{mpsc, watch};

use super::batch::silent;
use super::connector::Connector;
use super::message::Message;
use super::pubsub::{Listener, PubSubConnection, keep_subscribed};

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
    pub(super) connection: Arc<PubSubConnection>,
    pub(super) channel: String,
    /// Whether other waiters will want the channel too.
    pub(super) shared: bool,
    pub(super) listener: Arc<Listener>,
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
        let listener = Arc::new(Listener::of(claim));
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
                connector.disconnected();
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
