//! How commands get onto a connection: each at once if there are few, batched into one write if
//! there are many.
//!
//! A busy client and its server spend most of their time on one write per command. So once several
//! answers are outstanding, commands are collected as long as other tasks can run, and then sent
//! together.
//!
//! Calls that wait for replicas are always batched, and one `WAIT` at the end of a batch covers all
//! of them. The server answers nothing else on this connection during the `WAIT`, so the next batch
//! is sent only after it, with all commands that arrived meanwhile. So a call waits for at most two
//! answers of the replicas, however many calls there are.
//!
//! Easy to get wrong: the order. A command must not overtake one that was submitted before it,
//! because a release precedes the next acquire only by being sent first. So a command is sent
//! directly only while nothing is collected, and a batch is sent before the next one is built.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::{mpsc, oneshot};

use crate::core::acquire::first_poll;

/// With fewer outstanding answers than this, a command does not wait for others to join it.
const FEW: usize = 4;

/// The most calls in one write.
const MOST: usize = 128;

/// A connection that all tasks share.
#[derive(Debug)]
pub(in crate::engines) struct Batcher {
    connection: MultiplexedConnection,
    timeout: Duration,
    calls: mpsc::UnboundedSender<PendingCall>,
    counts: Arc<Counts>,
}

/// Commands that belong together, and the receiver of their answers.
struct PendingCall {
    commands: Vec<Cmd>,
    /// How many replicas must have applied them.
    replicas: u32,
    answers: oneshot::Sender<RedisResult<Answers>>,
}

/// The answers to all commands of a call, and how many replicas have applied them.
type Answers = (Vec<Value>, u32);

#[derive(Debug, Default)]
struct Counts {
    /// Calls that were not yet handed to the connection.
    gathering: AtomicUsize,
    /// Calls without an answer.
    open: AtomicUsize,
}

impl Batcher {
    /// Must be called on the runtime that drives the connection.
    pub(in crate::engines) fn new(connection: MultiplexedConnection, timeout: Duration) -> Self {
        let (calls, coming) = mpsc::unbounded_channel();
        let counts = Arc::new(Counts::default());
        tokio::spawn(gather(coming, connection.clone(), timeout, counts.clone()));
        Self { connection, timeout, calls, counts }
    }

    /// Sends one command. Its place in the order is fixed after the first poll.
    pub(in crate::engines) async fn send(&self, command: Cmd) -> RedisResult<Value> {
        let open = self.counts.open.fetch_add(1, Ordering::Relaxed);
        let _answered = Answered(&self.counts);
        let value = if open < FEW && self.counts.gathering.load(Ordering::Acquire) == 0 {
            let mut connection = self.connection.clone();
            // Boxed, because it is large and would enlarge every future that contains it.
            let sent = Box::pin(async move { connection.send_packed_command(&command).await });
            within(self.timeout, sent).await?
        } else {
            self.join(vec![command], 0).await?.0.pop().ok_or_else(silent)?
        };
        match value {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    /// Sends commands that must follow each other directly, and waits for this many replicas to
    /// apply them. The error of a single command is among the answers.
    pub(in crate::engines) async fn send_all(
        &self,
        commands: Vec<Cmd>,
        replicas: u32,
    ) -> RedisResult<Answers> {
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        let _answered = Answered(&self.counts);
        self.join(commands, replicas).await
    }

    async fn join(&self, commands: Vec<Cmd>, replicas: u32) -> RedisResult<Answers> {
        let (answers, coming) = oneshot::channel();
        self.counts.gathering.fetch_add(1, Ordering::Relaxed);
        let _ = self.calls.send(PendingCall { commands, replicas, answers });
        // There is no answer if the runtime of the connection is gone.
        coming.await.unwrap_or_else(|_| Err(silent()))
    }
}

/// Decrements the count when a call is answered or dropped.
struct Answered<'a>(&'a Counts);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task that sends collected commands. Ends with the connection.
async fn gather(
    mut calls: mpsc::UnboundedReceiver<PendingCall>,
    connection: MultiplexedConnection,
    timeout: Duration,
    counts: Arc<Counts>,
) {
    let mut batch = Vec::new();
    while calls.recv_many(&mut batch, MOST).await > 0 {
        // All runnable tasks run first, and may add commands.
        tokio::task::yield_now().await;
        while batch.len() < MOST
            && let Ok(call) = calls.try_recv()
        {
            batch.push(call);
        }
        let count = batch.len();
        let waits = batch.iter().any(|call| call.replicas > 0);
        let mut work = Box::pin(deliver(connection.clone(), timeout, std::mem::take(&mut batch)));
        let first = first_poll(&mut work).await;
        counts.gathering.fetch_sub(count, Ordering::Release);
        let answered = match first {
            Poll::Ready(answered) => answered,
            Poll::Pending if waits => work.await,
            Poll::Pending => {
                tokio::spawn(work);
                true
            }
        };
        // Calls that wait behind a server that does not answer would wait as long again.
        if waits && !answered {
            return;
        }
    }
}

/// Sends a batch and distributes the answers. Returns whether there were any.
async fn deliver(
    mut connection: MultiplexedConnection,
    timeout: Duration,
    batch: Vec<PendingCall>,
) -> bool {
    let mut pipeline = Pipeline::with_capacity(batch.len() + 1);
    let mut waiting = Vec::with_capacity(batch.len());
    let mut wanted = 0;
    for PendingCall { commands, replicas, answers } in batch {
        wanted = wanted.max(replicas);
        waiting.push((commands.len(), answers));
        for command in commands {
            pipeline.add_command(command);
        }
    }
    if wanted > 0 {
        let patience = (timeout / 2).as_millis();
        pipeline.cmd("WAIT").arg(wanted).arg(u64::try_from(patience).unwrap_or(u64::MAX));
    }
    let sent = connection.send_packed_commands(&pipeline, 0, pipeline.len());
    let answer = within(timeout, sent).await.and_then(|mut values| match wanted {
        0 => Ok((values, 0)),
        _ => match values.pop() {
            Some(Value::Int(replicas)) => Ok((values, u32::try_from(replicas).unwrap_or(0))),
            Some(Value::ServerError(error)) => Err(error.into()),
            _ => Err(silent()),
        },
    });
    match answer {
        Ok((values, replicas)) => {
            let mut values = values.into_iter();
            for (count, answers) in waiting {
                let _ = answers.send(Ok((values.by_ref().take(count).collect(), replicas)));
            }
            true
        }
        Err(error) => {
            for (_, answers) in waiting {
                let _ = answers.send(Err(error.clone()));
            }
            false
        }
    }
}

async fn within<T>(
    timeout: Duration,
    answer: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| Err(silent()))
}

pub(in crate::engines) fn silent() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time").into()
}
