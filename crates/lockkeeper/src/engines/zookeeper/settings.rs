//! The settings in a URL: servers, root, session, credentials.

use std::fmt;
use std::time::Duration;

use zookeeper_client as zk;

use super::layout::percent_decode;
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};

/// The root of the locks, unless set.
const DEFAULT_ROOT: &str = "/lockkeeper";

/// How long the servers keep a silent session, unless set.
const DEFAULT_SESSION: Duration = Duration::from_secs(30);

const DEFAULT_PORT: u16 = 2181;

/// The port that ZooKeeper's own examples use for TLS.
const SECURE_PORT: u16 = 2281;

/// How long one server may take to accept a connection, when we find out why none answers.
const PROBE: Duration = Duration::from_millis(300);

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) hosts: Vec<(String, u16)>,
    /// Without a slash at its end; empty for the top of the tree.
    pub(super) root: String,
    /// The requested length. The servers may grant more or less.
    pub(super) session: Duration,
    login: Option<Login>,
    pub(super) open: bool,
    /// Whether the connections use TLS.
    pub(super) secure: bool,
    #[cfg(feature = "zookeeper-tls")]
    tls: Option<zk::TlsOptions>,
}

/// A user and how it authenticates.
#[derive(Clone)]
struct Login {
    user: String,
    password: String,
    way: Way,
}

/// The method of authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The scheme `digest`: the servers accept any user, and nodes record theirs.
    Digest,
    /// The servers know the user, by SASL DIGEST-MD5.
    Sasl,
}

impl Settings {
    pub(super) fn parse(endpoint: &Endpoint) -> Result<Self> {
        let mut options = endpoint.options();
        let session = options.duration("session")?.unwrap_or(DEFAULT_SESSION);
        let open = options.choice("acl", &[("open", true), ("creator", false)])?;
        let way = options.choice("auth", &[("digest", Way::Digest), ("sasl", Way::Sasl)])?;
        let secure = endpoint.scheme() == "zookeepers";
        #[cfg(feature = "zookeeper-tls")]
        let tls = if secure { Some(super::tls::read(&mut options)?) } else { None };
        options.finish()?;
        if !(Duration::from_millis(100)..=Duration::from_secs(24 * 3600)).contains(&session) {
            return Err(Error::Url(format!(
                "a session of {session:?} is not possible; it is between 100ms and a day"
            )));
        }
        let hosts: Vec<_> = endpoint
            .hosts()
            .into_iter()
            .map(|(host, port)| {
                (host, port.unwrap_or(if secure { SECURE_PORT } else { DEFAULT_PORT }))
            })
            .collect();
        if hosts.is_empty() {
            return Err(Error::Url(
                "a ZooKeeper URL names its servers: zookeeper://h1,h2,h3/root".to_owned(),
            ));
        }
        let url = endpoint.expose();
        let text = |encoded: &str| {
            percent_decode(encoded)
                .ok_or_else(|| Error::Url("a part of the URL is not text".to_owned()))
        };
        let root = match url.path() {
            "" => DEFAULT_ROOT.to_owned(),
            path => text(path.strip_suffix('/').unwrap_or(path))?,
        };
        if root.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
            return Err(Error::Url(format!(
                "{root:?} is not a path in ZooKeeper; it has no empty part, no . and no .."
            )));
        }
        let login = match (url.username(), url.password()) {
            ("", None) => None,
            (_, None) | ("", _) => {
                return Err(Error::Url(
                    "credentials are a user and a password: zookeeper://user:password@host"
                        .to_owned(),
                ));
            }
            (user, Some(password)) => Some(Login {
                user: text(user)?,
                password: text(password)?,
                way: way.unwrap_or(Way::Digest),
            }),
        };
        if way.is_some() && login.is_none() {
            return Err(Error::Url(
                "auth says how a user is proved: name a user and a password".to_owned(),
            ));
        }
        if open == Some(false) && login.is_none() {
            return Err(Error::Url(
                "acl=creator needs a creator: name a user and a password".to_owned(),
            ));
        }
        let open = open.unwrap_or(login.is_none());
        Ok(Self {
            hosts,
            root,
            session,
            login,
            open,
            secure,
            #[cfg(feature = "zookeeper-tls")]
            tls,
        })
    }

    /// The access control list of everything we create.
    pub(super) fn acls(&self) -> zk::Acls<'static> {
        if self.open { zk::Acls::anyone_all() } else { zk::Acls::creator_all() }
    }

    /// A connector with everything but the servers, for a session of this length.
    pub(super) fn connector(&self, session: Duration) -> zk::Connector {
        // A silent server is left early enough to renew at another one before the holder would have
        // to stop; see `Session::vouched`.
        let silence = (session / 8).max(Duration::from_millis(500));
        let connector =
            zk::Client::connector().with_session_timeout(session).with_connection_timeout(silence);
        #[cfg(feature = "zookeeper-tls")]
        let connector = match &self.tls {
            Some(tls) => connector.with_tls(tls.clone()),
            None => connector,
        };
        match &self.login {
            Some(Login { user, password, way: Way::Digest }) => {
                let digest = format!("{user}:{password}");
                connector.with_auth("digest", digest.as_bytes()).with_fail_eagerly()
            }
            // Not failing at the first error: a server with TLS may answer the login before the
            // session it belongs to, which the client takes for a broken connection.
            Some(Login { user, password, way: Way::Sasl }) => {
                connector.with_sasl(zk::SaslOptions::digest_md5(user.clone(), password.clone()))
            }
            None => connector.with_fail_eagerly(),
        }
    }

    /// The servers, in the syntax of the client crate.
    pub(super) fn servers(&self) -> String {
        let way = if self.secure { "tcp+tls://" } else { "" };
        let show = |(host, port): &(String, u16)| match host.contains(':') {
            true => format!("{way}[{host}]:{port}"),
            false => format!("{way}{host}:{port}"),
        };
        self.hosts.iter().map(show).collect::<Vec<_>>().join(",")
    }

    /// Why no server can be connected to; `None` if one can. The client retries forever and does
    /// not report why it fails.
    pub(super) async fn why_unreachable(&self) -> Option<String> {
        let mut why = None;
        for (host, port) in &self.hosts {
            let connecting = tokio::net::TcpStream::connect((host.as_str(), *port));
            match tokio::time::timeout(PROBE, connecting).await {
                Ok(Ok(_)) => return None,
                Ok(Err(error)) => why = Some(format!("{host}:{port}: {error}")),
                Err(_) => {
                    why = why.or_else(|| Some(format!("{host}:{port} cannot be connected to")))
                }
            }
        }
        why
    }
}

