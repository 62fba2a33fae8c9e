//! The settings in a Redlock URL: the servers, and how long each of them may take.

use std::time::Duration;

use url::Url;

use crate::engines::endpoint::Endpoint;
use crate::error::{Error, Result};

use super::node::Node;
use crate::engines::redis::settings as redis;

/// How long a server may take to answer, unless set.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

/// Fewer servers have no minority that may fail; more are a mistake, and do not fit a set of 64
/// bits.
const COUNT: std::ops::RangeInclusive<usize> = 3..=64;

/// The settings in a URL apart from the servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// How long one server may take to answer.
    pub(super) node_timeout: Duration,
    /// How long a server does not vote after it started: the longest lease in use.
    pub(super) strict: Option<Duration>,
}

/// Reads a URL. The only I/O is reading the files that it names.
pub(super) fn read(endpoint: &Endpoint) -> Result<(Vec<Node>, Settings)> {
    let mut options = endpoint.options();
    let settings = Settings {
        node_timeout: options.duration("node_timeout")?.unwrap_or(NODE_TIMEOUT),
        strict: options.duration("strict")?,
    };
    if settings.node_timeout < Duration::from_millis(10) {
        return Err(Error::Url("option node_timeout must be at least 10ms".to_owned()));
    }
    // All other options are those of the single servers, and are parsed as if each server were
    // alone.
    let layout = options.choice("layout", &[("string", "string"), ("hash", "hash")])?;
    let timeout = format!("{}ms", settings.node_timeout.as_millis());
    let mut passed = vec![("layout", layout.unwrap_or("string").to_owned()), ("timeout", timeout)];
    let tls: &[&'static str] =
        if endpoint.scheme() == "redlocks" { &["ca", "cert", "key"] } else { &[] };
    for name in ["prefix", "password_env", "password_file"].iter().chain(tls) {
        passed.extend(options.take(name)?.map(|value| (*name, value)));
    }
    options.finish()?;

    let hosts = endpoint.hosts();
    if !COUNT.contains(&hosts.len()) {
        return Err(Error::Url(format!(
            "{}: needs three servers or more (at most 64) that are independent of each other, as in {0}://h1,h2,h3; for one server there is redis:",
            endpoint.scheme()
        )));
    }
    let mut nodes: Vec<Node> = Vec::with_capacity(hosts.len());
    for url in endpoint.each() {
        let node = node(url, &passed, settings)?;
        if nodes.iter().any(|other| other.name() == node.name()) {
            return Err(Error::Url(format!(
                "{} is named twice: it would have two votes",
                node.name()
            )));
        }
        nodes.push(node);
    }
    Ok((nodes, settings))
}

fn node(mut url: Url, passed: &[(&str, String)], settings: Settings) -> Result<Node> {
    let scheme = if url.scheme() == "redlocks" { "rediss" } else { "redis" };
    // It was parsed before, so it can only fail together with the parse below.
    let _ = url.set_scheme(scheme);
    url.query_pairs_mut().clear().extend_pairs(passed);
    let (servers, own) = redis::read(&Endpoint::parse(url.as_str())?)?;
    let name = format!("{}:{}", url.host_str().unwrap_or_default(), url.port().unwrap_or(6379));
    Ok(Node::new(name, servers, own, settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        read(&Endpoint::parse(url).unwrap()).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (url, words) in [
            ("redlock://one,two", "three servers or more"),
            ("redlock://one,two:7000,one:6379", "one:6379 is named twice"),
            ("redlock://a,b,c?node_timeout=1ms", "at least 10ms"),
            ("redlock://a,b,c?layout=tree", "it is one of: string, hash"),
            ("redlock://a,b,c?strickt=1m", "it takes: node_timeout, strict, layout, prefix"),
            ("redlock://a,b,c?ca=x", r#"redlock: has no option "ca""#),
        ] {
            let message = refusal(url);
            assert!(message.contains(words), "{url}: {message}");
        }
    }

    #[test]
    fn every_server_has_the_options_and_no_secret_is_printed() {
        let url = "redlock://me:canary@[::1]:7000,b,you:canary@c/2?prefix=p:&strict=1m";
        let (nodes, settings) = read(&Endpoint::parse(url).unwrap()).unwrap();
        let names: Vec<_> = nodes.iter().map(Node::name).collect();
        assert_eq!(names, ["[::1]:7000", "b:6379", "c:6379"]);
        assert_eq!(settings.strict, Some(Duration::from_secs(60)));
        assert!(!format!("{nodes:?}").contains("canary"));
    }
}
