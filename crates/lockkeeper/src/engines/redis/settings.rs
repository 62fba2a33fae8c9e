//! The settings in a URL of Redis or Valkey.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use redis::{ClientTlsConfig, TlsCertificates};

use crate::engines::endpoint::{Endpoint, Options};
use crate::error::{Error, Result};

use super::cluster::Cluster;
use super::connection::Connection;
use super::connector::{ConnectOptions, Connector};
use super::topology::Topology;
use crate::engines::disconnections::Disconnections;

/// The timeout of connecting and of an answer, unless set.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The data layout of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum Layout {
    /// Redisson's.
    Hash,
    /// One string, as `SET NX PX` creates it.
    String,
}

/// The settings in a URL apart from the servers.
#[derive(Debug)]
pub(in crate::engines) struct Settings {
    pub(in crate::engines) layout: Layout,
    pub(in crate::engines) prefix: String,
    /// Whether mutexes use Redisson's own fence counter.
    pub(in crate::engines) redisson_fence: bool,
    /// How many replicas must have a grant before it counts.
    pub(in crate::engines) replicas: u32,
    pub(in crate::engines) disconnections: Disconnections,
}

/// Reads a URL. The only I/O is reading the files that it names.
pub(in crate::engines) fn read(endpoint: &Endpoint) -> Result<(Topology, Settings)> {
    let mut options = endpoint.options();
    let layout = options
        .choice("layout", &[("hash", Layout::Hash), ("string", Layout::String)])?
        .unwrap_or(Layout::Hash);
    let redisson_fence =
        options.choice("fence", &[("hybrid", false), ("redisson", true)])?.unwrap_or(false);
    if redisson_fence && layout == Layout::String {
        return Err(Error::Url("fence=redisson needs layout=hash".to_owned()));
    }
    let settings = Settings {
        layout,
        prefix: options.take("prefix")?.unwrap_or_default(),
        redisson_fence,
        replicas: number(&mut options, "wait_replicas")?.unwrap_or(0),
        disconnections: Disconnections::default(),
    };
    let url = endpoint.expose();
    let (family, topology) = match endpoint.scheme().split_once('+') {
        Some((family, topology)) => (family, topology),
        None => (endpoint.scheme(), ""),
    };
    let user = Some(decode(url.username())?).filter(|user| !user.is_empty());
    let password = password(&mut options, "")?.or(match url.password() {
        Some(password) => Some(decode(password)?),
        None => None,
    });
    let timeout = options.duration("timeout")?.unwrap_or(TIMEOUT);
    if timeout < Duration::from_millis(10) {
        return Err(Error::Url("option timeout must be at least 10ms".to_owned()));
    }
    let tls = if matches!(family, "rediss" | "valkeys") { Some(tls(&mut options)?) } else { None };
    let disconnections = settings.disconnections.clone();
    let mut connect_options =
        ConnectOptions { user, password, database: 0, tls, timeout, disconnections };
    let hosts = |port: u16| -> Vec<(String, u16)> {
        let hosts = endpoint.hosts();
        let hosts = hosts.into_iter().map(|(host, own)| (host, own.unwrap_or(port)));
        Some(hosts.collect())
            .filter(|hosts: &Vec<_>| !hosts.is_empty())
            .unwrap_or_else(|| vec![("localhost".to_owned(), port)])
    };
    let path = decode(url.path().trim_start_matches('/'))?;
    let servers = match topology {
        "" => {
            let [(host, port)] = hosts(6379).try_into().map_err(|_| {
                Error::Url(format!(
                    "{family}: takes one host; several are {family}+sentinel: or {family}+cluster:"
                ))
            })?;
            connect_options.database = database(&path)?;
            Topology::One(Arc::new(Connection::new(Connector::server(
                &host,
                port,
                &connect_options,
            ))))
        }
        "unix" => {
            connect_options.database = number(&mut options, "db")?.unwrap_or(0).into();
            let path = decode(url.path())?;
            if path.is_empty() || url.has_host() && url.host_str() != Some("") {
                return Err(Error::Url(format!(
                    "{family}+unix: needs the path of a socket, as in {family}+unix:///run/redis.sock"
                )));
            }
            Topology::One(Arc::new(Connection::new(Connector::unix(&path, connect_options))))
        }
        "sentinel" => {
            let (master, number) = path.split_once('/').unwrap_or((&path, ""));
            if master.is_empty() {
                return Err(Error::Url(format!(
                    "{family}+sentinel: needs the name of the master, as in {family}+sentinel://h1,h2,h3/mymaster"
                )));
            }
            connect_options.database = database(number)?;
            let asking = ConnectOptions {
                user: options.take("sentinel_user")?,
                password: self::password(&mut options, "sentinel_")?,
                database: 0,
                ..connect_options.clone()
            };
            let sentinels = hosts(26379)
                .iter()
                .map(|(host, port)| Connector::server(host, *port, &asking))
                .collect();
            let dial = Connector::master(sentinels, master.to_owned(), connect_options);
            Topology::One(Arc::new(Connection::new(dial)))
        }
        _ => {
            if database(&path)? != 0 {
                return Err(Error::Url("a Redis Cluster has database 0 only".to_owned()));
            }
            Topology::Cluster(Box::new(Cluster::new(hosts(6379), connect_options)))
        }
    };
    options.finish()?;
    Ok((servers, settings))
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions").field("database", &self.database).finish_non_exhaustive()
    }
}

fn database(path: &str) -> Result<i64> {
    if path.is_empty() {
        return Ok(0);
    }
    path.parse().ok().filter(|number| *number >= 0).ok_or_else(|| {
        Error::Url(format!(
            "{path:?} is not the number of a database; write host/0, or only the host"
        ))
    })
}

fn number(options: &mut Options, name: &'static str) -> Result<Option<u32>> {
    let Some(text) = options.take(name)? else { return Ok(None) };
    let number = text.parse().map_err(|_| {
        Error::Url(format!("option {name} cannot be {text:?}; it is a number from 0"))
    })?;
    Ok(Some(number))
}

/// A password from the environment or a file, so that no URL has to contain one.
fn password(options: &mut Options, whose: &str) -> Result<Option<String>> {
    let (env, file) = match whose {
        "" => ("password_env", "password_file"),
        _ => ("sentinel_password_env", "sentinel_password_file"),
    };
    if let Some(name) = options.take(env)? {
        return std::env::var(&name)
            .map(Some)
            .map_err(|_| Error::Url(format!("option {env}: there is no variable {name:?}")));
    }
    let Some(path) = options.take(file)? else { return Ok(None) };
    let text = read_file(file, &path)?;
    let text = String::from_utf8(text)
        .map_err(|_| Error::Url(format!("option {file}: {path:?} is not text")))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

fn tls(options: &mut Options) -> Result<TlsCertificates> {
    // The first provider installed wins; an application that chose another one keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut pem = |name| match options.take(name)? {
        Some(path) => read_file(name, &path).map(Some),
        None => Ok(None),
    };
    let (root_cert, client_cert, client_key) = (pem("ca")?, pem("cert")?, pem("key")?);
    let client_tls = match (client_cert, client_key) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        (None, None) => None,
        _ => return Err(Error::Url("options cert and key belong together".to_owned())),
    };
    Ok(TlsCertificates { client_tls, root_cert })
}

fn read_file(option: &str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|e| Error::Url(format!("option {option}: cannot read {path:?}: {e}")))
}

fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    // Not quoted: it may be a password.
    decoded.map(Into::into).map_err(|_| Error::Url("a part of the URL is not UTF-8".to_owned()))
}
