//! Explains why a server does not answer: TLS to a port without it, or plain text to a port that
//! requires it.
//!
//! Either way, both sides wait for each other or disconnect, and the client's error shows only
//! that. So after a failed first connection, each server is probed with the other protocol.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::engines::endpoint::Endpoint;
use crate::error::Error;

/// The timeout of the probe; the failure is already known, so this only delays its report.
const PATIENCE: Duration = Duration::from_secs(2);

/// The start of a TLS handshake that every TLS server rejects with a TLS alert.
const HELLO: [u8; 10] = [0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0];

/// Replaces an error of connecting with this explanation, if it applies.
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

/// The server, if it answers in the other protocol.
async fn answers(host: String, port: u16, in_tls: bool) -> Option<String> {
    let mut stream = TcpStream::connect((host.as_str(), port)).await.ok()?;
    stream.write_all(if in_tls { &HELLO } else { b"PING\r\n" }).await.ok()?;
    let first = stream.read_u8().await.ok()?;
    // A TLS alert or hello; a plain Redis answers, or refuses, with a line that starts like this.
    let understood =
        if in_tls { matches!(first, 0x15 | 0x16) } else { matches!(first, b'+' | b'-') };
    understood.then(|| format!("{host}:{port}"))
}
