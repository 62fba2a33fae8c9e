//! The engines, and the table of schemes that leads to them.

use std::pin::Pin;
use std::sync::Arc;

use crate::backend::{Backend, Guarantees};
use crate::error::{Error, Result};
use crate::url::Endpoint;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "memory")]
pub mod memory;

/// A row of the table of schemes.
struct Scheme {
    scheme: &'static str,
    feature: &'static str,
    /// `None` when the feature is switched off.
    open: Option<Open>,
    /// What it promises, known without opening it.
    guarantees: Option<Guarantees>,
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
        #[cfg(feature = "file")]
        guarantees: Some(file::GUARANTEES),
        #[cfg(not(feature = "file"))]
        guarantees: None,
    },
    Scheme {
        scheme: "memory",
        feature: "memory",
        #[cfg(feature = "memory")]
        open: Some(|endpoint| Box::pin(memory::open(endpoint))),
        #[cfg(not(feature = "memory"))]
        open: None,
        #[cfg(feature = "memory")]
        guarantees: Some(memory::GUARANTEES),
        #[cfg(not(feature = "memory"))]
        guarantees: None,
    },
];

/// Opens the engine that a URL names, and makes sure that it is there.
pub(crate) async fn open(endpoint: Endpoint) -> Result<Arc<dyn Backend>> {
    match row(&endpoint)? {
        Scheme { open: Some(open), .. } => open(endpoint).await,
        row => Err(not_compiled_in(row)),
    }
}

/// What the engine that a URL names promises. No I/O.
///
/// # Errors
/// [`Error::Config`] if there is no such engine, or it is not compiled in.
pub fn guarantees(endpoint: &Endpoint) -> Result<Guarantees> {
    let row = row(endpoint)?;
    row.guarantees.ok_or_else(|| not_compiled_in(row))
}

/// What each engine that is compiled in promises, along with its scheme.
pub fn engines() -> impl Iterator<Item = (&'static str, Guarantees)> {
    SCHEMES.iter().filter_map(|row| Some((row.scheme, row.guarantees?)))
}

/// The schemes that a URL may have, compiled in or not.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    SCHEMES.iter().map(|row| row.scheme)
}

fn row(endpoint: &Endpoint) -> Result<&'static Scheme> {
    SCHEMES.iter().find(|row| row.scheme == endpoint.scheme()).ok_or_else(|| {
        Error::Config(format!(
            "there is no engine for {}: URLs; the schemes are: {}",
            endpoint.scheme(),
            schemes().collect::<Vec<_>>().join(", ")
        ))
    })
}

fn not_compiled_in(row: &Scheme) -> Error {
    Error::Config(format!(
        "the engine for {}: URLs is not compiled in; switch on the feature {:?}",
        row.scheme, row.feature
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_lists_the_known_ones() {
        let endpoint = Endpoint::parse("gopher://me:canary@host").unwrap();
        let message = open(endpoint).await.unwrap_err().to_string();
        assert_eq!(message, "there is no engine for gopher: URLs; the schemes are: file, memory");
    }

    #[tokio::test]
    async fn what_is_told_without_opening_is_what_the_open_engine_says() {
        let mut told = 0;
        for (scheme, guarantees) in engines().filter(|(_, g)| g.engine == "memory") {
            let endpoint = Endpoint::parse(&format!("{scheme}:")).unwrap();
            assert_eq!(super::guarantees(&endpoint).unwrap(), guarantees);
            assert_eq!(open(endpoint).await.unwrap().guarantees(), guarantees);
            told += 1;
        }
        assert_eq!(told, usize::from(cfg!(feature = "memory")));
    }
}
