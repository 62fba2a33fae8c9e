//! A claim with its own connection.
//!
//! It waits blocked in the server, and holds as long as the connection lives. An answer that was
//! waited for may be old: it counts from before the question, or, after a longer wait, is confirmed on
//! the same connection before it counts.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::sleep;

use super::error::failed;
use super::session_engine::{Answered, Dedicated, Kept, SessionHeld, Shared};
use super::session_lock::{Ask, Marked, SessionLock, Taken};
use super::sessions::{Session, within};
use super::yielding::Asked;
use super::{GUARDED, STATEMENT, fence};
use crate::core::clock::Moment;
use crate::engine::{Claim, Grant, Mode, Released, Request};
use crate::error::{Error, Result};
use crate::key::Key;

/// One connection on its way to a lock.
pub(super) struct SessionClaim<H: SessionLock> {
    shared: Arc<Shared<H>>,
    request: Request,
    ask: Ask,
    state: State<H>,
}

enum State<H: SessionLock> {
    /// Without a connection.
    Idle,
    /// Blocked in the server. Kept here, so that nothing is lost when a wait is dropped.
    Waiting {
        session: Session,
        blocked: Blocked<H>,
        /// Before it was sent.
        asked: Moment,
    },
    /// The server answered a question that was sent after this moment.
    Woken(Answered<H>, Moment),
    /// Granted, but a transaction that the previous fence guards has not ended.
    Guarded {
        connection: Dedicated<H::Wire>,
        looks: u32,
    },
    Held {
        kept: Arc<Kept<H>>,
        fence: i64,
    },
}

type Blocked<H> = Pin<Box<dyn Future<Output = Answered<H>> + Send>>;

impl<H: SessionLock> SessionClaim<H> {
    pub(super) fn new(shared: Arc<Shared<H>>, request: Request, ask: Ask) -> Self {
        Self { shared, request, ask, state: State::Idle }
    }

    /// Sends the request that waits in the server.
    async fn block(&mut self, mut connection: Dedicated<H::Wire>, asked: Moment) {
        let (session, ask) = (connection.session.clone(), self.ask.clone());
        let mut blocked: Blocked<H> = Box::pin(async move {
            let answer = H::take(&mut connection.wire, &ask, true).await;
            (connection, answer)
        });
        self.state = match poll_fn(|cx| Poll::Ready(blocked.as_mut().poll(cx))).await {
            Poll::Ready(answered) => State::Woken(answered, asked),
            Poll::Pending => State::Waiting { session, blocked, asked },
        };
    }

    /// An answer that was waited for may be old: if we were stopped meanwhile, the server may have
    /// ended the silent connection and granted the lock to the next one. It does not before the ttl
    /// is over, so a recent question needs no other.
    async fn confirm(
        &mut self,
        connection: Dedicated<H::Wire>,
        fence: i64,
        since: Moment,
        asked: Moment,
    ) -> Result<Grant> {
        let connection = AsyncMutex::new(Some(connection));
        let kept = Arc::new(Kept { ask: self.ask.clone(), connection });
        self.state = State::Held { kept: kept.clone(), fence };
        if asked.since(&since) <= self.ask.ttl / 6 {
            return Ok(self.grant(kept, fence, since));
        }
        if !kept.beat().await {
            self.state = State::Idle;
            return Err(ended::<H>());
        }
        Ok(self.grant(kept, fence, asked))
    }

    fn grant(&self, kept: Arc<Kept<H>>, number: i64, asked: Moment) -> Grant {
        Grant {
            fence: fence(number),
            slots: Vec::new(),
            ttl: self.request.ttl,
            since: asked,
            held: Arc::new(SessionHeld {
                kept,
                shared: self.shared.clone(),
                asked: Asked {
                    key: self.request.key.clone(),
                    fence: number,
                    reads_since: (self.request.mode == Mode::Read).then(|| asked.runtime()),
                },
            }),
            reserved: 0,
        }
    }
}

