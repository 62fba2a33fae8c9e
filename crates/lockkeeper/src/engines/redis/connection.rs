//! One server: a connection for commands that all tasks share, reconnected when it breaks.
//!
//! Easy to get wrong: if there is a connection, a call must have its place in the order after its
//! first poll, because a release precedes the next acquire only by being sent first. So the current
//! connection is behind a plain mutex, and nothing is awaited before the command is submitted.
//!
//! Once the sentinels have begun to replace a server, its answers do not count.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, RedisError, RedisResult, Value};
use tokio::time::Instant;

use super::batch::{Batcher, silent};
use super::connector::Connector;
use super::error::{code, is_fatal};
use super::script::Script;
use super::subscriber::Subscriber;

/// A fence counter that is this far behind the server's clock is set to the clock.
const SLACK: Duration = Duration::from_secs(10);

/// Further commands wait for space in the connection's buffer.
const BUFFER: usize = 4096;

/// A call of a script.
#[derive(Clone, Copy)]
pub(in crate::engines) struct Call<'a> {
    pub(in crate::engines) script: &'static Script,
    pub(in crate::engines) keys: &'a [String],
    pub(in crate::engines) args: &'a [&'a str],
    /// Whether the first argument is the [hint](Session::hint) by which a script trusts its fence
    /// counter.
    pub(in crate::engines) hinted: bool,
    /// How many replicas must have applied the call.
    pub(in crate::engines) replicas: u32,
}

/// An answer, and the connection it came from.
pub(in crate::engines) struct Reply {
    pub(in crate::engines) value: Value,
    /// How many replicas have applied the call, if that was requested.
    pub(in crate::engines) replicas: u32,
    session: Arc<Session>,
}

impl Reply {
    /// Records a fence that was created for this call: the server's clock is at least that far.
    pub(in crate::engines) fn learn(&self, fence: u64) {
        if let Some(stamp) = &self.session.stamp {
            let _ = stamp.set((fence, Instant::now()));
        }
    }
}

/// The connection to one server.
#[derive(Debug)]
pub(in crate::engines) struct Connection {
    connector: Connector,
    /// Whether no other server can ever have its locks.
    single_server: bool,
    session: Mutex<Option<Arc<Session>>>,
    dialing: tokio::sync::Mutex<()>,
    /// Listens to the same server, and has to find it again when we do.
    subscriber: Arc<Subscriber>,
}

/// One connection, and what is known of its server.
#[derive(Debug)]
pub(in crate::engines) struct Session {
    batcher: Batcher,
    generation: u64,
    /// The first fence that was granted over this connection, and when it arrived.
    ///
    /// A restarted server is only reached by a new connection. So a counter that is not below this
    /// fence was written by the running server and has lost nothing. If another server may have the
    /// lock at the same time, as around a failover, only the clock orders their fences, and there
    /// is no stamp.
    stamp: Option<OnceLock<(u64, Instant)>>,
    /// Which of several servers this is, and in which configuration.
    origin: String,
    /// The bits of the scripts that the server has cached.
    known: AtomicU32,
}

impl std::fmt::Display for Connection {
    /// The address of the server.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.connector)
    }
}

impl Connection {
    pub(in crate::engines) fn new(connector: Connector) -> Self {
        Self { single_server: connector.is_fixed(), ..Self::one_of_many(connector) }
    }

    /// A server that may take over locks from others, and others from it.
    pub(in crate::engines) fn one_of_many(connector: Connector) -> Self {
        let subscriber = Arc::new(Subscriber::new(connector.clone()));
        let (session, dialing) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { connector, single_server: false, session, dialing, subscriber }
    }

    /// Whether it is the only server, so that its counters can be trusted.
    pub(in crate::engines) fn is_single_server(&self) -> bool {
        self.single_server
    }

    /// The subscriber that listens to the same server.
    pub(in crate::engines) fn subscriber(&self) -> &Arc<Subscriber> {
        &self.subscriber
    }

