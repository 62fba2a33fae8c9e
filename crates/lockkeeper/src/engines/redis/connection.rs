//! One server: a connection for commands that all tasks share, made again when it breaks.
//!
//! Easy to get wrong: a call must have its place in the order after its first poll whenever there is a
//! connection, because a release goes before the next acquire only by being sent first. So the current
//! connection is behind a plain mutex, and nothing is awaited before the command is handed over.
//!
//! What a server answers after the sentinels began to replace it does not count, whatever it is.

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

/// A fence counter that is this far behind the server's clock is set by the clock.
const SLACK: Duration = Duration::from_secs(10);

/// More commands than this wait for a place in the connection's buffer.
const BUFFER: usize = 4096;

/// A call of a script.
#[derive(Clone, Copy)]
pub(in crate::engines) struct Call<'a> {
    pub(in crate::engines) script: &'static Script,
    pub(in crate::engines) keys: &'a [String],
    pub(in crate::engines) args: &'a [&'a str],
    /// Whether the first argument is to be the [hint](Session::hint) by which a script trusts its fence counter.
    pub(in crate::engines) hinted: bool,
    /// How many replicas are to have the effect.
    pub(in crate::engines) replicas: u32,
}

/// An answer, and the connection that it came by.
pub(in crate::engines) struct Reply {
    pub(in crate::engines) value: Value,
    /// How many replicas have the effect, if that was asked.
    pub(in crate::engines) replicas: u32,
    session: Arc<Session>,
}

impl Reply {
    /// A fence that was minted for this call: the server's clock is at least there.
    pub(in crate::engines) fn learn(&self, fence: u64) {
        if let Some(stamp) = &self.session.stamp {
            let _ = stamp.set((fence, Instant::now()));
        }
    }
}

/// The way to one server.
#[derive(Debug)]
pub(in crate::engines) struct Connection {
    connector: Connector,
    /// Whether the server is the only one that ever has its locks.
    single_server: bool,
    session: Mutex<Option<Arc<Session>>>,
    dialing: tokio::sync::Mutex<()>,
    /// Listens to the same server, and has to look for it again when we do.
    subscriber: Arc<Subscriber>,
}

/// One connection, and what is known of the server behind it.
#[derive(Debug)]
pub(in crate::engines) struct Session {
    batcher: Batcher,
    generation: u64,
    /// The first fence that was given over this connection, and when it came.
    ///
    /// A server that came back is only reached by a new connection. So a counter that is not behind
    /// this one was moved by that server since, and lost nothing. Where another server may have the
    /// lock at the same time, as around a failover, only the clock orders their fences, and there is
    /// no stamp.
    stamp: Option<OnceLock<(u64, Instant)>>,
    /// Which server of several this is, and under which configuration of theirs.
    origin: String,
    /// The bits of the scripts that the server has seen.
    known: AtomicU32,
}

impl std::fmt::Display for Connection {
    /// Where it leads.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.connector)
    }
}

impl Connection {
    pub(in crate::engines) fn new(connector: Connector) -> Self {
        Self { single_server: connector.is_fixed(), ..Self::one_of_many(connector) }
    }

    /// A server that may take locks over from others, and others from it.
    pub(in crate::engines) fn one_of_many(connector: Connector) -> Self {
        let subscriber = Arc::new(Subscriber::new(connector.clone()));
        let (session, dialing) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { connector, single_server: false, session, dialing, subscriber }
    }

    /// The subscriber that listens to the same server.
    pub(in crate::engines) fn subscriber(&self) -> &Arc<Subscriber> {
        &self.subscriber
    }

    /// Calls a script.
    pub(in crate::engines) async fn call(&self, call: &Call<'_>) -> RedisResult<Reply> {
        let session = match self.current() {
            Some(session) => session,
            // Boxed, as is all that is rare: whatever a call might do, every call has to carry.
            None => Box::pin(self.connect()).await?,
        };
        let answer = self.judge(&session, session.call(call).await);
        answer.map(|(value, replicas)| Reply { value, replicas, session })
    }

    /// Calls a script on a server that is about to own its slot, and has all keys of the lock that
    /// there are.
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

    /// Sends any other command to a server that is about to own its slot.
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
            // Counted here, so that a call that waits for replicas may take longer.
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
            // Its origin may be that of its successor.
            return Err(replaced());
        }
        *self.lock() = Some(session.clone());
        Ok(session)
    }

    /// Passes an answer on if it counts. Hangs up when it shows that the connection is of no more use.
    fn judge<T>(&self, session: &Arc<Session>, answer: RedisResult<T>) -> RedisResult<T> {
        let outdated = !self.connector.is_current(session.generation);
        if (outdated || answer.as_ref().is_err_and(is_fatal))
            && self.lock().take_if(|current| Arc::ptr_eq(current, session)).is_some()
        {
            self.subscriber.close();
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
    /// With one key for the server to look at. A server that imports a slot refuses a call with
    /// several keys while one of them does not exist, and few locks have all that they might have.
    Importing,
}

/// Gives a script the keys that were passed as arguments.
const KEYS_FROM_ARGUMENTS: &str =
    "for _ = 1, tonumber(table.remove(ARGV, 1)) do KEYS[#KEYS + 1] = table.remove(ARGV, 1) end\n";

impl Session {
    async fn call(&self, call: &Call<'_>) -> RedisResult<(Value, u32)> {
        // The first call of a script brings its text, so that the next one, which may already be on
        // the wire before the answer to this one comes, cannot overtake it.
        let known = self.known.load(Ordering::Relaxed) & call.script.bit != 0;
        let how = if known { How::BySha } else { How::ByText };
        let answer = match self.send(call, how).await {
            // The server was told to forget its scripts.
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

    /// The answer to the last of some commands, and how many replicas have their effect.
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
        // The name of the command, the number of keys and the hint take some more.
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
                // A name, which is no number: several servers may have the lock, so no counter is to be
                // trusted, and one that was moved under another name may be behind what was given since.
                None => command.arg(&self.origin),
            };
        }
        for arg in call.args {
            command.arg(*arg);
        }
        command
    }
}

/// The fence below which a counter of this server is not to be trusted.
fn trusted(stamp: Option<&(u64, Instant)>) -> u64 {
    match stamp {
        // Nothing is known: more than any counter, and a number that Lua holds exactly.
        None => 1 << 53,
        Some((fence, at)) => {
            let since = at.elapsed().saturating_sub(SLACK).as_micros();
            fence.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
        }
    }
}

fn replaced() -> RedisError {
    let why = "the server that answered may not be the master any more";
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, why).into()
}