impl fmt::Debug for Settings {
    /// Without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.servers(), self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Settings> {
        Settings::parse(&Endpoint::parse(url)?)
    }

    #[test]
    fn a_url_names_servers_root_and_session() {
        let settings = parse("zookeeper://one,two:7000,[::1]:7001/app/locks?session=6s").unwrap();
        assert_eq!(settings.servers(), "one:2181,two:7000,[::1]:7001");
        assert_eq!(
            (settings.root.as_str(), settings.session),
            ("/app/locks", Duration::from_secs(6))
        );
        assert_eq!(parse("zookeeper://one").unwrap().root, "/lockkeeper");
        assert_eq!(parse("zookeeper://one/").unwrap().root, "");
        assert_eq!(parse("zookeeper://one/a%20b/").unwrap().root, "/a b");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_does() {
        for (bad, hint) in [
            ("zookeeper:///root", "zookeeper://h1,h2,h3/root"),
            ("zookeeper://one/a//b", "no empty part"),
            ("zookeeper://me@one", "user and a password"),
            ("zookeeper://one?acl=creator", "needs a creator"),
            ("zookeeper://one?auth=sasl", "name a user"),
            ("zookeeper://me:x@one?auth=trust", "digest, sasl"),
            ("zookeeper://one?acl=nobody", "open, creator"),
            ("zookeeper://one?session=1ms", "between 100ms and a day"),
            ("zookeeper://one?colour=red", "it takes: session, acl, auth"),
        ] {
            let message = parse(bad).unwrap_err().to_string();
            assert!(message.contains(hint), "{bad}: {message}");
        }
    }

    #[test]
    fn credentials_close_the_nodes_and_are_never_shown() {
        let settings = parse("zookeeper://me:c%61nary@one/locks").unwrap();
        let login = settings.login.as_ref().map(|login| (&*login.user, &*login.password));
        assert_eq!(login, Some(("me", "canary")));
        assert!(!settings.open);
        assert!(!format!("{settings:?}").contains("canary"));
        assert!(parse("zookeeper://me:x@one?acl=open").unwrap().open);
    }
}
