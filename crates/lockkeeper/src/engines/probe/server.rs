//! What kind of server is at an address, by its answers to the first messages of the protocols.

use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// The timeout of a probe.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a server has to speak first. One that does so gets no other probe: MariaDB and MySQL
/// count connections that are given up, and block a host with too many of them.
const GREETING: Duration = Duration::from_millis(200);

/// Redis refuses it with an error, etcd answers with its version, any other HTTP server with
/// something else.
const GET: &[u8] = b"GET /version HTTP/1.0\r\n\r\n";

/// PostgreSQL's question whether the server has TLS; the answer is one letter.
const SSL_REQUEST: &[u8] = &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// ZooKeeper answers it even if it is not on its list of permitted commands.
const SRVR: &[u8] = b"srvr";

/// The start of a TLS handshake that every TLS server rejects with a TLS alert.
const HELLO: &[u8] = &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0];

/// What is at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Redis,
    Etcd,
    Postgres,
    Mysql,
    Zookeeper,
    Ssh,
    Http,
    Http2,
    Tls,
    /// It speaks first, in none of these protocols.
    Unknown,
    /// Its answer to a message of another protocol says nothing.
    Unclear,
    Closed,
    Silent,
    Unreachable(String),
}

impl Found {
    /// Whether no other probe can tell more.
    fn is_certain(&self) -> bool {
        // A TLS server may refuse an HTTP request in plain text, and PostgreSQL may have both.
        !matches!(self, Found::Http | Found::Http2 | Found::Tls | Found::Unclear)
    }

    /// The scheme for the locks of such a server.
    pub(super) fn scheme(&self) -> Option<&'static str> {
        match self {
            Found::Redis => Some("redis"),
            Found::Etcd => Some("etcd"),
            Found::Postgres => Some("postgres"),
            Found::Mysql => Some("mysql"),
            Found::Zookeeper => Some("zookeeper"),
            _ => None,
        }
    }

    /// What the first bytes of a server are.
    fn of(bytes: &[u8]) -> Self {
        let begins = |start: &str| bytes.starts_with(start.as_bytes());
        match bytes {
            // PostgreSQL's answer to `SSL_REQUEST`.
            b"S" | b"N" => Found::Postgres,
            // An error, with its severity first: a pooler's answer to anything else.
            [b'E', 0, _, _, _, b'S', ..] => Found::Postgres,
            [b'+' | b'-', letter, ..] if letter.is_ascii_uppercase() => Found::Redis,
            [0x15 | 0x16, 3, ..] => Found::Tls,
            // The first packet of a connection: a greeting, or a refusal.
            [_, _, 0, 0, 0x0a | 0xff, ..] => Found::Mysql,
            // An empty or a short frame of settings, for the connection itself.
            [0, 0, _, 4, _, 0, 0, 0, 0, ..] => Found::Http2,
            _ if begins("SSH-") => Found::Ssh,
            _ if begins("Zookeeper version") || begins("srvr is not executed") => Found::Zookeeper,
            _ if begins("This ZooKeeper instance") => Found::Zookeeper,
            _ if begins("HTTP/") => {
                let is_etcd = bytes.windows(10).any(|part| part == b"etcdserver");
                if is_etcd { Found::Etcd } else { Found::Http }
            }
            _ => Found::Unknown,
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Found::Redis => "Redis",
            Found::Etcd => "etcd",
            Found::Postgres => "PostgreSQL",
            Found::Mysql => "MariaDB or MySQL",
            Found::Zookeeper => "ZooKeeper",
            Found::Ssh => "an SSH server",
            Found::Http => "an HTTP server",
            Found::Http2 => "an HTTP/2 server",
            Found::Tls => "a TLS server",
            Found::Unknown | Found::Unclear => "an unknown server",
            Found::Closed => "a server that disconnects",
            Found::Silent => "a silent server",
            Found::Unreachable(why) => why,
        })
    }
}

