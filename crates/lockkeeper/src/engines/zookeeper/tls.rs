//! The TLS settings in a `zookeepers:` URL.
//!
//! The client trusts no certificate authority by default, so one has to be named.

use zookeeper_client::TlsOptions;

use crate::engines::endpoint::Options;
use crate::error::{Error, Result};

/// Takes the options `ca`, `cert` and `key`.
pub(super) fn read(options: &mut Options) -> Result<TlsOptions> {
    // The first provider installed wins; an application that chose another one keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(ca) = pem(options, "ca")? else {
        return Err(Error::Url(
            "zookeepers: needs the authority that vouches for the servers: ca=FILE".to_owned(),
        ));
    };
    let refuse = |what: &str, error| Error::Url(format!("option {what}: {error}"));
    let tls = TlsOptions::new().with_pem_ca(&ca).map_err(|error| refuse("ca", error))?;
    match (pem(options, "cert")?, pem(options, "key")?) {
        (None, None) => Ok(tls),
        (Some(cert), Some(key)) => {
            tls.with_pem_identity(&cert, &key).map_err(|error| refuse("cert, key", error))
        }
        _ => Err(Error::Url(
            "the options cert and key go together: name both files, or neither".to_owned(),
        )),
    }
}

/// The contents of a file that an option names.
fn pem(options: &mut Options, name: &'static str) -> Result<Option<String>> {
    let Some(path) = options.take(name)? else { return Ok(None) };
    let text = std::fs::read_to_string(&path);
    text.map(Some).map_err(|error| Error::Url(format!("option {name}: {path:?}: {error}")))
}
