//! The engines, and the table of schemes that leads to them.

use std::pin::Pin;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::url::Endpoint;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;

/// A row of the table of schemes.
struct Scheme {
    scheme: &'static str,
    feature: &'static str,
    /// `None` when the feature is switched off.
    open: Option<Open>,
}

type Open = fn(Endpoint) -> Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;

/// Every scheme there is, also those that are not compiled in. A new engine adds its line here.
const SCHEMES: &[Scheme] = &[
    Scheme {
        scheme: "file",
        feature: "file",
        #[cfg(feature = "file")]
        open: Some(|endpoint| Box::pin(file::open(endpoint))),
        #[cfg(not(feature = "file"))]
        open: None,
    },
    Scheme {
        scheme: "memory",
        feature: "memory",
        #[cfg(feature = "memory")]
        open: Some(|endpoint| Box::pin(memory::open(endpoint))),
        #[cfg(not(feature = "memory"))]
        open: None,
    },
    Scheme {
        scheme: "postgres",
        feature: "postgres",
        #[cfg(feature = "postgres")]
        open: Some(|endpoint| Box::pin(postgres::open(endpoint))),
        #[cfg(not(feature = "postgres"))]
        open: None,
    },
];

/// Opens the engine that a URL names, and makes sure that it is there.
///
/// [`Client::connect`](crate::Client::connect) does this and more; use it directly to put
/// [layers](crate::layers) between the engine and a client.
///
/// # Errors
/// As [`Client::connect`](crate::Client::connect).
pub async fn open(endpoint: Endpoint) -> Result<Arc<dyn Backend>> {
    let Some(row) = SCHEMES.iter().find(|row| row.scheme == endpoint.scheme()) else {
        return Err(Error::Config(format!(
            "there is no engine for {}: URLs; the schemes are: {}",
            endpoint.scheme(),
            schemes().collect::<Vec<_>>().join(", ")
        )));
    };
    let Some(open) = row.open else {
        return Err(Error::Config(format!(
            "the engine for {}: URLs is not compiled in; switch on the feature {:?}",
            row.scheme, row.feature
        )));
    };
    open(endpoint).await
}

/// The schemes that a URL may have, compiled in or not.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    SCHEMES.iter().map(|row| row.scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_lists_the_known_ones() {
        let endpoint = Endpoint::parse("gopher://me:canary@host").unwrap();
        let message = open(endpoint).await.unwrap_err().to_string();
        assert_eq!(
            message,
            "there is no engine for gopher: URLs; the schemes are: file, memory, postgres"
        );
    }
}