#[async_trait]
impl<H: SessionLock> Claim for SessionClaim<H> {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        if let State::Held { kept, fence } = &self.state {
            let (kept, fence) = (kept.clone(), *fence);
            if kept.beat().await {
                return Ok(Some(self.grant(kept, fence, asked)));
            }
            self.state = State::Idle;
        }
        if let State::Waiting { blocked, asked, .. } = &mut self.state {
            match poll_fn(|cx| Poll::Ready(blocked.as_mut().poll(cx))).await {
                Poll::Pending => return Ok(None),
                Poll::Ready(answered) => self.state = State::Woken(answered, *asked),
            }
        }
        let (answered, since, looks) = match std::mem::replace(&mut self.state, State::Idle) {
            State::Woken(answered, since) => (answered, since, 0),
            // A heartbeat to the server, so that it does not end the session.
            State::Guarded { mut connection, looks } => {
                match within(STATEMENT, H::beat(&mut connection.wire, &self.ask)).await {
                    Ok(true) => ((connection, Ok(Taken::Unfenced)), asked, looks + 1),
                    Ok(false) => return Err(ended::<H>()),
                    Err(error) => return Err(sort::<H>(&self.ask.key, error)),
                }
            }
            _ => match self.shared.contended(&self.ask).filter(|_| self.request.queue) {
                Some(connection) => {
                    self.block(connection, asked).await;
                    return Ok(None);
                }
                None => (self.shared.take(&self.ask).await?, asked, 0),
            },
        };
        match answered {
            (connection, Ok(Taken::Fenced(fence))) => {
                self.confirm(connection, fence, since, asked).await.map(Some)
            }
            // If no fence can be committed, the connection is closed, and the lock with it.
            (mut connection, Ok(Taken::Unfenced)) => {
                match H::mark(&self.shared.sessions, &mut connection, &self.ask).await? {
                    Marked::Fenced(fence) => {
                        self.confirm(connection, fence, since, asked).await.map(Some)
                    }
                    Marked::Guarded if self.request.queue => {
                        self.state = State::Guarded { connection, looks };
                        Ok(None)
                    }
                    Marked::Guarded => {
                        let giving = H::give_back(&mut connection.wire, &self.ask);
                        if within(STATEMENT, giving).await.is_ok() {
                            self.shared.spare(connection);
                        }
                        Ok(None)
                    }
                    Marked::Gone => Err(ended::<H>()),
                }
            }
            (mut connection, Ok(Taken::Busy)) if self.request.queue => {
                connection.expect_to_wait(&self.ask.key);
                self.block(connection, asked).await;
                Ok(None)
            }
            (connection, Ok(Taken::Busy)) => {
                self.shared.spare(connection);
                Ok(None)
            }
            // The connection is closed with this, and whatever it may have acquired with it.
            (_, Err(error)) => Err(sort::<H>(&self.ask.key, error)),
        }
    }

    async fn wait(&mut self) -> Result<()> {
        match &mut self.state {
            State::Waiting { blocked, asked, .. } => {
                let (answered, asked) = (blocked.await, *asked);
                self.state = State::Woken(answered, asked);
            }
            State::Guarded { looks, .. } => sleep(GUARDED.delay(*looks)).await,
            _ => {}
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => Ok(Released::Yes),
            // Closing the connection is enough for the server, but it may take a second to notice.
            State::Waiting { session, blocked, .. } => {
                let ended = self.shared.end(&session).await;
                drop(blocked);
                ended.map(|()| Released::Yes)
            }
            State::Woken((connection, _), _) | State::Guarded { connection, .. } => {
                let ended = self.shared.end(&connection.session).await;
                drop(connection);
                ended.map(|()| Released::Yes)
            }
            State::Held { kept, .. } => {
                let taken = kept.connection.lock().await.take();
                let Some(mut connection) = taken else { return Ok(Released::AlreadyGone) };
                let giving = H::give_back(&mut connection.wire, &self.ask);
                match within(STATEMENT, giving).await {
                    Ok(true) => {
                        self.shared.spare(connection);
                        self.shared.sessions.sweep(&self.ask.key).await;
                        Ok(Released::Yes)
                    }
                    // The connection ended before we asked, and its lock with it.
                    Ok(false) | Err(sqlx::Error::Database(_)) => Ok(Released::AlreadyGone),
                    Err(sqlx::Error::Io(error)) if error.kind() != std::io::ErrorKind::TimedOut => {
                        Ok(Released::AlreadyGone)
                    }
                    // Closed now: the server frees the lock when it notices that.
                    Err(error) => Err(failed::<H::Wire>(error, "release a lock")),
                }
            }
        }
    }
}

fn ended<H: SessionLock>() -> Error {
    let engine = H::GUARANTEES.engine;
    Error::unreachable(engine, "acquire a lock", "its connection ended meanwhile")
}

/// Two keys with the same number is the one refusal that a caller can act on.
fn sort<H: SessionLock>(key: &Key, error: sqlx::Error) -> Error {
    match error.as_database_error() {
        Some(database) if database.is_unique_violation() => Error::Conflict {
            key: key.clone(),
            found: "another key has the same number on this server; choose another name".into(),
        },
        _ => failed::<H::Wire>(error, "acquire a lock"),
    }
}

impl<H: SessionLock> fmt::Debug for SessionClaim<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionClaim").field("request", &self.request).finish_non_exhaustive()
    }
}
