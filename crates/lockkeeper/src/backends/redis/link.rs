//! One server: a connection for commands that all tasks share, made again when it breaks.
//!
//! Easy to get wrong: a call must have its place in the order after its first poll whenever there is a
//! connection, because a release goes before the next acquire only by being sent first. So the current
//! connection is behind a plain mutex, and nothing is awaited before the command is handed over.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, RedisResult, Value};
use tokio::time::Instant;

use super::dial::Dial;
use super::ear::Ear;
use super::error::is_fatal;
use super::pipe::{Pipe, silent};
use super::script::Script;

/// A fence counter that is this far behind the server's clock is set by the clock.
const SLACK: Duration = Duration::from_secs(10);

/// More commands than this wait for a place in the connection's buffer.
const BUFFER: usize = 4096;

/// A call of a script.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) script: &'static Script,
    pub(super) keys: &'a [String],
    pub(super) args: &'a [&'a str],
    /// Whether the first argument is to be the hint by which a script trusts its fence counter.
    pub(super) hinted: bool,
    /// How many replicas are to have the effect.
    pub(super) replicas: u32,
}

/// An answer, and the connection that it came by.
pub(super) struct Reply {
    pub(super) value: Value,
    /// How many replicas have the effect, if that was asked.
    pub(super) replicas: u32,
    line: Arc<Line>,
}

impl Reply {
    /// A fence that was minted for this call: the server's clock is at least there.
    pub(super) fn learn(&self, fence: u64) {
        let _ = self.line.stamp.set((fence, Instant::now()));
    }
}

/// The way to one server.
#[derive(Debug)]
pub(super) struct Link {
    dial: Dial,
    line: Mutex<Option<Arc<Line>>>,
    dialing: tokio::sync::Mutex<()>,
    /// Listens to the same server, and has to look for it again when we do.
    ear: Arc<Ear>,
}

/// One connection, and what is known of the server behind it.
#[derive(Debug)]
pub(super) struct Line {
    pipe: Arc<Pipe>,
    /// The first fence that was given over this connection, and when it came.
    ///
    /// A server that took over, or came back, is only reached by a new connection. So a counter that
    /// is not behind this one was moved by that server itself, and lost nothing in the change.
    stamp: OnceLock<(u64, Instant)>,
    /// The bits of the scripts that the server has seen.
    known: AtomicU32,
}

impl std::fmt::Display for Link {
    /// Where it leads.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.dial)
    }
}

impl Link {
    pub(super) fn new(dial: Dial) -> Self {
        let ear = Arc::new(Ear::new(dial.clone()));
        Self { dial, line: Mutex::default(), dialing: tokio::sync::Mutex::default(), ear }
    }

    /// The ear that listens to the same server.
    pub(super) fn ear(&self) -> &Arc<Ear> {
        &self.ear
    }

    /// Calls a script.
    pub(super) async fn call(&self, call: Call<'_>) -> RedisResult<Reply> {
        let line = match self.current() {
            Some(line) => line,
            // Boxed, as is all that is rare: whatever a call might do, every call has to carry.
            None => Box::pin(self.connect()).await?,
        };
        let answer = line.call(&call).await;
        self.judge(&line, &answer);
        answer.map(|(value, replicas)| Reply { value, replicas, line })
    }

    /// Calls a script on a server that is about to own its slot.
    pub(super) async fn call_asking(&self, call: Call<'_>) -> RedisResult<Reply> {
        let line = self.connect().await?;
        let commands = vec![redis::cmd("ASKING"), line.command(&call, false)];
        let answer =
            line.pipe.send_all(commands).await.and_then(|mut answers| match answers.pop() {
                Some(Value::ServerError(error)) => Err(error.into()),
                Some(value) => Ok(value),
                None => Err(silent()),
            });
        self.judge(&line, &answer);
        answer.map(|value| Reply { value, replicas: 0, line })
    }

    /// Sends any other command.
    pub(super) async fn command(&self, command: &Cmd) -> RedisResult<Value> {
        let line = self.connect().await?;
        let answer = line.pipe.send(command.clone()).await;
        self.judge(&line, &answer);
        answer
    }

    /// Forgets what is known of the server's clock, as after it may have taken over from another.
    pub(super) fn doubt(&self) {
        let mut current = self.lock();
        if let Some(line) = current.as_ref() {
            *current = Some(Arc::new(Line::new(line.pipe.clone())));
        }
    }

