//! How to reach a server: its address, or the sentinels that know it; TLS and credentials.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, Value,
};

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
    Sentinels { sentinels: Vec<Dial>, master: String, manner: Manner },
}

impl std::fmt::Debug for Dial {
    /// Shows addresses, never credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.target {
            Target::Address { address, .. } => write!(f, "{address}"),
            Target::Sentinels { sentinels, master, .. } => write!(f, "{master} of {sentinels:?}"),
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
        Self { target: Arc::new(Target::Sentinels { sentinels, master, manner }) }
    }

    pub(super) fn timeout(&self) -> Duration {
        match &*self.target {
            Target::Address { manner, .. } | Target::Sentinels { manner, .. } => manner.timeout,
        }
    }

    /// Connects. With sentinels, to the master of the moment, and makes sure that it is one.
    pub(super) async fn connect(
        &self,
        config: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> RedisResult<MultiplexedConnection> {
        let (sentinels, master, manner) = match &*self.target {
            Target::Address { address, manner } => {
                let client = client(address.clone(), manner, protocol)?;
                return client.get_multiplexed_async_connection_with_config(&config).await;
            }
            Target::Sentinels { sentinels, master, manner } => (sentinels, master, manner),
        };
        let mut trouble = RedisError::from(std::io::Error::other("no sentinel is named"));
        for sentinel in sentinels {
            match ask_for_master(sentinel, master, manner, &config, protocol).await {
                Ok(connection) => return Ok(connection),
                Err(error) => trouble = error,
            }
        }
        Err(trouble)
    }
}

async fn ask_for_master(
    sentinel: &Dial,
    master: &str,
    manner: &Manner,
    config: &AsyncConnectionConfig,
    protocol: ProtocolVersion,
) -> RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(sentinel.timeout()))
        .set_response_timeout(Some(sentinel.timeout()));
    let mut asked = Box::pin(sentinel.connect(patient, ProtocolVersion::RESP2)).await?;
    let address: Option<(String, u16)> = redis::cmd("SENTINEL")
        .arg("get-master-addr-by-name")
        .arg(master)
        .query_async(&mut asked)
        .await?;
    let Some((host, port)) = address else {
        return Err(
            std::io::Error::other(format!("the sentinels know no master {master:?}")).into()
        );
    };
    let server = Dial::server(&host, port, manner);
    let mut connection = Box::pin(server.connect(config.clone(), protocol)).await?;
    // A sentinel may name a server that was just demoted, or not yet promoted.
    let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
        _ => {
            Err(std::io::Error::other(format!("{host}:{port} is not the master (any more)")).into())
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