    /// Calls a script.
    pub(in crate::engines) async fn call(&self, call: &Call<'_>) -> RedisResult<Reply> {
        let session = match self.current() {
            Some(session) => session,
            // Boxed, like everything rare: every call has to reserve space for whatever it might
            // do.
            None => Box::pin(self.connect()).await?,
        };
        let answer = self.judge(&session, session.call(call).await);
        answer.map(|(value, replicas)| Reply { value, replicas, session })
    }

    /// Calls a script on a server that is importing the slot, and has all existing keys of the
    /// lock.
    pub(in crate::engines) async fn call_asking(&self, call: &Call<'_>) -> RedisResult<Reply> {
        let session = self.connect().await?;
        let commands = vec![redis::cmd("ASKING"), session.command(call, How::Importing)];
        let answer = self.judge(&session, session.ask(commands, call.replicas).await);
        answer.map(|(value, replicas)| Reply { value, replicas, session })
    }

    /// Sends any other command.
    pub(in crate::engines) async fn command(&self, command: &Cmd) -> RedisResult<Value> {
        let session = self.connect().await?;
        self.judge(&session, session.batcher.send(command.clone()).await)
    }

    /// Sends several other commands together. The error of a single one is among the answers.
    pub(in crate::engines) async fn commands(&self, commands: Vec<Cmd>) -> RedisResult<Vec<Value>> {
        let session = self.connect().await?;
        let answers = session.batcher.send_all(commands, 0).await;
        self.judge(&session, answers).map(|(values, _)| values)
    }

    /// Sends any other command to a server that is importing the slot.
    pub(in crate::engines) async fn command_asking(&self, command: Cmd) -> RedisResult<Value> {
        let session = self.connect().await?;
        let answer = session.ask(vec![redis::cmd("ASKING"), command], 0).await;
        self.judge(&session, answer).map(|(value, _)| value)
    }

    /// Closes the connections.
    pub(in crate::engines) fn close(&self) {
        *self.lock() = None;
        self.subscriber.close();
        self.connector.close();
    }

    async fn connect(&self) -> RedisResult<Arc<Session>> {
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let _one_at_a_time = self.dialing.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let timeout = self.connector.timeout();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            // The timeout is applied here, so that a call that waits for replicas may take longer.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        let connecting = self.connector.connect(config, ProtocolVersion::RESP2);
        let (connection, generation) =
            tokio::time::timeout(timeout * 2, connecting).await.map_err(|_| silent())??;
        let session = Arc::new(Session {
            batcher: Batcher::new(connection, timeout),
            generation,
            stamp: self.single_server.then(OnceLock::new),
            origin: self.connector.origin(),
            known: AtomicU32::new(0),
        });
        if !self.connector.is_current(generation) {
            // Its origin may already be that of its successor.
            return Err(replaced());
        }
        *self.lock() = Some(session.clone());
        Ok(session)
    }

    /// Returns an answer if it counts. Disconnects if the answer shows that the connection is
    /// unusable.
    fn judge<T>(&self, session: &Arc<Session>, answer: RedisResult<T>) -> RedisResult<T> {
        let outdated = !self.connector.is_current(session.generation);
        if (outdated || answer.as_ref().is_err_and(is_fatal))
            && self.lock().take_if(|current| Arc::ptr_eq(current, session)).is_some()
        {
            self.subscriber.close();
            self.connector.disconnected();
        }
        match outdated {
            false => answer,
            true => Err(replaced()),
        }
    }

    fn current(&self) -> Option<Arc<Session>> {
        self.lock().clone().filter(|session| self.connector.is_current(session.generation))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().expect("nothing panics under this lock")
    }
}

/// How a script is called.
#[derive(Clone, Copy)]
enum How {
    BySha,
    ByText,
    /// With one declared key. A server that is importing a slot refuses a call with several keys if
    /// one of them does not exist, and few locks have all the keys they might have.
    Importing,
}

