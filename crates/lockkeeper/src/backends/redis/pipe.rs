//! How commands get onto a connection: at once when there are few, many in one write when there are many.
//!
//! A write per command is what most of the time of a busy client and its server goes into. So once
//! several answers are awaited, commands gather for as long as there are tasks that can run, and then
//! leave together.
//!
//! Easy to get wrong: the order. A command must not overtake one that was handed over before it, because
//! a release goes before the next acquire only by being sent first. So a command is sent directly only
//! while nothing gathers, and a batch is on its way before the next one is made.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::{mpsc, oneshot};

use crate::engine::first_poll;

/// With fewer answers awaited than this, a command does not wait for others to join it.
const FEW: usize = 4;

/// The most parcels in one write.
const MOST: usize = 128;

/// A connection that all tasks share.
#[derive(Debug)]
pub(super) struct Pipe {
    connection: MultiplexedConnection,
    timeout: Duration,
    parcels: mpsc::UnboundedSender<Parcel>,
    counts: Arc<Counts>,
}

/// Commands that go together, and who waits for their answers.
struct Parcel {
    commands: Vec<Cmd>,
    answers: oneshot::Sender<RedisResult<Vec<Value>>>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Parcels that are not handed to the connection yet.
    gathering: AtomicUsize,
    /// Calls without an answer.
    open: AtomicUsize,
}

impl Pipe {
    /// Must be called on the runtime that the connection lives on.
    pub(super) fn new(connection: MultiplexedConnection, timeout: Duration) -> Self {
        let (parcels, coming) = mpsc::unbounded_channel();
        let counts = Arc::new(Counts::default());
        tokio::spawn(gather(coming, connection.clone(), timeout, counts.clone()));
        Self { connection, timeout, parcels, counts }
    }

    /// How long an answer may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends one command. It has its place in the order after the first poll.
    pub(super) async fn send(&self, command: Cmd) -> RedisResult<Value> {
        let open = self.counts.open.fetch_add(1, Ordering::Relaxed);
        let _answered = Answered(&self.counts);
        let value = if open < FEW && self.counts.gathering.load(Ordering::Acquire) == 0 {
            let mut connection = self.connection.clone();
            // Boxed, because it is large, and every call that carries it would be.
            within(self.timeout, Box::pin(connection.send_packed_command(&command))).await?
        } else {
            self.join(vec![command]).await?.pop().ok_or_else(silent)?
        };
        match value {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    /// Sends commands that must follow each other. An error of one of them is among the answers.
    pub(super) async fn send_all(&self, commands: Vec<Cmd>) -> RedisResult<Vec<Value>> {
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        let _answered = Answered(&self.counts);
        self.join(commands).await
    }

    async fn join(&self, commands: Vec<Cmd>) -> RedisResult<Vec<Value>> {
        let (answers, coming) = oneshot::channel();
        self.counts.gathering.fetch_add(1, Ordering::Relaxed);
        let _ = self.parcels.send(Parcel { commands, answers });
        // Nobody answers when the runtime of the connection is gone.
        coming.await.unwrap_or_else(|_| Err(silent()))
    }
}

/// Takes a call off the count when it is answered or given up.
struct Answered<'a>(&'a Counts);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task that sends what gathered. Ends with the pipe.
async fn gather(
    mut parcels: mpsc::UnboundedReceiver<Parcel>,
    connection: MultiplexedConnection,
    timeout: Duration,
    counts: Arc<Counts>,
) {
    let mut batch = Vec::new();
    while parcels.recv_many(&mut batch, MOST).await > 0 {
        // Everyone who can run comes first, and may have something to add.
        tokio::task::yield_now().await;
        while batch.len() < MOST
            && let Ok(parcel) = parcels.try_recv()
        {
            batch.push(parcel);
        }
        let count = batch.len();
        let mut work = Box::pin(deliver(connection.clone(), timeout, std::mem::take(&mut batch)));
        if first_poll(&mut work).await.is_pending() {
            tokio::spawn(work);
        }
        counts.gathering.fetch_sub(count, Ordering::Release);
    }
}

/// Sends a batch and hands the answers out.
async fn deliver(mut connection: MultiplexedConnection, timeout: Duration, batch: Vec<Parcel>) {
    let mut pipeline = Pipeline::with_capacity(batch.len());
    let mut waiting = Vec::with_capacity(batch.len());
    for Parcel { commands, answers } in batch {
        waiting.push((commands.len(), answers));
        for command in commands {
            pipeline.add_command(command);
        }
    }
    let sent = connection.send_packed_commands(&pipeline, 0, pipeline.len());
    match within(timeout, sent).await {
        Ok(values) => {
            let mut values = values.into_iter();
            for (count, answers) in waiting {
                let _ = answers.send(Ok(values.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (_, answers) in waiting {
                let _ = answers.send(Err(error.clone()));
            }
        }
    }
}

async fn within<T>(
    timeout: Duration,
    answer: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| Err(silent()))
}

pub(super) fn silent() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time").into()
}
