//! A parsed URL: an engine, its location, and options, each of which must be known.
//!
//! A URL may carry a password, so [`Endpoint`] prints itself without it and has no other `Display`
//! or `Debug`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use url::{ParseError, Position, Url};

use crate::error::{Error, Result};

/// Query options whose values are never printed.
const SECRET_OPTIONS: [&str; 4] = ["password", "passwd", "secret", "token"];

/// A parsed URL of an engine, which prints itself without secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// With the first host only.
    url: Url,
    /// `host` or `host:port` of the other hosts, after `user:password@` if one has its own.
    others: Vec<String>,
}

impl Endpoint {
    /// Parses a URL such as `file:` or `file:///var/lib/app/locks`.
    ///
    /// # Errors
    /// [`Error::Url`], with a message that quotes nothing that may be a secret.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |error| {
            Error::Url(match error {
                ParseError::RelativeUrlWithoutBase => "this is not the URL of an engine; it starts with a scheme, as in file:, file:///dir or redis://host".to_owned(),
                other => format!("this is not the URL of an engine: {other}; write scheme://host:port, and %XX for what is special in a password"),
            })
        };
        let (text, others) = split_hosts(text);
        let url = Url::parse(&text).map_err(refuse)?;
        for other in &others {
            Url::parse(&format!("{}://{other}", url.scheme())).map_err(refuse)?;
            if other.contains('@') && !matches!(url.scheme(), "redlock" | "redlocks") {
                // Not quoted: it may be a password.
                return Err(Error::Url(format!(
                    "{}: takes one user and password for all hosts, before the first of them; write %40 for @ in a password",
                    url.scheme()
                )));
            }
        }
        let rest = text.split_once(':').map_or("", |(_, rest)| rest);
        if url.scheme() == "file" && !rest.is_empty() && !rest.starts_with(['/', '?', '#']) {
            // The parser would silently turn it into an absolute path.
            return Err(Error::Url(format!(
                "{text:?} is not absolute; write file: for the default directory, or file:///dir"
            )));
        }
        Ok(Self { url, others })
    }

    /// The scheme, which selects the engine.
    pub fn scheme(&self) -> &str {
        self.url.scheme()
    }

    /// The URL with its first host only, secrets included. For an engine's client, never for a
    /// message.
    pub fn expose(&self) -> &Url {
        &self.url
    }

    /// The whole URL with every host, secrets included. It parses to the same endpoint again.
    pub fn spell_out(&self) -> String {
        self.with_all_hosts(&self.url, str::to_owned)
    }

    /// The whole URL with its users, but without passwords and secret options. Together with the
    /// password from elsewhere, it leads to the same engine. For environment variables; messages
    /// have no users either.
    pub fn without_passwords(&self) -> String {
        self.public(self.url.username(), |host| match host.rsplit_once('@') {
            Some((user, address)) => {
                let user = user.split_once(':').map_or(user, |(user, _)| user);
                format!("{user}@{address}")
            }
            None => host.to_owned(),
        })
    }

    /// The same endpoint with this password; `None` if the URL cannot have one.
    pub fn with_password(mut self, password: &str) -> Option<Self> {
        self.url.set_password(Some(password)).ok()?;
        Some(self)
    }

    /// Every host of `scheme://h1,h2:7000,h3`, in order; none if the URL has none.
    pub fn hosts(&self) -> Vec<(String, Option<u16>)> {
        self.each()
            .iter()
            .filter_map(|url| {
                // The brackets of an IPv6 address are URL syntax.
                let host = url.host_str()?.trim_matches(['[', ']']);
                (!host.is_empty()).then(|| (host.to_owned(), url.port()))
            })
            .collect()
    }

    /// A URL for every host, secrets included. A host without user and password uses those of the
    /// first.
    pub(crate) fn each(&self) -> Vec<Url> {
        let others = self.others.iter().filter_map(|other| {
            // They were parsed before.
            let own = Url::parse(&format!("{}://{other}", self.scheme())).ok()?;
            let mut url = self.url.clone();
            url.set_host(own.host_str()).ok()?;
            url.set_port(own.port()).ok()?;
            if other.contains('@') {
                url.set_username(own.username()).ok()?;
                url.set_password(own.password()).ok()?;
            }
            Some(url)
        });
        std::iter::once(self.url.clone()).chain(others).collect()
    }

    /// The query options, to be taken one by one.
    pub fn options(&self) -> Options {
        let pairs = self.url.query_pairs().map(|(k, v)| (k.into_owned(), v.into_owned())).collect();
        Options { pairs, known: Vec::new(), scheme: self.scheme().to_owned() }
    }

    /// The URL with this user, without its password and secret options.
    fn public(&self, user: &str, spell: fn(&str) -> String) -> String {
        let mut shown = self.url.clone();
        // Both fail only for URLs that cannot have a user at all.
        let _ = shown.set_username(user);
        let _ = shown.set_password(None);
        let kept: Vec<_> = shown
            .query_pairs()
            .filter(|(k, _)| !SECRET_OPTIONS.contains(&k.to_ascii_lowercase().as_str()))
            .map(|(k, v)| (k.into_owned(), v.into_owned()))
            .collect();
        shown.set_query(None);
        if !kept.is_empty() {
            shown.query_pairs_mut().extend_pairs(kept);
        }
        shown.set_fragment(None);
        if shown.scheme() == "file" && shown.path() == "/" {
            // The usual spelling of the default directory; the parser adds slashes.
            return format!("file:{}", &shown[Position::AfterPath..]);
        }
        self.with_all_hosts(&shown, spell)
    }

    fn with_all_hosts(&self, url: &Url, spell: fn(&str) -> String) -> String {
        let (start, rest) = url.as_str().split_at(url[..Position::BeforePath].len());
        let others: String = self.others.iter().map(|other| format!(",{}", spell(other))).collect();
        format!("{start}{others}{rest}")
    }
}

