//! A claim's place in the queue of a mutex, and the calls of the mutex.
//!
//! A release hands the lock to the first claim in the queue, and tells it so in one message. The claim did
//! not ask at that moment, so it must not count its validity from the message: it counts from before its
//! last answered attempt was sent, which was certainly before the hand-over. The message names that attempt;
//! if it names another, or too much of the short first lease has passed, the claim asks, and the server
//! recognises its own grant.

use std::time::Duration;

use crate::core::clock::Moment;
use crate::engine::{Mode, Request};

use super::claim::{RedisClaim, StoreState, WAITER_LEASE};
use super::connection::{Call, Reply};
use super::layout::{life, millis, record};
use super::message::{HandOver, Message};
use super::script::{self, Script};
use super::subscriber::Subscription;

/// The shortest time between two heartbeats.
const SHORTEST_BEAT: Duration = Duration::from_millis(100);

/// How long the first in the queue lets clients outside it go first.
const LATER: Duration = Duration::from_millis(10);

/// How long a claim whose lock may be kept waits for its subscription.
const SUBSCRIBED_WITHIN: Duration = Duration::from_secs(2);

/// How many characters of a claim name its client.
const CLIENT: usize = 36;

/// A claim's place in the queue.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// How many attempts asked for a place.
    beats: u64,
    /// The last attempt that found it in the queue, and the moment from before it was sent.
    answered: Option<(u64, Moment)>,
    /// The record of the waiter.
    record: String,
    handed: Option<HandOver>,
    /// How many times in a row the lock was handed over until it came to us.
    passes: u32,
    /// Whether the last attempt announced that the lock may be kept.
    pub(super) keeps: bool,
}

impl Place {
    /// Whether an attempt may have put it into the queue.
    pub(super) fn was_asked_for(&self) -> bool {
        self.beats > 0
    }

    /// An attempt found the claim in the queue.
    pub(super) fn found(&mut self, asked: Moment) {
        self.answered = Some((self.beats, asked));
    }

    /// Reads a message. `Later` means that others go first.
    pub(super) fn told(&mut self, message: Option<Message>) -> Option<Duration> {
        match message {
            Some(Message::Granted(handed)) => self.handed = Some(handed),
            Some(Message::Later) => return Some(LATER),
            Some(Message::Ask | Message::Wish) | None => {}
        }
        None
    }

    /// The fence of a lock that was handed over, and the moment from which its first lease counts, if
    /// that can be told without asking.
    pub(super) fn take_handed(
        &mut self,
        request: &Request,
        asked: Moment,
    ) -> Option<(u64, Moment)> {
        let handed = self.handed.take()?;
        self.passes = handed.passes;
        let (beat, since) = self.answered?;
        let young = asked.since(&since) <= probation(request) / 2;
        (beat == handed.beat && young && !request.fixed).then_some((handed.fence, since))
    }
}

/// How long a lock is handed over for: three heartbeats, or the ttl if that is shorter.
pub(super) fn probation(request: &Request) -> Duration {
    request.ttl.min(WAITER_LEASE)
}

/// How often a waiter in the queue asks.
pub(super) fn heartbeat(request: &Request) -> Duration {
    (probation(request) / 3).max(SHORTEST_BEAT)
}

impl RedisClaim {
    /// The channel on which this client is told about its claims in the queue.
    pub(super) fn mutex_queue_channel(&self) -> String {
        let mut channel = self.names.mutex_queue_channel();
        channel.push_str(&self.request.token.to_string()[..CLIENT]);
        channel
    }

    /// Listens before the first attempt, if that needs no request: then the attempt can join the queue.
    pub(super) async fn listen_at_once(&mut self) {
        if self.own.is_none() && self.request.queue {
            let (slot, servers) = (self.names.slot(), &self.store.servers);
            if servers.may_listen() {
                let token = self.request.token.to_string();
                self.own = servers.listen_at_once(slot, &self.mutex_queue_channel(), &token).await;
            }
        }
    }

    /// Listens for the wishes of others before the lock can be kept: from the grant on, none is
    /// missed. If that fails, the lock is not kept.
    pub(super) async fn listen_for_wishes(&mut self) {
        if self.own.as_ref().is_some_and(Subscription::is_live) {
            return;
        }
        let (channel, token) = (self.mutex_queue_channel(), self.request.token.to_string());
        let (slot, servers) = (self.names.slot(), &self.store.servers);
        let live = async {
            let own = servers.listen(slot, channel, true, token, self.store.sharded).await.ok()?;
            while !own.is_live() {
                own.check().ok()?;
                own.notified().await;
            }
            Some(own)
        };
        self.own = tokio::time::timeout(SUBSCRIBED_WITHIN, live).await.ok().flatten();
    }

