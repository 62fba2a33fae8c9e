//! Explains a failed first connection: another kind of server answers at the address, one side
//! wants TLS and the other does not, or nothing answers.
//!
//! The clients of the engines report such a failure as a parse error, a broken pipe or a timeout.
//! So after a failure, and beside a connection that takes long, every address is probed with the
//! first message of each protocol.
//!
//! Easy to get wrong: the right server may be slow or full. Only the answer of another kind of
//! server ends a connection that is under way.

mod server;

use std::pin::pin;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use self::server::{Found, identify};
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};

/// A connection that takes longer is probed beside it: the answer is there before the shortest
/// timeout of connecting, which is 2 s.
const SLOW: Duration = Duration::from_millis(700);

/// The answer of a server that is not in the protocol of its engine.
#[derive(Debug, thiserror::Error)]
#[error("the answer is not in the protocol of {protocol}")]
#[allow(dead_code, reason = "it depends on the features which engines are there to use it")]
pub(super) struct Garbled {
    protocol: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Garbled {
    #[allow(dead_code, reason = "it depends on the features which engines are there to use it")]
    pub(super) fn new(
        protocol: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { protocol, source: source.into() }
    }
}

/// Opens an engine. If that fails, or takes long because another kind of server is at its address,
/// the error says what was found there.
pub(super) async fn explained<T>(
    endpoint: &Endpoint,
    opening: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(target) = Target::of(endpoint) else { return opening.await };
    let mut opening = pin!(opening);
    let mut probing = pin!(target.probe());
    let mut found = None;
    let opened = match timeout(SLOW, &mut opening).await {
        Ok(opened) => opened,
        Err(_) => loop {
            tokio::select! {
                opened = &mut opening => break opened,
                seen = &mut probing, if found.is_none() => {
                    if let Some(wrong) = target.mistake(&seen) {
                        return Err(Error::broken(target.engine, "connect", wrong));
                    }
                    found = Some(seen);
                }
            }
        },
    };
    let error = match opened {
        Err(error) if is_in_question(&error) => error,
        opened => return opened,
    };
    let found = match found {
        Some(found) => found,
        None => probing.await,
    };
    Err(target.explain(&found, error))
}

/// Whether the cause may be another kind of server. If not, the server answered in its protocol.
fn is_in_question(error: &Error) -> bool {
    match error {
        Error::Engine { source, .. } => error.is_retryable() || source.is::<Garbled>(),
        _ => false,
    }
}

/// What a URL says that is at its addresses.
struct Target {
    engine: &'static str,
    kind: Found,
    scheme: String,
    /// The scheme for the other side of TLS.
    other: Option<String>,
    is_secure: bool,
    addresses: Vec<(String, u16)>,
}

impl Target {
    /// `None` for what is not reached by TCP.
    fn of(endpoint: &Endpoint) -> Option<Self> {
        let scheme = endpoint.scheme();
        let (family, topology) = scheme.split_at(scheme.find('+').unwrap_or(scheme.len()));
        let (engine, kind, port, plain) = match family {
            "redis" | "rediss" => ("redis", Found::Redis, 6379, "redis"),
            "valkey" | "valkeys" => ("redis", Found::Redis, 6379, "valkey"),
            "redlock" | "redlocks" => ("redlock", Found::Redis, 6379, "redlock"),
            "etcd" | "etcds" => ("etcd", Found::Etcd, 2379, "etcd"),
            "zookeeper" | "zookeepers" => ("zookeeper", Found::Zookeeper, 2181, "zookeeper"),
            "postgres" | "postgresql" => ("postgres", Found::Postgres, 5432, family),
            "mysql" | "mariadb" => ("mysql", Found::Mysql, 3306, family),
            _ => return None,
        };
        let port = match topology {
            "+unix" => return None,
            "+sentinel" => 26379,
            _ => port,
        };
        let addresses: Vec<_> = endpoint
            .hosts()
            .into_iter()
            // A path is percent-encoded: it is the directory of PostgreSQL's socket.
            .filter(|(host, _)| !host.contains(['/', '%']))
            .map(|(host, own)| (host, own.unwrap_or(port)))
            .collect();
        if addresses.is_empty() {
            return None;
        }
        let is_secure = family != plain;
        let other = match (is_secure, &kind) {
            (true, _) => Some(format!("{plain}{topology}")),
            // These negotiate TLS on the same port.
            (false, Found::Postgres | Found::Mysql) => None,
            (false, _) => Some(format!("{plain}s{topology}")),
        };
        Some(Self { engine, kind, scheme: scheme.to_owned(), other, is_secure, addresses })
    }

    /// What is at each address, in their order.
    async fn probe(&self) -> Vec<(String, Found)> {
        let mut probes = JoinSet::new();
        for (at, (host, port)) in self.addresses.clone().into_iter().enumerate() {
            let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            let shown = format!("{shown}:{port}");
            probes.spawn(async move { (at, shown, identify(&host, port).await) });
        }
        let mut found = probes.join_all().await;
        found.sort_by_key(|(at, ..)| *at);
        found.into_iter().map(|(_, server, found)| (server, found)).collect()
    }

