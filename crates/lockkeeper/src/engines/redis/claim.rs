//! One attempt at one lock, from the first request to the confirmed release.
//!
//! Waiters queue in the store and send a heartbeat every few seconds. A mutex has a queue of its own
//! ([`mutex_queue`](super::mutex_queue)), in which it is handed from one to the next; a fair mutex,
//! read-write locks and semaphores have a queue whose first waiter is woken and asks. With `layout=string`
//! there is neither.
//!
//! Easy to get wrong: the answer to a release that was sent twice. Our field belongs to one claim,
//! so a second release can never release the lock of another client; but it finds nothing, and that
//! is not a loss.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use crate::core::clock::Moment;
use crate::engine::{Claim, Fence, Grant, Lease, Mode, Released, Request};
use crate::error::{Error, Result};
use crate::owner::Token;

use super::Store;
use super::answer::{Answer, Remaining, describe, read_answer};
use super::connection::Reply;
use super::error::{NAME, garbage, sort};
use super::held::RedisHeld;
use super::layout::{KeyNames, entry};
use super::message::Message;
use super::mutex_queue::{Place, heartbeat, probation};
use super::settings::Layout;
use super::subscriber::Subscription;

/// How long a silent waiter keeps its place in the queue.
pub(in crate::engines) const WAITER_LEASE: Duration = Duration::from_secs(6);

/// A claim on a lock in Redis.
#[derive(Debug)]
pub(in crate::engines) struct RedisClaim {
    pub(super) store: Arc<Store>,
    pub(super) request: Request,
    pub(super) names: KeyNames,
    pub(super) stored: StoreState,
    /// What the last attempt learned about when to ask again.
    remaining: Remaining,
    /// Wakes this waiter alone, as the first of the queue.
    pub(super) own: Option<Subscription>,
    /// Wakes every waiter.
    base: Option<Subscription>,
    /// Where it is in the queue of a mutex.
    pub(super) place: Place,
    /// Whether a release was sent whose answer did not arrive.
    released_once: bool,
}

/// What this claim may have left in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreState {
    Nothing,
    /// A call was sent, and its answer did not arrive.
    Unknown,
    Queued,
    Held,
}

impl RedisClaim {
    pub(in crate::engines) fn new(store: Arc<Store>, request: Request) -> Self {
        let names = store.names(&request.key);
        Self {
            store,
            request,
            names,
            stored: StoreState::Nothing,
            remaining: Remaining::default(),
            own: None,
            base: None,
            place: Place::default(),
            released_once: false,
        }
    }

    /// A claim of unknown state: its release asks the server.
    pub(in crate::engines) fn unsure(store: Arc<Store>, request: Request) -> Self {
        Self { stored: StoreState::Unknown, ..Self::new(store, request) }
    }

    /// Whether a release hands the lock to the next waiter.
    fn uses_mutex_queue(&self) -> bool {
        let hash = self.store.settings.layout == Layout::Hash;
        hash && self.request.mode == Mode::Mutex && !self.request.fair
    }

    /// Whether a release wakes the first waiter, which then asks.
    fn uses_queue(&self) -> bool {
        self.store.settings.layout == Layout::Hash && !self.uses_mutex_queue()
    }

    async fn call(&mut self, take: bool) -> redis::RedisResult<Reply> {
        match (self.store.settings.layout, self.uses_mutex_queue()) {
            (Layout::String, _) => self.call_string(take).await,
            (_, true) if take => self.call_mutex().await,
            (_, true) => self.call_mutex_release().await,
            _ => Box::pin(self.call_queued(take)).await,
        }
    }

    /// The channel on which the release of a lock without a queue is published.
    fn simple_channel(&self) -> String {
        match self.store.settings.layout {
            Layout::String => self.names.string_channel(),
            _ => self.names.base_channel(Mode::Mutex),
        }
    }

    /// Whether this client is one of the subscribers that received the release.
    async fn hears_itself(&self, found: i64) -> bool {
        found > 1 && self.store.servers.hears(self.names.slot(), &self.simple_channel()).await
    }

