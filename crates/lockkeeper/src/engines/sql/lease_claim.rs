//! A claim on a lease: a row of a table, or a future one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::lease_engine::{Answer, Busy, LeaseAsk, LeaseHeld, LeaseTable, Shared};
use super::sessions::within;
use super::yielding::Asked;
use super::{LOOK_AGAIN, STATEMENT, fence};
use crate::core::clock::Moment;
use crate::engine::{Claim, Grant, Mode, Released, Request};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct LeaseClaim<T: LeaseTable> {
    shared: Arc<Shared<T>>,
    ask: LeaseAsk,
    memory: T::Memory,
    busy: Busy,
}

impl<T: LeaseTable> LeaseClaim<T> {
    pub(super) fn new(shared: Arc<Shared<T>>, request: Request) -> Self {
        let (token, identity) = (request.token.to_string(), request.identity());
        let ask = LeaseAsk { request, token, identity };
        let memory = shared.table.remember(&ask);
        let busy = Busy { pause: LOOK_AGAIN, ahead: i64::MAX, looks: 0 };
        Self { shared, ask, memory, busy }
    }
}

#[async_trait]
impl<T: LeaseTable> Claim for LeaseClaim<T> {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let Request { key, ttl, mode, .. } = &self.ask.request;
        let mut session = self.shared.sessions.of(key).await?;
        let wire = session.wire();
        let asking = self.shared.table.attempt(wire, &self.ask, &mut self.memory, asked);
        let answer = within(STATEMENT, asking).await;
        match session.settle_unless_busy(answer, "acquire a lock")? {
            Some(Answer::Granted { fence: number, slots, held }) => {
                let held = Arc::new(LeaseHeld {
                    of_table: held,
                    shared: self.shared.clone(),
                    asked: Asked {
                        key: key.clone(),
                        fence: number,
                        reads_since: (*mode == Mode::Read).then(|| asked.runtime()),
                    },
                });
                Ok(Some(Grant { slots, held, ..Grant::new(fence(number), *ttl, asked) }))
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
        let Shared { sessions, table } = &*self.shared;
        let key = &self.ask.request.key;
        let mut session = sessions.of(key).await?;
        let releasing = table.release(session.wire(), &self.ask, &self.memory);
        let answer = within(STATEMENT, releasing).await;
        let held = session.settle(answer, "release a lock")?;
        sessions.sweep(key).await;
        match held {
            true => Ok(Released::Yes),
            false => Ok(Released::AlreadyGone),
        }
    }
}
