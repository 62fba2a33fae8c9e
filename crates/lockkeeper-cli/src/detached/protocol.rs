//! The messages between a script's `acquire` and a holder: one line of JSON each.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::UnixStream;

use crate::args::Terms;

/// The request that starts a holder. Contains the URL with its secrets, which is why it is not in
/// argv.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) url: String,
    pub(crate) key: String,
    pub(crate) terms: Terms,
    pub(crate) ttl: Duration,
    pub(crate) owner: String,
    /// The command line that is recorded with the lock.
    pub(crate) command: Option<String>,
    /// Whether the wait is shown, and then whether it is drawn.
    pub(crate) shown: Option<bool>,
    /// How long to hold it; `None` for as long as the process it is bound to lives.
    pub(crate) lease: Option<Duration>,
    pub(crate) pid: Option<i32>,
    /// The signal that this process gets when the holder is asked to yield.
    pub(crate) on_yield: Option<i32>,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Not an answer yet: what the holder is waiting for.
    Waits(String),
    /// The same, in a line that the next one replaces, in several lengths.
    Line(Vec<String>),
    Granted(Granted),
    Refused {
        code: u8,
        message: String,
    },
}

/// A lock that a holder keeps.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) handle: String,
    pub(crate) fence: u64,
    /// The holder itself.
    pub(crate) pid: u32,
}

/// What a later call requests from a holder.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Extends the lease from now: by this, or by the lease of `acquire`.
    Renew {
        lease: Option<Duration>,
    },
    Release,
    /// How long it will be held.
    Tell,
}

/// The holder's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// The same, and the holder was asked to yield: by whom, and why.
    Asked {
        by: String,
    },
    Lost {
        reason: String,
    },
    /// The engine did not confirm it.
    Unconfirmed {
        reason: String,
    },
    Told {
        key: String,
        fence: u64,
        left: Option<Duration>,
    },
}

pub(crate) async fn hear(stream: &mut BufStream<UnixStream>) -> Option<Ask> {
    let mut line = String::new();
    // A caller that connects and sends nothing must not delay the end of the lock.
    let read = tokio::time::timeout(Duration::from_secs(1), stream.read_line(&mut line)).await;
    read.ok()?.ok()?;
    serde_json::from_str(&line).ok()
}

pub(crate) async fn say(stream: &mut BufStream<UnixStream>, answer: &Answer) {
    let line = serde_json::to_string(answer).expect("plain fields serialize") + "\n";
    // If it fails, the caller is gone, and does not need the answer.
    let _ = stream.write_all(line.as_bytes()).await;
    let _ = stream.flush().await;
}