impl FromStr for Endpoint {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for Endpoint {
    /// The URL without users, passwords and secret options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.public("", address))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

/// A host without its user and password.
fn address(host: &str) -> String {
    host.rsplit_once('@').map_or(host, |(_, address)| address).to_owned()
}

/// Removes all hosts but the first from a URL: the standard allows only one.
fn split_hosts(text: &str) -> (String, Vec<String>) {
    let Some(start) = text.find("://").map(|at| at + 3) else {
        return (text.to_owned(), Vec::new());
    };
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    // A comma in the first password is part of it; the other hosts follow after it.
    let hosts = text[start..end].find('@').map_or(start, |at| start + at + 1);
    let mut list = text[hosts..end].split(',').map(str::to_owned);
    let first = list.next().unwrap_or_default();
    (format!("{}{first}{}", &text[..hosts], &text[end..]), list.collect())
}

/// The options of a URL. An engine takes those it knows, then calls [`finish`](Options::finish).
#[derive(Debug)]
pub struct Options {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
    scheme: String,
}

impl Options {
    /// Takes an option that has one of a few values.
    ///
    /// # Errors
    /// [`Error::Url`], with a message that lists the values.
    pub fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == value) {
            Some((_, meaning)) => Ok(Some(*meaning)),
            None => {
                let valid: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                Err(Error::Url(format!(
                    "option {name} cannot be {value:?}; it is one of: {}",
                    valid.join(", ")
                )))
            }
        }
    }

    /// Takes an option that is a duration, such as `500ms` or `2m`.
    ///
    /// # Errors
    /// [`Error::Url`], with a message that shows valid durations.
    pub fn duration(&mut self, name: &'static str) -> Result<Option<Duration>> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        parse_duration(&value).map(Some).map_err(|e| Error::Url(format!("option {name}: {e}")))
    }

    /// Takes an option that is free text.
    ///
    /// # Errors
    /// [`Error::Url`] if it is given twice.
    pub fn take(&mut self, name: &'static str) -> Result<Option<String>> {
        self.known.push(name);
        let mut found = None;
        let mut twice = false;
        self.pairs.retain(|(k, v)| {
            let ours = k == name;
            if ours {
                twice |= found.replace(v.clone()).is_some();
            }
            !ours
        });
        if twice {
            return Err(Error::Url(format!("option {name} is given twice")));
        }
        Ok(found)
    }

    /// Refuses options that were not taken.
    ///
    /// # Errors
    /// [`Error::Url`], with a message that lists the valid options.
    pub fn finish(self) -> Result<()> {
        let Some((name, _)) = self.pairs.first() else { return Ok(()) };
        let valid = match self.known.as_slice() {
            [] => "it takes none".to_owned(),
            known => format!("it takes: {}", known.join(", ")),
        };
        Err(Error::Url(format!("{}: has no option {name:?}; {valid}", self.scheme)))
    }
}

