//! The engines, and the table of URL schemes that select them.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;

use crate::engine::{Engine, Guarantees};
use crate::error::{Error, Result};

use endpoint::Endpoint;

#[cfg(any(
    feature = "redis",
    feature = "zookeeper",
    feature = "etcd",
    feature = "postgres",
    feature = "mysql"
))]
mod disconnections;
pub mod endpoint;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(all(feature = "file", target_os = "linux"))]
pub mod file;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(
    feature = "redis",
    feature = "zookeeper",
    feature = "etcd",
    feature = "postgres",
    feature = "mysql"
))]
mod probe;
#[cfg(any(feature = "zookeeper", feature = "etcd"))]
mod queued;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;
#[cfg(any(feature = "memory", feature = "zookeeper", feature = "etcd"))]
mod yield_signal;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// A row of the table of schemes.
struct Scheme {
    scheme: &'static str,
    feature: &'static str,
    /// `None` if the feature is disabled.
    engine: Option<Registration>,
}

/// What an engine's module registers in the table.
pub(crate) struct Registration {
    /// Opens the engine, and checks that it can be reached.
    pub(crate) open: Open,
    /// What it promises with the options of a URL. No I/O.
    pub(crate) guarantees: fn(&Endpoint) -> Result<Guarantees>,
    /// One URL per variant with different promises, for tables and examples.
    pub(crate) ways: &'static [&'static str],
}

type Open = fn(Endpoint) -> Pin<Box<dyn Future<Output = Result<Arc<dyn Engine>>> + Send>>;

/// An engine, if its feature is enabled.
macro_rules! engine {
    ($feature:literal, $engine:expr) => {{
        #[cfg(feature = $feature)]
        let engine = Some($engine);
        #[cfg(not(feature = $feature))]
        let engine = None;
        engine
    }};
}

/// Byte-range locks of an open file description, with blocking waits, exist only on Linux.
const FILE: Option<Registration> = {
    #[cfg(all(feature = "file", target_os = "linux"))]
    let engine = Some(file::ENGINE);
    #[cfg(not(all(feature = "file", target_os = "linux")))]
    let engine = None;
    engine
};