    /// What is wrong with one of the servers for good.
    fn mistake(&self, found: &[(String, Found)]) -> Option<String> {
        found.iter().find_map(|(server, found)| {
            let (scheme, kind) = (&self.scheme, &self.kind);
            match (found, &self.other) {
                (found, Some(plain)) if found == kind && self.is_secure => Some(format!(
                    "{server} answers without TLS; write {plain}: instead of {scheme}:, or name the port that has TLS"
                )),
                (Found::Tls, _) if self.is_secure => None,
                (Found::Tls, Some(secure)) => {
                    Some(format!("{server} wants TLS; write {secure}: instead of {scheme}:"))
                }
                // A gateway to etcd may have nothing but gRPC, and PostgreSQL may accept TLS at once.
                (Found::Http2, _) if *kind == Found::Etcd => None,
                (Found::Tls, _) if *kind == Found::Postgres => None,
                (Found::Unclear | Found::Closed | Found::Silent | Found::Unreachable(_), _) => None,
                (found, _) if found == kind => None,
                (Found::Unknown, _) => {
                    Some(format!("what answers at {server} does not speak the protocol of {kind}"))
                }
                (found, _) => Some(match found.scheme() {
                    Some(right) => format!(
                        "{server} is {found}, not {kind}; write {right}: instead of {scheme}:, or name the port of {kind}"
                    ),
                    None => format!("{server} is {found}, not {kind}; name the port of {kind}"),
                }),
            }
        })
    }

    /// Replaces the error of connecting with what was found, if that says more.
    fn explain(&self, found: &[(String, Found)], error: Error) -> Error {
        if let Some(wrong) = self.mistake(found) {
            return Error::broken(self.engine, "connect", wrong);
        }
        let mut causes = Vec::new();
        for (server, found) in found {
            causes.push(match found {
                Found::Unreachable(why) if self.addresses.len() == 1 => why.clone(),
                Found::Unreachable(why) => format!("{server}: {why}"),
                Found::Silent => format!("{server} accepts connections and does not answer"),
                Found::Closed => {
                    format!("{server} accepts connections and closes them without an answer")
                }
                // This one is right, so the cause is another.
                _ => return error,
            });
        }
        Error::unreachable(self.engine, "connect", causes.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_reached_by_tcp_is_probed() {
        let target = |url: &str| Target::of(&Endpoint::parse(url).unwrap());
        for url in ["file:", "memory:", "redis+unix:///run/redis.sock", "postgres://%2Frun/app"] {
            assert!(target(url).is_none(), "{url}");
        }
        let addresses = target("redis+sentinel://a,b:1/m").unwrap().addresses;
        assert_eq!(addresses, [("a".to_owned(), 26379), ("b".to_owned(), 1)]);
    }

    #[test]
    fn a_server_of_another_kind_and_the_other_side_of_tls_are_mistakes() {
        let mistake = |url: &str, found: Found| {
            let target = Target::of(&Endpoint::parse(url).unwrap()).unwrap();
            target.mistake(&[("h:1".to_owned(), found)])
        };
        for (url, found, says) in [
            (
                "redis://h:1",
                Found::Postgres,
                "h:1 is PostgreSQL, not Redis; write postgres: instead of redis:, or name the port of Redis",
            ),
            ("etcd://h:1", Found::Http, "h:1 is an HTTP server, not etcd; name the port of etcd"),
            (
                "mysql://h:1/a",
                Found::Tls,
                "h:1 is a TLS server, not MariaDB or MySQL; name the port of MariaDB or MySQL",
            ),
            (
                "postgres://h:1/a",
                Found::Unknown,
                "what answers at h:1 does not speak the protocol of PostgreSQL",
            ),
            (
                "rediss+cluster://h:1",
                Found::Redis,
                "h:1 answers without TLS; write redis+cluster: instead of rediss+cluster:, or name the port that has TLS",
            ),
            ("etcd://h:1", Found::Tls, "h:1 wants TLS; write etcds: instead of etcd:"),
            (
                "rediss://h:1",
                Found::Etcd,
                "h:1 is etcd, not Redis; write etcd: instead of rediss:, or name the port of Redis",
            ),
        ] {
            assert_eq!(mistake(url, found).as_deref(), Some(says));
        }
        for (url, found) in [
            ("redis://h:1", Found::Redis),
            ("rediss://h:1", Found::Tls),
            ("etcd://h:1", Found::Http2),
            ("redis://h:1", Found::Silent),
            ("redis://h:1", Found::Closed),
            ("redis://h:1", Found::Unclear),
            ("postgres://h:1/a", Found::Tls),
        ] {
            assert_eq!(mistake(url, found), None, "{url}");
        }
    }
}
