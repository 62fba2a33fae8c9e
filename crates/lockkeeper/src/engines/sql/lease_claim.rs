//! A claim on a lease: a row of a table, or a future one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::lease_engine::{Answer, Busy, LeaseAsk, LeaseHeld, LeaseTable, Shared};
use super::sessions::within;
use super::yielding::Asked;
use super::{LOOK_AGAIN, STATEMENT, fence, schema};
use crate::core::clock::Moment;
use crate::engine::{Claim, Grant, Held, Mode, Released, Request};
use crate::error::Result;

const ACQUIRE: &str = "acquire a lock";
const RELEASE: &str = "release a lock";

#[derive(Debug)]
pub(super) struct LeaseClaim<T: LeaseTable> {
    shared: Arc<Shared<T>>,
    ask: Arc<LeaseAsk>,
    memory: T::Memory,
    busy: Busy,
}

impl<T: LeaseTable> LeaseClaim<T> {
    pub(super) fn new(shared: Arc<Shared<T>>, request: Request) -> Self {
        let (token, identity) = (request.token.to_string(), request.identity());
        let ask = Arc::new(LeaseAsk { request, token, identity });
        let memory = shared.table.remember(&ask);
        let busy = Busy { pause: LOOK_AGAIN, ahead: i64::MAX, looks: 0 };
        Self { shared, ask, memory, busy }
    }

    fn grant(&self, number: i64, slots: Vec<u32>, held: Arc<dyn Held>, asked: Moment) -> Grant {
        let Request { key, ttl, mode, .. } = &self.ask.request;
        let held = Arc::new(LeaseHeld {
            of_table: held,
            shared: self.shared.clone(),
            asked: Asked {
                key: key.clone(),
                fence: number,
                reads_since: (*mode == Mode::Read).then(|| asked.runtime()),
            },
        });
        Grant { slots, held, ..Grant::new(fence(number), *ttl, asked) }
    }
}

#[async_trait]
impl<T: LeaseTable> Claim for LeaseClaim<T> {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let shared = self.shared.clone();
        schema::ensure(&shared.sessions).await?;
        let mut unanswered = None;
        if shared.table.starts(&self.ask, &mut self.memory) {
            let asking = shared.together(&shared.takes, &self.ask, ACQUIRE);
            match asking.await? {
                (Some(fence), _) => {
                    let held = shared.table.took(&mut self.memory);
                    return Ok(Some(self.grant(fence, Vec::new(), held, asked)));
                }
                (None, session) => unanswered = session,
            }
        }
        let mut session = match unanswered {
            Some(session) => session,
            None => shared.sessions.of(&self.ask.request.key).await?,
        };
        let asking = shared.table.attempt(session.wire(), &self.ask, &mut self.memory, asked);
        let answer = within(STATEMENT, asking).await;
        match session.settle_unless_busy(answer, ACQUIRE)? {
            Some(Answer::Granted { fence, slots, held }) => {
                Ok(Some(self.grant(fence, slots, held, asked)))
            }
            Some(Answer::Clash(found)) => Err(self.ask.request.conflict(found)),
            Some(Answer::Busy { pause, ahead }) => {
                let looks = if ahead < self.busy.ahead { 0 } else { self.busy.looks + 1 };
                let pause = pause.and_then(|micros| u64::try_from(micros).ok());
                let pause = pause.map_or(LOOK_AGAIN, Duration::from_micros).min(LOOK_AGAIN);
                self.busy = Busy { pause, ahead, looks };
                Ok(None)
            }
            // We have already waited for a foreign transaction, so we ask again at once.
            None => {
                (self.busy.pause, self.busy.looks) = (Duration::ZERO, 0);
                Ok(None)
            }
        }
    }

    async fn wait(&mut self) -> Result<()> {
        self.shared.table.wait(&self.memory, &self.busy).await
    }

    async fn release(&mut self) -> Result<Released> {
        let (shared, key) = (&*self.shared, &self.ask.request.key);
        if !schema::exist(&shared.sessions).await? {
            return Ok(Released::AlreadyGone);
        }
        let mut unanswered = None;
        let mut freed = None;
        if shared.table.is_alone(&self.memory) {
            let releasing = shared.together(&shared.frees, &self.ask, RELEASE);
            (freed, unanswered) = releasing.await?;
        }
        let held = match freed {
            Some(held) => held,
            None => {
                let mut session = match unanswered {
                    Some(session) => session,
                    None => shared.sessions.of(key).await?,
                };
                let releasing = shared.table.release(session.wire(), &self.ask, &self.memory);
                let answer = within(STATEMENT, releasing).await;
                session.settle(answer, RELEASE)?
            }
        };
        shared.sessions.sweep(key).await;
        match held {
            true => Ok(Released::Yes),
            false => Ok(Released::AlreadyGone),
        }
    }
}