    /// Closes the connections.
    pub(super) fn close(&self) {
        *self.lock() = None;
        self.ear.close();
    }

    async fn connect(&self) -> RedisResult<Arc<Line>> {
        if let Some(line) = self.current() {
            return Ok(line);
        }
        let _one_at_a_time = self.dialing.lock().await;
        if let Some(line) = self.current() {
            return Ok(line);
        }
        let timeout = self.dial.timeout();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            // Counted here, so that a call that waits for replicas may take longer.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        let connecting = self.dial.connect(config, ProtocolVersion::RESP2);
        let connection =
            tokio::time::timeout(timeout * 2, connecting).await.map_err(|_| silent())??;
        let line = Arc::new(Line::new(Arc::new(Pipe::new(connection, timeout))));
        *self.lock() = Some(line.clone());
        Ok(line)
    }

    /// Hangs up when an answer shows that the connection is of no more use.
    fn judge<T>(&self, line: &Arc<Line>, answer: &RedisResult<T>) {
        if answer.as_ref().is_err_and(is_fatal)
            && self.lock().take_if(|current| Arc::ptr_eq(current, line)).is_some()
        {
            self.ear.close();
        }
    }

    fn current(&self) -> Option<Arc<Line>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Line>>> {
        self.line.lock().expect("nothing panics under this lock")
    }
}

impl Line {
    fn new(pipe: Arc<Pipe>) -> Self {
        Self { pipe, stamp: OnceLock::new(), known: AtomicU32::new(0) }
    }

    async fn call(&self, call: &Call<'_>) -> RedisResult<(Value, u32)> {
        // The first call of a script brings its text, so that the next one, which may already be on
        // the wire before the answer to this one comes, cannot overtake it.
        let known = self.known.load(Ordering::Relaxed) & call.script.bit != 0;
        let answer = match self.ask(self.command(call, known), call.replicas).await {
            // The server was told to forget its scripts.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.known.store(0, Ordering::Relaxed);
                Box::pin(self.ask(self.command(call, false), call.replicas)).await
            }
            answer => answer,
        };
        if answer.is_ok() && !known {
            self.known.fetch_or(call.script.bit, Ordering::Relaxed);
        }
        answer
    }

    async fn ask(&self, command: Cmd, replicas: u32) -> RedisResult<(Value, u32)> {
        match replicas {
            0 => Ok((self.pipe.send(command).await?, 0)),
            replicas => Box::pin(self.ask_and_wait(command, replicas)).await,
        }
    }

    /// Sends a command, and gives the replicas time to have its effect.
    async fn ask_and_wait(&self, command: Cmd, replicas: u32) -> RedisResult<(Value, u32)> {
        let patience = (self.pipe.timeout() / 2).as_millis();
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(patience as u64);
        match self.pipe.send_all(vec![command, wait]).await?.as_slice() {
            [Value::ServerError(error), _] => Err(error.clone().into()),
            [value, Value::Int(replicas)] => {
                Ok((value.clone(), u32::try_from(*replicas).unwrap_or(0)))
            }
            [_, Value::ServerError(error)] => Err(error.clone().into()),
            _ => Err(silent()),
        }
    }

    fn command(&self, call: &Call<'_>, by_sha: bool) -> Cmd {
        let script = if by_sha { call.script.sha.as_str() } else { call.script.text };
        let size = call.keys.iter().map(String::len).chain(call.args.iter().map(|arg| arg.len()));
        let size: usize = size.sum();
        // The name of the command, the number of keys and the hint take some more.
        let mut command =
            Cmd::with_capacity(call.keys.len() + call.args.len() + 4, size + script.len() + 64);
        command.arg(if by_sha { "EVALSHA" } else { "EVAL" }).arg(script);
        command.arg(call.keys.len());
        for key in call.keys {
            command.arg(key);
        }
        if call.hinted {
            command.arg(self.hint());
        }
        for arg in call.args {
            command.arg(*arg);
        }
        command
    }

    /// A fence counter below this is not to be trusted.
    fn hint(&self) -> u64 {
        match self.stamp.get() {
            // Nothing is known yet: more than any counter, and a number that Lua holds exactly.
            None => 1 << 53,
            Some((fence, at)) => {
                let since = at.elapsed().saturating_sub(SLACK).as_micros();
                fence.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
            }
        }
    }
}
