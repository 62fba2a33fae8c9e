//! The protocol: enter the queue, check whose turn it is, wait for the entry ahead, confirm, leave.

use async_trait::async_trait;

use super::{Entered, Queue, Turn};
use crate::core::clock::Moment;
use crate::engine::{Claim, Grant, Released, Request};
use crate::error::{Error, Result};

/// How often an entry that disappears is created again within one attempt.
const TRIES: usize = 4;

/// A claim whose place in the queue is kept by the store.
#[derive(Debug)]
pub(in crate::engines) struct QueuedClaim<Q: Queue> {
    pub(in crate::engines) queue: Q,
    /// Whether it stays in the queue if it is not granted; see [`Request::queue`].
    stays: bool,
    /// What the last read of the queue said to wait for. It outlives a dropped wait.
    ahead: Option<Q::Ahead>,
}

impl<Q: Queue> QueuedClaim<Q> {
    pub(in crate::engines) fn over(queue: Q, request: &Request) -> Self {
        Self { queue, stays: request.queue, ahead: None }
    }

    async fn ask(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let mut tries = 0;
        while tries < TRIES {
            let view = match self.queue.enter(asked).await? {
                Entered::Queued(view) => view,
                Entered::Busy => return Ok(None),
                Entered::Gone => {
                    tries += 1;
                    continue;
                }
            };
            match self.queue.turn(&view).await? {
                Turn::In => {
                    if let Some(grant) = self.queue.confirm(view, asked).await? {
                        return Ok(Some(grant));
                    }
                }
                Turn::Behind(ahead) => {
                    match self.stays {
                        true => self.ahead = Some(ahead),
                        false => drop(self.queue.leave().await?),
                    }
                    return Ok(None);
                }
            }
        }
        let reason = "its entry is removed as soon as it is created";
        Err(Error::unreachable(Q::ENGINE, "enter the queue", reason))
    }
}

#[async_trait]
impl<Q: Queue> Claim for QueuedClaim<Q> {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        if let Some(ahead) = &self.ahead
            && self.queue.is_unchanged(ahead).await
        {
            return Ok(None);
        }
        self.ahead = None;
        let answer = self.ask(asked).await;
        if let Err(Error::Conflict { .. }) = &answer {
            // A claim that is refused must not block others, not even for a moment.
            self.queue.leave().await?;
        }
        answer
    }

    async fn wait(&mut self) -> Result<()> {
        if let Some(ahead) = &mut self.ahead {
            self.queue.wait(ahead).await?;
            self.ahead = None;
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        self.ahead = None;
        self.queue.leave().await
    }
}
