//! How to reach a server: its address, or the sentinels that know it; TLS and credentials.
//!
//! Every connection belongs to a generation. Once the sentinels replace the master, its generation is
//! over, and answers that come by it do not count.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisResult, TlsCertificates, Value,
};

use super::sentinel::Sentinels;

/// How connections are made, whatever the address.
#[derive(Clone)]
pub(super) struct Manner {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    pub(super) tls: Option<TlsCertificates>,
    /// How long a connection or an answer may take.
    pub(super) timeout: Duration,
}

/// A server that can be connected to, again and again.
#[derive(Clone)]
pub(super) struct Dial {
    target: Arc<Target>,
}

enum Target {
    Address { address: ConnectionAddr, manner: Manner },
    Sentinels { sentinels: Arc<Sentinels>, shown: String, manner: Manner },
}

impl std::fmt::Debug for Dial {
    /// Shows addresses, never credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.target {
            Target::Address { address, .. } => write!(f, "{address}"),
            Target::Sentinels { shown, .. } => f.write_str(shown),
        }
    }
}

impl Dial {
    /// A server at a host and port.
    pub(super) fn server(host: &str, port: u16, manner: &Manner) -> Self {
        let host = host.to_owned();
        let address = match manner.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        Self { target: Arc::new(Target::Address { address, manner: manner.clone() }) }
    }

    /// A server behind a socket in the file system.
    pub(super) fn unix(path: &str, manner: Manner) -> Self {
        Self {
            target: Arc::new(Target::Address {
                address: ConnectionAddr::Unix(path.into()),
                manner,
            }),
        }
    }

    /// The master that the sentinels agree on.
    pub(super) fn master(sentinels: Vec<Dial>, master: String, manner: Manner) -> Self {
        let shown = format!("{master} of {sentinels:?}");
        let sentinels = Arc::new(Sentinels::new(sentinels, master, manner.timeout));
        Self { target: Arc::new(Target::Sentinels { sentinels, shown, manner }) }
    }

    /// Whether it is always the same server.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(&*self.target, Target::Address { .. })
    }

    pub(super) fn timeout(&self) -> Duration {
        match &*self.target {
            Target::Address { manner, .. } | Target::Sentinels { manner, .. } => manner.timeout,
        }
    }

    /// Whether answers of connections of this generation count.
    pub(super) fn is_current(&self, generation: u64) -> bool {
        match &*self.target {
            Target::Address { .. } => true,
            Target::Sentinels { sentinels, .. } => sentinels.is_current(generation),
        }
    }

    /// Which server this is now, and under which configuration; a server that others take over from is
    /// another one when it comes back.
    pub(super) fn origin(&self) -> String {
        match &*self.target {
            Target::Address { address, .. } => address.to_string(),
            Target::Sentinels { sentinels, .. } => sentinels.origin(),
        }
    }

    /// Until connections of this generation do not count any more.
    pub(super) async fn outdated(&self, generation: u64) {
        match &*self.target {
            Target::Address { .. } => std::future::pending().await,
            Target::Sentinels { sentinels, .. } => sentinels.changed(generation).await,
        }
    }

    /// Stops watching the sentinels, until the next connection is made.
    pub(super) fn close(&self) {
        if let Target::Sentinels { sentinels, .. } = &*self.target {
            sentinels.close();
        }
    }

    /// Connects. With sentinels, to the master of the moment, and makes sure that it is one.
    /// Answers the generation of the connection too.
    pub(super) async fn connect(
        &self,
        config: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> RedisResult<(MultiplexedConnection, u64)> {
        let (sentinels, manner) = match &*self.target {
            Target::Address { address, manner } => {
                let client = client(address.clone(), manner, protocol)?;
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                return Ok((connection.await?, 0));
            }
            Target::Sentinels { sentinels, manner, .. } => (sentinels, manner),
        };
        let ((host, port), generation) = sentinels.master().await?;
        let server = Dial::server(&host, port, manner);
        let (mut connection, _) = Box::pin(server.connect(config, protocol)).await?;
        // A sentinel may name a server that was just demoted.
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok((connection, generation)),
            _ => {
                let demoted = format!("{host}:{port} is not the master any more");
                Err(std::io::Error::other(demoted).into())
            }
        }
    }
}

fn client(
    address: ConnectionAddr,
    manner: &Manner,
    protocol: ProtocolVersion,
) -> RedisResult<Client> {
    let mut settings = RedisConnectionInfo::default()
        .set_db(manner.database)
        .set_protocol(protocol)
        .set_lib_name("lockkeeper", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &manner.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &manner.password {
        settings = settings.set_password(password);
    }
    let info: ConnectionInfo = address.into_connection_info()?;
    let info = info
        .set_redis_settings(settings)
        .set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
    match (info.addr(), &manner.tls) {
        (ConnectionAddr::TcpTls { .. }, Some(tls)) => Client::build_with_tls(info, tls.clone()),
        _ => Client::open(info),
    }
}