    pub(super) fn entry(&self) -> String {
        entry(&self.request.identity(), &self.request.token.to_string(), self.request.mode)
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} {:?}", self.request.key)
    }

    /// Refuses before any I/O what cannot be stored.
    fn check(&self) -> Result<()> {
        let id = self.request.owner.as_ref().map_or("", |owner| owner.id());
        if matches!(id, "mode" | "limit" | "taken") || id.ends_with(":write") {
            return Err(Error::Config(format!(
                "{id:?} cannot be an owner on Redis: it has a meaning in the layout of the lock"
            )));
        }
        Ok(())
    }

    /// Subscribes to the channels that may wake this waiter.
    async fn listen(&mut self) -> Result<()> {
        let mode = self.request.mode;
        let string = self.store.settings.layout == Layout::String;
        let (in_queue, queued) = (self.uses_mutex_queue(), self.uses_queue() && self.request.queue);
        let own = match in_queue && self.request.queue {
            true => Some((self.mutex_queue_channel(), self.request.token.to_string())),
            false => queued.then(|| (self.names.wake_channel(mode) + &self.entry(), String::new())),
        };
        let base = match (string, mode) {
            (true, _) => Some(self.names.string_channel()),
            (_, Mode::Permits { .. }) => None,
            // The holder does not know of the queue, or the queue is full.
            _ if in_queue && (self.remaining.foreign || self.has_no_place()) => {
                Some(self.names.base_channel(mode))
            }
            _ if in_queue => None,
            // Waiters further behind are woken by the one ahead of them.
            _ if queued && !self.remaining.first => None,
            _ => Some(self.names.base_channel(mode)),
        };
        if base.is_none() {
            self.base = None;
        }
        let base = base.map(|channel| (channel, String::new()));
        let slot = self.names.slot();
        for (subscription, wanted, shared) in
            [(&mut self.own, own, in_queue), (&mut self.base, base, !in_queue)]
        {
            if let Some(Err(why)) = subscription.as_ref().map(Subscription::check) {
                *subscription = None;
                if let Some(error) = why {
                    return Err(sort(format!("wait for {:?}", self.request.key), error));
                }
            }
            if let (None, Some((channel, claim))) = (&subscription, wanted) {
                let sharded = self.store.sharded;
                let heard = self.store.servers.listen(slot, channel, shared, claim, sharded).await;
                *subscription = Some(heard.map_err(|error| sort("listen for a release", error))?);
            }
        }
        Ok(())
    }

    /// Whether it asked for a place in the queue and got none, because the server is full.
    fn has_no_place(&self) -> bool {
        !self.remaining.in_queue && self.own.as_ref().is_some_and(Subscription::is_live)
    }

    /// How long to wait without a message.
    fn patience(&self) -> Duration {
        let longest = match (self.store.settings.layout, self.uses_mutex_queue()) {
            // Foreign clients do not publish their releases.
            (Layout::String, _) => Duration::from_millis(fastrand::u64(50..200)),
            (_, true) => heartbeat(&self.request),
            // Heartbeat while the lease of our place lasts.
            _ => WAITER_LEASE / 3,
        };
        match self.remaining.left {
            Some(left) if self.remaining.first || self.store.settings.layout == Layout::String => {
                longest.min(left + Duration::from_millis(1))
            }
            _ => longest,
        }
    }

    /// Takes a new token, after a release that nobody confirmed: a server that wakes up may run it
    /// after the next attempt. What the old token still holds ends with its lease.
    fn start_over(&mut self) {
        let request = Request { token: Token::fresh(), ..self.request.clone() };
        *self = Self::new(self.store.clone(), request);
    }

    /// Interprets the answer to an attempt. Separate from the attempt, because whatever a future
    /// keeps across an await makes it larger, and the allocator is slower above 1 KiB.
    fn answered(
        &mut self,
        reply: Reply,
        before: StoreState,
        asked: Moment,
    ) -> Result<Option<Grant>> {
        let answer = read_answer(&reply.value)
            .ok_or_else(|| garbage(self.doing("acquire"), &reply.value))?;
        match answer {
            Answer::Busy(remaining) => {
                let queued = self.uses_queue() && self.request.queue;
                if remaining.in_queue {
                    self.place.found(asked);
                }
                self.stored = match queued || self.place.was_asked_for() {
                    true => StoreState::Queued,
                    false => StoreState::Nothing,
                };
                self.remaining = remaining;
                Ok(None)
            }
            Answer::Conflict(found) => {
                self.stored = before;
                let found = describe(&found, self.request.mode);
                Err(Error::Conflict { key: self.request.key.clone(), found })
            }
            Answer::Granted { fence, reserved, slots, minted } => {
                let settings = &self.store.settings;
                if minted && !settings.redisson_fence && reply.replicas >= settings.replicas {
                    reply.learn(fence.saturating_add(reserved.into()));
                }
                let replicas = (settings.replicas > 0).then_some(reply.replicas);
                let wishes = (self.place.keeps && reserved > 0).then(|| self.own.take()).flatten();
                // A wish may have come before the answer.
                let wishes = wishes.filter(|own| own.take_message() != Some(Message::Wish));
                let grant = self.grant(fence, asked, replicas, None, wishes);
                Ok(Some(Grant { slots, reserved, ..grant }))
            }
        }
    }

    /// The grant of a lock that was handed over, if that can be told without asking.
    fn handed_over(&mut self, asked: Moment) -> Option<Grant> {
        let own = self.own.as_ref()?;
        self.place.told(own.take_message());
        // In a Cluster, only sharded channels tell the server whether anybody receives a message. A
        // grant that has to reach replicas is confirmed by asking, and so is one that a message of an
        // earlier place may be about.
        let is_counted = !self.store.servers.is_cluster() || self.store.sharded;
        let counts = own.is_live() && is_counted && self.store.settings.replicas == 0;
        let (fence, since) = self.place.take_handed(&self.request, asked).filter(|_| counts)?;
        Some(self.grant(fence, since, None, Some(probation(&self.request)), None))
    }

    fn grant(
        &mut self,
        fence: u64,
        since: Moment,
        replicas: Option<u32>,
        probation: Option<Duration>,
        wishes: Option<Subscription>,
    ) -> Grant {
        self.stored = StoreState::Held;
        (self.own, self.base) = (None, None);
        let lease = Lease::of(&self.request);
        let wishes = wishes.map(Arc::new);
        let held = RedisHeld { store: self.store.clone(), lease, replicas, probation, wishes };
        Grant { held: Arc::new(held), ..Grant::new(Fence::new(fence), self.request.ttl, since) }
    }
}