    /// Acquires the mutex, or asks for a place in its queue.
    pub(super) async fn call_mutex(&mut self) -> redis::RedisResult<Reply> {
        let listens = self.own.as_ref().is_some_and(Subscription::is_live);
        self.place.keeps = self.request.keep && listens;
        let join = self.request.queue && listens;
        let joins = match (join, self.place.beats) {
            (false, _) => "0",
            (true, 0) => "1",
            (true, _) => "2",
        };
        let (request, settings) = (&self.request, &self.store.settings);
        let (token, identity) = (request.token.to_string(), request.identity());
        let mut record = record(request, &identity);
        if self.place.keeps {
            record.replace_range(..Mode::Mutex.kind().len(), "keep");
        }
        let (ttl, life) = (millis(request.ttl), millis(life(request.ttl)));
        let mut place = String::new();
        if join {
            if self.place.beats == 0 {
                self.place.record.clone_from(&record);
            }
            self.place.beats += 1;
            let (beat, lasts) = (self.place.beats, millis(probation(request)));
            place = format!("{beat}\t{lasts}\t{}", self.place.record);
        }
        let (publish, lease) = (self.store.publish(), millis(WAITER_LEASE));
        let queue = format!("{joins}\t{publish}\t{lease}\t{place}");
        let mut args = vec![life.as_str(), &ttl, &token, &record, &queue];
        let mut keys = Vec::with_capacity(5);
        keys.extend([self.names.lock().to_owned(), self.names.state(), self.names.mutex_queue()]);
        let may_reserve = request.reserve > 0 && self.store.servers.is_single_server();
        let reserve = may_reserve.then(|| request.reserve.to_string());
        let script: &'static Script = match request.owner {
            Some(_) => {
                args.push(&identity);
                &script::OWNED_MUTEX
            }
            None => {
                args.extend(reserve.as_deref());
                &script::MUTEX
            }
        };
        keys.extend(self.last_keys());
        let replicas = settings.replicas;
        let call = Call { script, keys: &keys, args: &args, hinted: true, replicas };
        self.store.servers.call(self.names.slot(), &call).await
    }

    /// Releases the mutex, or leaves its queue.
    pub(super) async fn call_mutex_release(&self) -> redis::RedisResult<Reply> {
        let (request, names) = (&self.request, &self.names);
        let (token, identity) = (request.token.to_string(), request.identity());
        let (life, base) = (millis(life(request.ttl)), names.base_channel(Mode::Mutex));
        let passes = self.place.passes.to_string();
        let in_queue = if self.stored == StoreState::Held { "0" } else { "1" };
        let publish = self.store.publish();
        let mut args = vec![token.as_str(), publish, &base, &passes, in_queue, &life];
        let script: &'static Script = match request.owner {
            Some(_) => {
                args.push(&identity);
                &script::OWNED_MUTEX_RELEASE
            }
            None => &script::MUTEX_RELEASE,
        };
        let mut keys = Vec::with_capacity(5);
        // What is told to a waiter must have been written: half a script would make two holders.
        keys.extend([names.lock().to_owned(), names.mutex_queue(), names.absent()]);
        keys.extend(self.last_keys());
        let call = Call { script, keys: &keys, args: &args, hinted: true, replicas: 0 };
        self.store.servers.call(names.slot(), &call).await
    }

    /// The keys that not every mutex has.
    fn last_keys(&self) -> impl Iterator<Item = String> {
        let (names, settings) = (&self.names, &self.store.settings);
        let claims = self.request.owner.as_ref().map(|_| names.claims());
        claims.into_iter().chain(settings.redisson_fence.then(|| names.token()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::clock::Clock;
    use crate::key::Key;
    use crate::owner::Token;

    const TTL: Duration = Duration::from_secs(30);

    fn request() -> Request {
        Request::new(Key::new("key").unwrap(), Token::fresh(), Mode::Mutex, TTL)
    }

    /// A claim whose second attempt was answered at this moment, and that was handed the lock after an
    /// attempt of this number.
    fn handed(since: Moment, beat: u64) -> Place {
        let mut place = Place { beats: 2, ..Place::default() };
        place.found(since);
        place.told(Some(Message::Granted(HandOver { beat, fence: 7, passes: 3 })));
        place
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_handed_over_counts_from_the_last_answered_attempt_and_not_from_the_message() {
        let since = Clock::Runtime.now();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut place = handed(since, 2);
        let (fence, from) = place.take_handed(&request(), Clock::Runtime.now()).unwrap();
        assert_eq!((fence, place.passes), (7, 3));
        assert_eq!(from.since(&since), Duration::ZERO);
        assert!(place.take_handed(&request(), since).is_none(), "it is taken once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_late_or_about_another_attempt_is_not_believed() {
        let since = Clock::Runtime.now();
        assert!(handed(since, 2).take_handed(&request(), since).is_some());
        assert!(handed(since, 1).take_handed(&request(), since).is_none(), "of an earlier place");
        assert!(handed(since, 3).take_handed(&request(), since).is_none(), "not answered yet");
        let fixed = Request { fixed: true, ..request() };
        assert!(handed(since, 2).take_handed(&fixed, since).is_none(), "it is never renewed");
        tokio::time::sleep(WAITER_LEASE / 2 + Duration::from_millis(1)).await;
        assert!(handed(since, 2).take_handed(&request(), Clock::Runtime.now()).is_none(), "old");
    }
}