/// Probes one address with all messages.
pub(super) async fn identify(host: &str, port: u16) -> Found {
    let until = Instant::now() + PATIENCE;
    let mut first = match timeout_at(until, TcpStream::connect((host, port))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Found::Unreachable(error.to_string()),
        Err(_) => return Found::Unreachable("no connection in time".to_owned()),
    };
    let greeting = read(&mut first, Instant::now() + GREETING).await;
    if let Some(greeting) = greeting.as_deref().filter(|greeting| !greeting.is_empty()) {
        return Found::of(greeting);
    }
    let mut probes = JoinSet::new();
    probes.spawn(converse(Some(first), host.to_owned(), port, GET, until));
    for message in [SSL_REQUEST, SRVR, HELLO] {
        probes.spawn(converse(None, host.to_owned(), port, message, until));
    }
    let mut best: Option<Found> = None;
    let mut closed = false;
    while let Some(answer) = probes.join_next().await {
        match answer.ok().flatten() {
            None => {}
            Some(bytes) if bytes.is_empty() => closed = true,
            Some(bytes) => match Found::of(&bytes) {
                // The right message may not be answered yet.
                Found::Unknown => best = best.or(Some(Found::Unclear)),
                found if found.is_certain() => return found,
                Found::Tls => best = Some(Found::Tls),
                found => best = best.filter(|best| *best == Found::Tls).or(Some(found)),
            },
        }
    }
    best.unwrap_or(if closed { Found::Closed } else { Found::Silent })
}

/// The answer to a message: empty if the server disconnected, `None` if it was silent.
async fn converse(
    stream: Option<TcpStream>,
    host: String,
    port: u16,
    message: &'static [u8],
    until: Instant,
) -> Option<Vec<u8>> {
    let talk = async {
        let mut stream = match stream {
            Some(stream) => stream,
            None => TcpStream::connect((host.as_str(), port)).await?,
        };
        stream.write_all(message).await?;
        std::io::Result::Ok(read(&mut stream, until).await)
    };
    timeout_at(until, talk).await.ok()?.unwrap_or_else(|_| Some(Vec::new()))
}

/// The first bytes of a server; of HTTP, with the start of the body, which tells etcd from others.
async fn read(stream: &mut TcpStream, until: Instant) -> Option<Vec<u8>> {
    const ENOUGH: usize = 1024;
    let mut bytes = Vec::new();
    loop {
        match timeout_at(until, stream.read_buf(&mut bytes)).await {
            Ok(Ok(1..)) if bytes.starts_with(b"HTTP/") && bytes.len() < ENOUGH => {}
            Err(_) if bytes.is_empty() || bytes.starts_with(b"HTTP/") => return None,
            _ => return Some(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_recognised_by_their_first_bytes() {
        for (bytes, found) in [
            (&b"-ERR wrong number of arguments for 'get' command\r\n"[..], Found::Redis),
            (b"-NOAUTH Authentication required.\r\n", Found::Redis),
            (b"S", Found::Postgres),
            (b"N", Found::Postgres),
            (b"E\0\0\0\x29SFATAL\0C08P01\0Mbad packet header\0\0", Found::Postgres),
            (b"\x5c\0\0\0\x0a5.5.5-10.11.6-MariaDB", Found::Mysql),
            (b"\x45\0\0\0\xff\x69\x04Host is blocked", Found::Mysql),
            (b"Zookeeper version: 3.8.0", Found::Zookeeper),
            (b"srvr is not executed because it is not in the whitelist.", Found::Zookeeper),
            (b"HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.4.23\"}", Found::Etcd),
            (b"HTTP/1.0 404 Not Found\r\n\r\n", Found::Http),
            (b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0", Found::Http2),
            (b"\x15\x03\x01\0\x02\x02\x32", Found::Tls),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Found::Ssh),
            (b"220 mail.example ESMTP\r\n", Found::Unknown),
        ] {
            assert_eq!(Found::of(bytes), found, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