#[async_trait]
impl Claim for RedisClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        self.check()?;
        if self.uses_mutex_queue() {
            if let Some(grant) = self.handed_over(asked) {
                return Ok(Some(grant));
            }
            self.listen_at_once().await;
            if self.request.keep {
                self.listen_for_wishes().await;
            }
        }
        let before = std::mem::replace(&mut self.stored, StoreState::Unknown);
        let reply = self.call(true).await.map_err(|error| sort(self.doing("acquire"), error))?;
        let (replicas, wanted) = (reply.replicas, self.store.settings.replicas);
        let grant = self.answered(reply, before, asked)?;
        if grant.is_some() && replicas < wanted {
            if let Err(error) = self.release().await {
                self.start_over();
                return Err(error);
            }
            let few = format!("{replicas} of {wanted} replicas have it");
            return Err(Error::unreachable(NAME, self.doing("acquire"), few));
        }
        Ok(grant)
    }

    async fn wait(&mut self) -> Result<()> {
        let patience = self.patience();
        let told = async {
            self.listen().await?;
            match (&self.own, &self.base) {
                (Some(own), Some(base)) => tokio::select! {
                    () = own.notified() => {}
                    () = base.notified() => {}
                },
                (Some(subscription), None) | (None, Some(subscription)) => {
                    subscription.notified().await
                }
                (None, None) => std::future::pending().await,
            }
            Ok(())
        };
        let told = tokio::time::timeout(patience, told).await.unwrap_or(Ok(()));
        let message = self.own.as_ref().and_then(Subscription::take_message);
        if let Some(pause) = self.place.told(message) {
            tokio::time::sleep(pause).await;
        }
        told
    }

    async fn release(&mut self) -> Result<Released> {
        if self.stored == StoreState::Nothing {
            return Ok(Released::Yes);
        }
        let again = std::mem::replace(&mut self.released_once, true);
        let reply = self.call(false).await.map_err(|error| sort(self.doing("release"), error))?;
        let Value::Int(found) = reply.value else {
            return Err(garbage(self.doing("release"), &reply.value));
        };
        let held = std::mem::replace(&mut self.stored, StoreState::Nothing) == StoreState::Held;
        (self.released_once, self.place) = (false, Place::default());
        // Only a hold that certainly existed can be gone.
        if found == 0 && held && !again {
            return Ok(Released::AlreadyGone);
        }
        // The release of a plain mutex returns the number of subscribers that received it, which
        // may include this client.
        let wanted = found > 1 + i64::from(self.hears_itself(found).await);
        Ok(if wanted { Released::Wanted } else { Released::Yes })
    }
}
