//! How to reach a server: its address, or the sentinels that know it; TLS and credentials.
//!
//! Every connection belongs to a generation. Once the sentinels replace the master, its generation
//! ends, and answers from its connections do not count.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisResult, TlsCertificates, Value,
};

use super::sentinel::Sentinels;
use crate::engines::disconnections::Disconnections;

/// How connections are made, whatever the address.
#[derive(Clone)]
pub(in crate::engines) struct ConnectOptions {
    pub(in crate::engines) user: Option<String>,
    pub(in crate::engines) password: Option<String>,
    pub(in crate::engines) database: i64,
    pub(in crate::engines) tls: Option<TlsCertificates>,
    /// The timeout of connecting and of an answer.
    pub(in crate::engines) timeout: Duration,
    pub(in crate::engines) disconnections: Disconnections,
}

/// A server that can be connected to, again and again.
#[derive(Clone)]
pub(in crate::engines) struct Connector {
    target: Arc<Target>,
}

enum Target {
    Address { address: ConnectionAddr, options: ConnectOptions },
    Sentinels { sentinels: Arc<Sentinels>, shown: String, options: ConnectOptions },
}

impl std::fmt::Debug for Connector {
    /// Prints addresses, never credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.target {
            Target::Address { address, .. } => write!(f, "{address}"),
            Target::Sentinels { shown, .. } => f.write_str(shown),
        }
    }
}

impl Connector {
    /// A server at a host and port.
    pub(in crate::engines) fn server(host: &str, port: u16, options: &ConnectOptions) -> Self {
        let host = host.to_owned();
        let address = match options.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        Self { target: Arc::new(Target::Address { address, options: options.clone() }) }
    }

    /// A server behind a Unix domain socket.
    pub(in crate::engines) fn unix(path: &str, options: ConnectOptions) -> Self {
        Self {
            target: Arc::new(Target::Address {
                address: ConnectionAddr::Unix(path.into()),
                options,
            }),
        }
    }

    /// The master that the sentinels agree on.
    pub(in crate::engines) fn master(
        sentinels: Vec<Connector>,
        master: String,
        options: ConnectOptions,
    ) -> Self {
        let shown = format!("{master} of {sentinels:?}");
        let sentinels = Arc::new(Sentinels::new(sentinels, master, options.timeout));
        Self { target: Arc::new(Target::Sentinels { sentinels, shown, options }) }
    }

    /// Whether it is always the same server.
    pub(in crate::engines) fn is_fixed(&self) -> bool {
        matches!(&*self.target, Target::Address { .. })
    }

    pub(in crate::engines) fn timeout(&self) -> Duration {
        match &*self.target {
            Target::Address { options, .. } | Target::Sentinels { options, .. } => options.timeout,
        }
    }

    /// A connection broke.
    pub(super) fn disconnected(&self) {
        match &*self.target {
            Target::Address { options, .. } | Target::Sentinels { options, .. } => {
                options.disconnections.report();
            }
        }
    }

    /// Whether answers from connections of this generation count.
    pub(in crate::engines) fn is_current(&self, generation: u64) -> bool {
        match &*self.target {
            Target::Address { .. } => true,
            Target::Sentinels { sentinels, .. } => sentinels.is_current(generation),
        }
    }

    /// Which server this is now, and in which configuration; a server that others can replace
    /// counts as another one when it returns.
    pub(super) fn origin(&self) -> String {
        match &*self.target {
            Target::Address { address, .. } => address.to_string(),
            Target::Sentinels { sentinels, .. } => sentinels.origin(),
        }
    }

    /// Resolves when connections of this generation no longer count.
    pub(in crate::engines) async fn outdated(&self, generation: u64) {
        match &*self.target {
            Target::Address { .. } => std::future::pending().await,
            Target::Sentinels { sentinels, .. } => sentinels.changed(generation).await,
        }
    }

    /// Stops watching the sentinels, until the next connection is made.
    pub(in crate::engines) fn close(&self) {
        if let Target::Sentinels { sentinels, .. } = &*self.target {
            sentinels.close();
        }
    }

    /// Connects. With sentinels, to the current master, after checking its role. Returns the
    /// generation of the connection too.
    pub(in crate::engines) async fn connect(
        &self,
        config: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> RedisResult<(MultiplexedConnection, u64)> {
        let (sentinels, options) = match &*self.target {
            Target::Address { address, options } => {
                let client = client(address.clone(), options, protocol)?;
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                return Ok((connection.await?, 0));
            }
            Target::Sentinels { sentinels, options, .. } => (sentinels, options),
        };
        let ((host, port), generation) = sentinels.master().await?;
        let server = Connector::server(&host, port, options);
        let (mut connection, _) = Box::pin(server.connect(config, protocol)).await?;
        // A sentinel may name a server that was just demoted.
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok((connection, generation)),
            _ => {
                let demoted = format!("{host}:{port} is no longer the master");
                Err(std::io::Error::other(demoted).into())
            }
        }
    }
}

fn client(
    address: ConnectionAddr,
    options: &ConnectOptions,
    protocol: ProtocolVersion,
) -> RedisResult<Client> {
    let mut settings = RedisConnectionInfo::default()
        .set_db(options.database)
        .set_protocol(protocol)
        .set_lib_name("lockkeeper", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &options.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &options.password {
        settings = settings.set_password(password);
    }
    let info: ConnectionInfo = address.into_connection_info()?;
    let info = info
        .set_redis_settings(settings)
        .set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
    match (info.addr(), &options.tls) {
        (ConnectionAddr::TcpTls { .. }, Some(tls)) => Client::build_with_tls(info, tls.clone()),
        _ => Client::open(info),
    }
}
