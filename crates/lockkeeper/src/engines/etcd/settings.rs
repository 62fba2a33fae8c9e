//! The settings in an `etcd://` URL.

use std::path::Path;

use percent_encoding::percent_decode_str;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::client::{Access, User};
use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};

/// The default port of etcd.
const PORT: u16 = 2379;

/// A cluster and how to reach it.
pub(super) struct Settings {
    pub(super) addresses: Vec<String>,
    pub(super) access: Access,
    pub(super) prefix: String,
    /// Whether a password goes over the network in plain text.
    pub(super) bare_password: bool,
}

impl Settings {
    pub(super) fn read(endpoint: &Endpoint) -> Result<Self> {
        let secure = endpoint.scheme() == "etcds";
        let url = endpoint.expose();
        if !matches!(url.path(), "" | "/") {
            return Err(Error::Url(
                "an etcd: URL has no path; write etcd://host?prefix=locks/ to put a prefix before every key"
                    .to_owned(),
            ));
        }
        let mut options = endpoint.options();
        let prefix = options.take("prefix")?.unwrap_or_default();
        let ca = options.take("ca")?;
        let pair = (options.take("cert")?, options.take("key")?);
        let server_name = options.take("server_name")?;
        options.finish()?;
        if !secure
            && (ca.is_some() || pair.0.is_some() || pair.1.is_some() || server_name.is_some())
        {
            return Err(Error::Url(
                "the options ca, cert, key and server_name are for TLS; write etcds://".to_owned(),
            ));
        }
        let mut access = Access::default();
        let name = decoded(url.username())?;
        if !name.is_empty() {
            let password = decoded(url.password().unwrap_or_default())?;
            access.user = Some(User { name, password });
        }
        if secure {
            // A CA of your own replaces those that the system trusts.
            let mut tls = match ca {
                Some(ca) => {
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(file("ca", &ca)?))
                }
                None => ClientTlsConfig::new().with_enabled_roots(),
            };
            match pair {
                (Some(cert), Some(key)) => {
                    tls =
                        tls.identity(Identity::from_pem(file("cert", &cert)?, file("key", &key)?));
                }
                (None, None) => {}
                _ => {
                    return Err(Error::Url(
                        "the options cert and key go together: name both files, or neither".into(),
                    ));
                }
            }
            if let Some(name) = server_name {
                tls = tls.domain_name(name);
            }
            access.tls = Some(tls);
        }
        let scheme = if secure { "https" } else { "http" };
        let addresses: Vec<_> = endpoint
            .hosts()
            .into_iter()
            .map(|(host, port)| {
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                format!("{scheme}://{host}:{}", port.unwrap_or(PORT))
            })
            .collect();
        if addresses.is_empty() {
            return Err(Error::Url(
                "an etcd: URL names at least one member, as in etcd://h1,h2,h3".to_owned(),
            ));
        }
        let bare_password = !secure && !url.username().is_empty();
        Ok(Self { addresses, access, prefix, bare_password })
    }
}

fn decoded(part: &str) -> Result<String> {
    let text = percent_decode_str(part).decode_utf8();
    // Not quoted: it may be the password.
    let text = text.map_err(|_| Error::Url("user and password have to be UTF-8".to_owned()))?;
    Ok(text.into_owned())
}

fn file(option: &str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(Path::new(path))
        .map_err(|e| Error::Url(format!("option {option}: cannot read {path:?}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Settings> {
        Settings::read(&Endpoint::parse(url).unwrap())
    }

    fn refusal(url: &str) -> String {
        read(url).map(|settings| settings.addresses).unwrap_err().to_string()
    }

    #[test]
    fn every_member_has_an_address() {
        let settings = read("etcd://one,two:7,[::1]?prefix=locks/").unwrap();
        assert_eq!(settings.addresses, ["http://one:2379", "http://two:7", "http://[::1]:2379"]);
        assert_eq!(settings.prefix, "locks/");
        assert!(!settings.bare_password);
    }

    #[test]
    fn a_password_is_decoded_and_never_shown() {
        let settings = read("etcd://me:can%40ary@one").unwrap();
        assert!(settings.bare_password);
        let password = settings.access.user.map(|user| user.password);
        assert_eq!(password.as_deref(), Some("can@ary"), "else it would be sent wrong");
        assert!(!refusal("etcd://me:canary@one?colour=red").contains("canary"));
    }

    #[test]
    fn what_is_refused_names_what_is_accepted() {
        assert!(refusal("etcd://one/locks").contains("?prefix=locks/"));
        assert!(
            refusal("etcd://one?colour=red")
                .contains("it takes: prefix, ca, cert, key, server_name")
        );
        assert!(refusal("etcd://one?ca=/ca.pem").contains("etcds://"));
        assert!(refusal("etcds://one?ca=/not/there").contains("/not/there"));
        assert!(refusal("etcds://one?cert=/dev/null").contains("name both"));
        assert!(refusal("etcd:///").contains("etcd://h1,h2,h3"));
    }
}