/// Every scheme, including those that are not compiled in. A new engine adds a row here.
const SCHEMES: &[Scheme] = &[
    Scheme { scheme: "file", feature: "file", engine: FILE },
    Scheme { scheme: "memory", feature: "memory", engine: engine!("memory", memory::ENGINE) },
    Scheme {
        scheme: "zookeeper",
        feature: "zookeeper",
        engine: engine!("zookeeper", zookeeper::ENGINE),
    },
    Scheme {
        scheme: "zookeepers",
        feature: "zookeeper-tls",
        engine: engine!("zookeeper-tls", zookeeper::SECURE),
    },
    Scheme { scheme: "etcd", feature: "etcd", engine: engine!("etcd", etcd::ENGINE) },
    Scheme { scheme: "etcds", feature: "etcd", engine: engine!("etcd", etcd::ENGINE) },
    Scheme { scheme: "redis", feature: "redis", engine: engine!("redis", redis::ENGINE) },
    Scheme { scheme: "rediss", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme { scheme: "redis+unix", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme { scheme: "redis+sentinel", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme {
        scheme: "rediss+sentinel",
        feature: "redis",
        engine: engine!("redis", redis::SIBLING),
    },
    Scheme { scheme: "redis+cluster", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme { scheme: "rediss+cluster", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme { scheme: "valkey", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme { scheme: "valkeys", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme { scheme: "valkey+unix", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme {
        scheme: "valkey+sentinel",
        feature: "redis",
        engine: engine!("redis", redis::SIBLING),
    },
    Scheme {
        scheme: "valkeys+sentinel",
        feature: "redis",
        engine: engine!("redis", redis::SIBLING),
    },
    Scheme { scheme: "valkey+cluster", feature: "redis", engine: engine!("redis", redis::SIBLING) },
    Scheme {
        scheme: "valkeys+cluster",
        feature: "redis",
        engine: engine!("redis", redis::SIBLING),
    },
    Scheme { scheme: "redlock", feature: "redis", engine: engine!("redis", redlock::ENGINE) },
    Scheme { scheme: "redlocks", feature: "redis", engine: engine!("redis", redlock::ENGINE) },
    Scheme { scheme: "mysql", feature: "mysql", engine: engine!("mysql", mysql::ENGINE) },
    Scheme { scheme: "mariadb", feature: "mysql", engine: engine!("mysql", mysql::ENGINE) },
    Scheme {
        scheme: "postgres",
        feature: "postgres",
        engine: engine!("postgres", postgres::ENGINE),
    },
    Scheme {
        scheme: "postgresql",
        feature: "postgres",
        engine: engine!("postgres", postgres::ENGINE),
    },
];

/// Opens the engine that a URL names, and checks that it can be reached.
///
/// [`Client::connect`](crate::Client::connect) does this and more. Use this function to put
/// [layers](crate::layers) between the engine and a client.
///
/// # Errors
/// Same as [`Client::connect`](crate::Client::connect).
pub async fn open(endpoint: Endpoint) -> Result<Arc<dyn Engine>> {
    let opening = (engine(&endpoint)?.open)(endpoint.clone());
    #[cfg(any(
        feature = "redis",
        feature = "zookeeper",
        feature = "etcd",
        feature = "postgres",
        feature = "mysql"
    ))]
    let opening = probe::explained(&endpoint, opening);
    let opened = opening.await;
    // Names the URL, which may come from a setting that the user does not have in mind; without its
    // options, which the user may not have written.
    let named = endpoint.to_string();
    let named = named.split('?').next().unwrap_or_default();
    opened.map_err(|error| match error {
        Error::Engine { engine, doing, retryable, source } if doing == "connect" => {
            Error::Engine { engine, doing: format!("connect to {named}"), retryable, source }
        }
        other => other,
    })
}

/// Returns what the engine that a URL names promises. No I/O.
///
/// # Errors
/// [`Error::Url`] if there is no such engine, it is not compiled in, or it has no such option.
pub fn guarantees(endpoint: &Endpoint) -> Result<Guarantees> {
    (engine(endpoint)?.guarantees)(endpoint)
}

/// Returns the variants of the engines that are compiled in: a URL for each, and its promises.
pub fn ways() -> impl Iterator<Item = (&'static str, Guarantees)> {
    let engines = SCHEMES.iter().filter_map(|row| row.engine.as_ref());
    // An engine with several schemes is listed once.
    let urls: BTreeSet<&str> = engines.flat_map(|engine| engine.ways).copied().collect();
    urls.into_iter().map(|url| {
        let told = Endpoint::parse(url).and_then(|endpoint| guarantees(&endpoint));
        (url, told.expect("an engine understands its own examples"))
    })
}

/// The migrations of the database engines, by feature.
const SCHEMAS: &[(&str, &str)] = &[
    #[cfg(feature = "mysql")]
    ("mysql", mysql::SCHEMA),
    #[cfg(feature = "postgres")]
    ("postgres", postgres::SCHEMA),
];

/// Returns the tables and functions that a database engine needs, as a migration to run by hand.
///
/// # Errors
/// [`Error::Url`] if the engine that a URL names needs none.
pub fn schema(endpoint: &Endpoint) -> Result<&'static str> {
    engine(endpoint)?;
    let feature = row(endpoint)?.feature;
    let found = SCHEMAS.iter().find(|(owner, _)| *owner == feature);
    found.map(|(_, schema)| *schema).ok_or_else(|| {
        let schemes: Vec<_> = SCHEMAS.iter().map(|(owner, _)| format!("{owner}:")).collect();
        Error::Url(format!(
            "{}: needs no tables; those that do are: {}",
            endpoint.scheme(),
            schemes.join(", ")
        ))
    })
}

/// Returns all URL schemes, compiled in or not.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    SCHEMES.iter().map(|row| row.scheme)
}

fn row(endpoint: &Endpoint) -> Result<&'static Scheme> {
    SCHEMES.iter().find(|row| row.scheme == endpoint.scheme()).ok_or_else(|| {
        Error::Url(format!(
            "there is no engine for {}: URLs; the schemes are: {}",
            endpoint.scheme(),
            schemes().collect::<Vec<_>>().join(", ")
        ))
    })
}

fn engine(endpoint: &Endpoint) -> Result<&'static Registration> {
    let row = row(endpoint)?;
    if row.scheme == "file" && !cfg!(target_os = "linux") {
        return Err(Error::unsupported(
            "file",
            "locks in files of this system; they are for Linux. memory: excludes inside a process, every \
             other engine between processes",
        ));
    }
    row.engine.as_ref().ok_or_else(|| {
        Error::Url(format!(
            "the engine for {}: URLs is not compiled in; switch on the feature {:?}",
            row.scheme, row.feature
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_lists_the_known_ones() {
        let endpoint = Endpoint::parse("gopher://me:canary@host").unwrap();
        let message = open(endpoint).await.unwrap_err().to_string();
        assert!(
            message
                .starts_with("there is no engine for gopher: URLs; the schemes are: file, memory")
        );
    }

    #[tokio::test]
    async fn promises_before_opening_are_those_of_the_open_engine() {
        let endpoint = Endpoint::parse("memory:").unwrap();
        assert_eq!(
            open(endpoint.clone()).await.unwrap().guarantees(),
            guarantees(&endpoint).unwrap()
        );
    }

    #[cfg(feature = "redis")]
    #[test]
    fn every_scheme_of_redis_is_one_of_valkey() {
        let of = |family: &str| -> Vec<_> {
            schemes().filter_map(|scheme| scheme.strip_prefix(family)).collect()
        };
        assert_eq!(of("redis"), of("valkey"));
    }

    #[cfg(all(feature = "postgres", feature = "mysql"))]
    #[test]
    fn databases_are_known_by_the_names_that_their_own_tools_use() {
        for (url, name) in [("postgresql://h/app", "postgres"), ("mariadb://h/app", "mysql")] {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!(guarantees(&endpoint).unwrap().engine, name);
            assert!(schema(&endpoint).unwrap().contains("lockkeeper"), "{url}");
        }
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_missing_store_is_named_without_its_password() {
        // Nothing listens on the first port.
        let endpoint = Endpoint::parse("redis://me:canary@127.0.0.1:1").unwrap();
        let message = open(endpoint).await.unwrap_err().to_string();
        assert!(message.starts_with("redis: cannot connect to redis://127.0.0.1:1: "), "{message}");
    }

    #[test]
    fn every_engine_understands_its_own_examples() {
        let engines: Vec<_> = ways().map(|(_, guarantees)| guarantees.engine).collect();
        assert!(engines.contains(&"memory"), "{engines:?}");
        assert_eq!(engines.contains(&"file"), cfg!(target_os = "linux"), "{engines:?}");
    }
}
