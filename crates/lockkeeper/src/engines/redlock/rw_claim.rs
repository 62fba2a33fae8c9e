//! A claim's part in a read-write lock at one server.
//!
//! Mutexes are those of the Redis engine. Read-write locks use its data layout, in either `layout`,
//! but not its queue: queues on independent servers would wait for each other. A writer that is
//! blocked by readers leaves a wish instead, which blocks new readers for a moment.
//!
//! Easy to get wrong: a reader's grant does not raise the counter. The server returns its counter,
//! or that it has none yet: choosing one is the quorum's business.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Value};

use crate::engine::{Mode, Released, Request};
use crate::error::{Error, Result};

use crate::engines::redis::Store;
use crate::engines::redis::answer::describe;
use crate::engines::redis::connection::{Call, Reply};
use crate::engines::redis::error::{garbage, sort};
use crate::engines::redis::layout::KeyNames;
use crate::engines::redis::layout::{entry, life, millis, record};
use crate::engines::redis::script::{QUORUM_READ, QUORUM_RW_RELEASE, QUORUM_WRITE, Script};

/// The counter of a server that granted the lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter {
    /// Its value; 0 if there is no counter yet.
    pub(super) fence: u64,
    /// The server's clock, if there is no counter.
    pub(super) clock: u64,
}

/// A part in a read-write lock.
#[derive(Debug)]
pub(super) struct RwClaim {
    store: Arc<Store>,
    request: Request,
    names: KeyNames,
    /// How long a wish lasts.
    patience: Duration,
    /// Whether something of ours may be at the server.
    left: bool,
    /// Whether the lock was certainly held.
    held: bool,
    /// Whether a release was sent whose answer did not arrive.
    released_once: bool,
}

impl RwClaim {
    pub(super) fn new(store: Arc<Store>, request: Request, patience: Duration) -> Self {
        let names = store.names(&request.key);
        Self { store, request, names, patience, left: false, held: false, released_once: false }
    }

    /// A part of unknown state: its release asks the server.
    pub(super) fn unsure(store: Arc<Store>, request: Request) -> Self {
        Self { left: true, ..Self::new(store, request, Duration::ZERO) }
    }

    /// Acquires the lock; with a fence, for a claim that a majority has granted with that fence.
    pub(super) async fn attempt(&mut self, fence: Option<u64>) -> Result<Option<Counter>> {
        let doing = format!("acquire {:?}", self.request.key);
        self.left = true;
        let reply = self.take(fence).await.map_err(|error| sort(&doing, error))?;
        if let Value::Int(minted) = &reply.value {
            let fence = u64::try_from(*minted).map_err(|_| garbage(&doing, &reply.value))?;
            reply.learn(fence);
            self.held = true;
            return Ok(Some(Counter { fence, clock: 0 }));
        }
        let unread = || garbage(&doing, &reply.value);
        let Value::Array(parts) = &reply.value else { return Err(unread()) };
        let number =
            |at: usize| parts.get(at).and_then(|part| i64::from_redis_value_ref(part).ok());
        match (number(0), number(1), number(2)) {
            (Some(1), Some(fence), Some(clock)) => {
                self.held = true;
                Ok(Some(Counter { fence: fence as u64, clock: clock as u64 }))
            }
            (Some(0), Some(wished), _) => {
                (self.left, self.held) = (wished == 1, false);
                Ok(None)
            }
            (Some(-1), ..) => {
                self.left = false;
                let found = parts[1..].iter().map(String::from_redis_value_ref);
                let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|_| unread())?;
                let found = describe(&found, self.request.mode);
                Err(Error::Conflict { key: self.request.key.clone(), found })
            }
            _ => Err(unread()),
        }
    }

    /// Releases whatever is ours.
    pub(super) async fn release(&mut self) -> Result<Released> {
        if !self.left {
            return Ok(Released::Yes);
        }
        let doing = format!("release {:?}", self.request.key);
        let again = std::mem::replace(&mut self.released_once, true);
        let token = self.request.token.to_string();
        let field = entry(&token, &token, self.request.mode);
        let channel = self.names.base_channel(self.request.mode);
        let args = [field.as_str(), &token, &channel, self.store.publish(), &self.names.stem()];
        let reply = self.call(&QUORUM_RW_RELEASE, &args, false).await;
        let reply = reply.map_err(|error| sort(&doing, error))?;
        let Value::Int(found) = reply.value else { return Err(garbage(doing, &reply.value)) };
        (self.left, self.released_once) = (false, false);
        // Only a hold that certainly existed can be gone.
        let gone = std::mem::take(&mut self.held) && found == 0 && !again;
        Ok(if gone { Released::AlreadyGone } else { Released::Yes })
    }

    async fn take(&self, fence: Option<u64>) -> redis::RedisResult<Reply> {
        let request = &self.request;
        let token = request.token.to_string();
        let field = entry(&token, &token, request.mode);
        let (life, ttl, record) =
            (millis(life(request.ttl)), millis(request.ttl), record(request, &field));
        let fence = fence.map_or_else(String::new, |fence| fence.to_string());
        let stem = self.names.stem();
        let start = [life.as_str(), &ttl, &field, &record, &fence];
        if request.mode == Mode::Read {
            return self.call(&QUORUM_READ, &[&start[..], &[&stem]].concat(), false).await;
        }
        let patience = millis(if request.queue { self.patience } else { Duration::ZERO });
        let rest = [token.as_str(), &patience, &stem];
        self.call(&QUORUM_WRITE, &[&start[..], &rest[..]].concat(), true).await
    }

    async fn call(
        &self,
        script: &'static Script,
        args: &[&str],
        hinted: bool,
    ) -> redis::RedisResult<Reply> {
        let names = &self.names;
        let keys = [names.lock().to_owned(), names.state(), names.who(), names.wish()];
        let call = Call { script, keys: &keys, args, hinted, replicas: 0 };
        self.store.servers.call(names.slot(), &call).await
    }
}
