//! The way of a client to its servers, through proxies of its own.

use std::net::SocketAddr;

use crate::proxy::Proxy;

/// Starts a proxy in front of every host of a URL, and returns the URL that leads through them.
///
/// `hosts` are the addresses of the URL's hosts, in order.
pub async fn through_proxies(url: &str, hosts: &[SocketAddr]) -> (String, Vec<Proxy>) {
    let mut proxies = Vec::new();
    for host in hosts {
        proxies.push(Proxy::start(*host).await);
    }
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    (with_hosts(url, &addresses), proxies)
}

/// The same URL with other hosts; users and passwords stay.
fn with_hosts(url: &str, hosts: &[String]) -> String {
    let Some(start) = url.find("://").map(|at| at + 3) else { return url.to_owned() };
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    // A comma in the first password is part of it.
    let first = url[start..end].find('@').map_or(start, |at| start + at + 1);
    let mut all = hosts.iter();
    let changed = url[first..end].split(',').filter_map(|old| {
        let user = old.rfind('@').map_or("", |at| &old[..=at]);
        all.next().map(|host| format!("{user}{host}"))
    });
    let changed: Vec<_> = changed.collect();
    format!("{}{}{}", &url[..first], changed.join(","), &url[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosts_of_a_url_change() {
        let hosts = ["127.0.0.1:1", "127.0.0.1:2"].map(str::to_owned);
        for (before, after) in [
            ("redis://h", "redis://127.0.0.1:1"),
            ("redis://u:a,b@h:6379/3?prefix=x", "redis://u:a,b@127.0.0.1:1/3?prefix=x"),
            ("etcd://h1,h2?x=1", "etcd://127.0.0.1:1,127.0.0.1:2?x=1"),
            ("redlock://:p@h1,:q@h2", "redlock://:p@127.0.0.1:1,:q@127.0.0.1:2"),
            ("file:", "file:"),
        ] {
            assert_eq!(with_hosts(before, &hosts), after);
        }
    }
}