/// Parses a duration: `1500ms`, `5s`, `2m 30s`; a bare number is seconds.
///
/// # Errors
/// [`Error::Config`], with a message that shows valid durations.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let text = text.trim();
    let seconds = text.strip_suffix('s').unwrap_or(text).trim_end();
    let bare = seconds.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    bare.or_else(|| humantime::parse_duration(text).ok()).ok_or_else(|| {
        Error::Config(format!(
            "{text:?} is not a duration; write a number of seconds, or 500ms, 5s, 2m, 1h"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_printed() {
        let endpoint =
            Endpoint::parse("redis://me:canary@host:6379/1?password=canary&layout=string#canary")
                .unwrap();
        for shown in [endpoint.to_string(), format!("{endpoint:?}")] {
            assert!(!shown.contains("canary") && !shown.contains("me"), "{shown}");
            assert!(shown.contains("redis://host:6379/1?layout=string"), "{shown}");
        }
        let kept = endpoint.without_passwords();
        assert_eq!(kept, "redis://me@host:6379/1?layout=string");
        let message = Endpoint::parse("//me:canary@host").unwrap_err().to_string();
        assert!(!message.contains("canary"), "{message}");
    }

    #[test]
    fn a_url_may_name_several_hosts() {
        let text = "redis+cluster://me:a,canary@one:7000,two,[::1]:7002/x?prefix=p";
        let endpoint = Endpoint::parse(text).unwrap();
        let hosts = [("one", Some(7000)), ("two", None), ("::1", Some(7002))]
            .map(|(h, p)| (h.to_owned(), p));
        assert_eq!(endpoint.hosts(), hosts);
        assert_eq!(endpoint.expose().path(), "/x");
        assert_eq!(endpoint.to_string(), "redis+cluster://one:7000,two,[::1]:7002/x?prefix=p");
        assert_eq!(Endpoint::parse(&endpoint.spell_out()).unwrap(), endpoint);
        let changed = endpoint.with_password("b,c").unwrap();
        assert_eq!(changed.hosts(), hosts);
        assert_eq!(changed.expose().password(), Some("b,c"));
        assert_eq!(Endpoint::parse(&changed.spell_out()).unwrap(), changed);
        assert!(Endpoint::parse("redis://one,two:seven").is_err());
        assert!(Endpoint::parse("redis:///var/run/a.sock").unwrap().hosts().is_empty());
    }

    #[test]
    fn a_host_of_a_quorum_may_have_its_own_user() {
        let text = "redlock://a:canary,1@one,b:canary%2C2@two:7000,three/1?prefix=p";
        let endpoint = Endpoint::parse(text).unwrap();
        let users = endpoint.each();
        let users = users.iter().map(|url| (url.username(), url.password(), url.path()));
        let expected =
            [("a", Some("canary,1")), ("b", Some("canary%2C2")), ("a", Some("canary,1"))];
        assert!(users.eq(expected.map(|(user, password)| (user, password, "/1"))));
        let kept = endpoint.without_passwords();
        assert_eq!(kept, "redlock://a@one,b@two:7000,three/1?prefix=p");
        for shown in [endpoint.to_string(), format!("{endpoint:?}")] {
            assert!(shown.contains("redlock://one,two:7000,three/1?prefix=p"), "{shown}");
        }
        assert_eq!(Endpoint::parse(&endpoint.spell_out()).unwrap(), endpoint);
        let message =
            Endpoint::parse("redis+cluster://a:b@one,c:canary@two").unwrap_err().to_string();
        assert!(
            message.contains("one user and password") && !message.contains("canary"),
            "{message}"
        );
    }

    #[test]
    fn a_relative_directory_is_refused() {
        assert!(Endpoint::parse("file:locks").unwrap_err().to_string().contains("file:///dir"));
        for good in ["file:", "file:?network=allow", "file:///dir"] {
            assert_eq!(Endpoint::parse(good).unwrap().to_string(), good);
        }
    }

    #[test]
    fn an_unknown_option_lists_the_known_ones() {
        let mut options = Endpoint::parse("file:?colour=red").unwrap().options();
        options.take("network").unwrap();
        let message = options.finish().unwrap_err().to_string();
        assert_eq!(message, r#"file: has no option "colour"; it takes: network"#);
    }

    #[test]
    fn an_invalid_choice_lists_the_valid_ones() {
        let mut options = Endpoint::parse("file:?network=perhaps").unwrap().options();
        let message =
            options.choice("network", &[("refuse", 0), ("allow", 1)]).unwrap_err().to_string();
        assert!(message.ends_with("it is one of: refuse, allow"), "{message}");
    }

    #[test]
    fn an_option_given_twice_is_refused() {
        let mut options = Endpoint::parse("file:?a=1&a=2").unwrap().options();
        assert!(options.take("a").is_err());
    }

    #[test]
    fn durations_are_seconds_or_carry_a_unit() {
        assert_eq!(parse_duration("2").unwrap(), Duration::from_secs(2));
        assert_eq!(parse_duration("0.25").unwrap(), Duration::from_millis(250));
        assert_eq!(parse_duration("2.5s").unwrap(), Duration::from_millis(2_500));
        assert_eq!(parse_duration("1m 30s").unwrap(), Duration::from_secs(90));
        for bad in ["", "-1", "soon", "5 parsecs", "nan", "inf", "1e300"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
