//! Why a server does not answer: TLS to a port that has none, or none to a port that wants it.
//!
//! Either way both sides wait for the other's next word or hang up, and the error of the client says
//! only that. So when a first connection failed, each server is asked in the other language.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::engines::endpoint::Endpoint;
use crate::error::Error;

/// How long the answer may take; the failure is known already, so this only delays it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The beginning of a conversation in TLS that every server refuses, in TLS.
const HELLO: [u8; 10] = [0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0];

/// Tells the real reason, if it is this one, in place of an error that came when connecting.
pub(in crate::engines) async fn explain(
    endpoint: &Endpoint,
    engine: &'static str,
    error: Error,
) -> Error {
    let scheme = endpoint.scheme();
    if !error.is_retryable() || scheme.ends_with("+unix") {
        return error;
    }
    let port = if scheme.ends_with("+sentinel") { 26379 } else { 6379 };
    let (family, topology) = scheme.split_at(scheme.find('+').unwrap_or(scheme.len()));
    let plain = match family {
        "rediss" => Some("redis"),
        "valkeys" => Some("valkey"),
        "redlocks" => Some("redlock"),
        _ => None,
    };
    let mut hosts = endpoint.hosts();
    if hosts.is_empty() {
        hosts.push(("localhost".to_owned(), None));
    }
    let mut asked = JoinSet::new();
    for (host, own) in hosts {
        asked.spawn(answers(host, own.unwrap_or(port), plain.is_none()));
    }
    let first = async {
        while let Some(answer) = asked.join_next().await {
            if let Ok(Some(server)) = answer {
                return Some(server);
            }
        }
        None
    };
    let Ok(Some(server)) = tokio::time::timeout(PATIENCE, first).await else { return error };
    let reason = match plain {
        Some(plain) => format!(
            "{server} answers without TLS; write {plain}{topology}: instead of {scheme}:, or name the port that has TLS"
        ),
        None => format!("{server} wants TLS; write {family}s{topology}: instead of {scheme}:"),
    };
    Error::broken(engine, "connect", reason)
}

/// The server, if it answers in the language that it was not spoken to in.
async fn answers(host: String, port: u16, in_tls: bool) -> Option<String> {
    let mut stream = TcpStream::connect((host.as_str(), port)).await.ok()?;
    stream.write_all(if in_tls { &HELLO } else { b"PING\r\n" }).await.ok()?;
    let first = stream.read_u8().await.ok()?;
    // An alert or a hello; a Redis answers, or refuses, in a line that begins so.
    let understood =
        if in_tls { matches!(first, 0x15 | 0x16) } else { matches!(first, b'+' | b'-') };
    understood.then(|| format!("{host}:{port}"))
}