/// Moves the keys that were passed as arguments back into `KEYS`.
const KEYS_FROM_ARGUMENTS: &str =
    "for _ = 1, tonumber(table.remove(ARGV, 1)) do KEYS[#KEYS + 1] = table.remove(ARGV, 1) end\n";

impl Session {
    async fn call(&self, call: &Call<'_>) -> RedisResult<(Value, u32)> {
        // The first call of a script includes its text, so that the next one, which may be on the
        // wire before this one is answered, cannot overtake it.
        let known = self.known.load(Ordering::Relaxed) & call.script.bit != 0;
        let how = if known { How::BySha } else { How::ByText };
        let answer = match self.send(call, how).await {
            // The server's script cache was flushed.
            Err(error) if code(&error) == Some("NOSCRIPT") => {
                self.known.store(0, Ordering::Relaxed);
                Box::pin(self.send(call, How::ByText)).await
            }
            answer => answer,
        };
        if answer.is_ok() && !known {
            self.known.fetch_or(call.script.bit, Ordering::Relaxed);
        }
        answer
    }

    async fn send(&self, call: &Call<'_>, how: How) -> RedisResult<(Value, u32)> {
        let command = self.command(call, how);
        match call.replicas {
            0 => Ok((self.batcher.send(command).await?, 0)),
            replicas => Box::pin(self.ask(vec![command], replicas)).await,
        }
    }

    /// The answer to the last of several commands, and how many replicas have applied them.
    async fn ask(&self, commands: Vec<Cmd>, replicas: u32) -> RedisResult<(Value, u32)> {
        let (mut values, replicas) = self.batcher.send_all(commands, replicas).await?;
        match values.pop() {
            Some(Value::ServerError(error)) => Err(error.into()),
            Some(value) => Ok((value, replicas)),
            None => Err(silent()),
        }
    }

    fn command(&self, call: &Call<'_>, how: How) -> Cmd {
        let size = call.keys.iter().map(String::len).chain(call.args.iter().map(|arg| arg.len()));
        let size: usize = size.sum();
        // Plus the name of the command, the number of keys and the hint.
        let count = call.keys.len() + call.args.len() + 5;
        let mut command = Cmd::with_capacity(count, size + call.script.sha.len() + 64);
        match how {
            How::BySha => command.arg("EVALSHA").arg(call.script.sha.as_str()),
            How::ByText => command.arg("EVAL").arg(call.script.text),
            How::Importing => {
                command.arg("EVAL").arg([KEYS_FROM_ARGUMENTS, call.script.text].concat())
            }
        };
        let (looked_at, others) = match how {
            How::Importing => call.keys.split_at(1.min(call.keys.len())),
            _ => (call.keys, &[][..]),
        };
        command.arg(looked_at.len());
        for key in looked_at {
            command.arg(key);
        }
        if let How::Importing = how {
            command.arg(others.len()).arg(others);
        }
        if call.hinted {
            match &self.stamp {
                Some(stamp) => command.arg(trusted(stamp.get())),
                // Not a number but a name: several servers may have the lock, so no counter is
                // trusted. A counter that was set under another name may be behind fences granted
                // since.
                None => command.arg(&self.origin),
            };
        }
        for arg in call.args {
            command.arg(*arg);
        }
        command
    }
}

/// The fence below which a counter of this server is not trusted.
fn trusted(stamp: Option<&(u64, Instant)>) -> u64 {
    match stamp {
        // Nothing is known: higher than any counter, and an integer that Lua represents exactly.
        None => 1 << 53,
        Some((fence, at)) => {
            let since = at.elapsed().saturating_sub(SLACK).as_micros();
            fence.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
        }
    }
}

fn replaced() -> RedisError {
    let why = "the server that answered may no longer be the master";
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, why).into()
}
