//! Access control: the checks that every request passes before anything else processes it.
//!
//! A foreign page in the operator's browser can reach a loopback address, by a form, by `fetch`, or
//! by a name that it points at this machine (DNS rebinding). So the name in `Host` must be one of
//! ours, `Origin` must be this page, and a request that changes something must be JSON, which no
//! form can send. The token is sent in a header of its own, never in a cookie: a browser adds it to
//! nothing by itself.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Instant;

use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName,
    HeaderValue, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};
use subtle::ConstantTimeEq;

/// The shortest token that is accepted.
pub(crate) const SHORTEST_TOKEN: usize = 16;

/// Requests that are answered at once, and how many more per second.
const BURST: f64 = 200.0;
const PER_SECOND: f64 = 50.0;

/// Who may request what.
pub(crate) struct Access {
    loopback: bool,
    /// Names besides those that are always accepted.
    names: Vec<String>,
    token: Option<String>,
    allowance: Mutex<Allowance>,
}

#[derive(Debug)]
struct Allowance {
    left: f64,
    since: Instant,
}

/// A refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: &'static str,
}

const fn refusal(status: StatusCode, message: &'static str) -> Refusal {
    Refusal { status, message }
}

impl Access {
    pub(crate) fn new(listen: SocketAddr, names: Vec<String>, token: Option<String>) -> Self {
        let allowance = Mutex::new(Allowance { left: BURST, since: Instant::now() });
        Self { loopback: listen.ip().is_loopback(), names, token, allowance }
    }

    /// The checks for every request, the page's own files included.
    pub(crate) fn admit(&self, request: &Parts) -> Result<(), Refusal> {
        if !self.spend() {
            return Err(refusal(StatusCode::TOO_MANY_REQUESTS, "too many requests; wait a second"));
        }
        let misdirected = refusal(
            StatusCode::MISDIRECTED_REQUEST,
            "this server does not go by that name; start it with --host NAME",
        );
        let mut hosts = request.headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return Err(misdirected) };
        let host = host.to_str().map_err(|_| misdirected)?;
        if request.uri.authority().is_some() || !self.is_ours(host) {
            return Err(misdirected);
        }
        let ours = |origin: &HeaderValue| {
            let place = origin.to_str().unwrap_or_default();
            let place = place.strip_prefix("http://").or(place.strip_prefix("https://"));
            place.is_some_and(|place| place == host)
        };
        match request.headers.get_all(ORIGIN).iter().all(ours) {
            true => Ok(()),
            false => Err(refusal(StatusCode::FORBIDDEN, "this request comes from another page")),
        }
    }

    /// The checks for data and changes.
    pub(crate) fn permit(&self, request: &Parts) -> Result<(), Refusal> {
        let site = request.headers.get(HeaderName::from_static("sec-fetch-site"));
        if site.is_some_and(|site| site != "same-origin" && site != "none") {
            return Err(refusal(StatusCode::FORBIDDEN, "this request comes from another page"));
        }
        let json = |kind: &HeaderValue| {
            let kind = kind.to_str().unwrap_or_default();
            kind.split(';').next().is_some_and(|kind| kind.trim() == "application/json")
        };
        if request.method == Method::POST && !request.headers.get(CONTENT_TYPE).is_some_and(json) {
            return Err(refusal(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "send application/json: nothing that a form can send is accepted",
            ));
        }
        let Some(token) = &self.token else { return Ok(()) };
        let given = request.headers.get(AUTHORIZATION).map_or(&[][..], HeaderValue::as_bytes);
        let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
        match bool::from(given.ct_eq(token.as_bytes())) {
            true => Ok(()),
            false => Err(refusal(
                StatusCode::UNAUTHORIZED,
                "the token is missing or wrong; send Authorization: Bearer TOKEN",
            )),
        }
    }

    /// Whether a `Host` is a name of ours.
    ///
    /// The port does not matter, so that an ssh tunnel works. An address cannot be pointed
    /// elsewhere, so any address is accepted by a server that other machines reach; a name can.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let address: Option<IpAddr> = address.unwrap_or(&name).parse().ok();
        match address {
            Some(address) => !self.loopback || address.is_loopback() || self.names.contains(&name),
            None => name == "localhost" || self.names.contains(&name),
        }
    }

    /// Takes one request out of the allowance.
    fn spend(&self) -> bool {
        let mut allowance = self.allowance.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = Instant::now();
        let earned = now.duration_since(allowance.since).as_secs_f64() * PER_SECOND;
        *allowance = Allowance { left: (allowance.left + earned).min(BURST), since: now };
        let enough = allowance.left >= 1.0;
        if enough {
            allowance.left -= 1.0;
        }
        enough
    }
}

impl fmt::Debug for Access {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("loopback", &self.loopback).finish_non_exhaustive()
    }
}

/// The headers of every answer: nothing is loaded from elsewhere, framed, sniffed or cached.
pub(crate) fn harden(headers: &mut HeaderMap) {
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                  connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// An unguessable token.
pub(crate) fn random_token() -> String {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).expect("the operating system gives random bits");
    bits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    const TOKEN: &str = "0123456789abcdef";

    fn local(token: Option<&str>) -> Access {
        Access::new("127.0.0.1:80".parse().unwrap(), vec![], token.map(str::to_owned))
    }

    fn request(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get("/api/v1/locks");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_name_that_somebody_points_at_this_machine_is_refused() {
        let public = Access::new("0.0.0.0:80".parse().unwrap(), vec!["locks.corp".into()], None);
        for (host, at_loopback, elsewhere) in [
            ("localhost:7717", true, true),
            ("LOCALHOST", true, true),
            ("127.0.0.1:7717", true, true),
            ("127.9.9.9", true, true),
            ("[::1]:7717", true, true),
            ("10.0.0.7:7717", false, true),
            ("locks.corp:80", false, true),
            ("evil.example", false, false),
            ("evil.example:7717", false, false),
            ("localhost.evil.example", false, false),
            ("127.0.0.1.evil.example:80", false, false),
            ("localhost@evil.example", false, false),
            ("", false, false),
        ] {
            let of = |access: &Access| access.admit(&request(&[("host", host)])).is_ok();
            assert_eq!((of(&local(None)), of(&public)), (at_loopback, elsewhere), "{host}");
        }
        let nameless = local(None).admit(&request(&[]));
        assert_eq!(nameless.unwrap_err().status, StatusCode::MISDIRECTED_REQUEST);
        let two = request(&[("host", "localhost"), ("host", "evil.example")]);
        assert!(local(None).admit(&two).is_err());
    }

    #[test]
    fn another_page_is_refused() {
        let host = ("host", "localhost:7717");
        for (origin, ours) in [
            ("http://localhost:7717", true),
            ("https://localhost:7717", true),
            ("http://localhost:8080", false),
            ("http://evil.example", false),
            ("null", false),
        ] {
            let admitted = local(None).admit(&request(&[host, ("origin", origin)]));
            assert_eq!(admitted.is_ok(), ours, "{origin}");
        }
        for (site, ours) in
            [("same-origin", true), ("none", true), ("same-site", false), ("cross-site", false)]
        {
            let admitted = local(None).permit(&request(&[host, ("sec-fetch-site", site)]));
            assert_eq!(admitted.is_ok(), ours, "{site}");
        }
    }

    #[test]
    fn only_the_whole_token_is_right() {
        let access = local(Some(TOKEN));
        let with = |value: &str| access.permit(&request(&[("authorization", value)]));
        assert!(with(&format!("Bearer {TOKEN}")).is_ok());
        for wrong in ["", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", TOKEN] {
            assert_eq!(with(wrong).unwrap_err().status, StatusCode::UNAUTHORIZED, "{wrong}");
        }
        assert!(!format!("{access:?}").contains(TOKEN));
    }

    #[test]
    fn what_a_form_can_send_changes_nothing() {
        let post = |kind: &str| {
            let request = Request::post("/api/v1/break").header("content-type", kind);
            local(None).permit(&request.body(()).unwrap().into_parts().0).is_ok()
        };
        assert!(post("application/json") && post("application/json; charset=utf-8"));
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            assert!(!post(kind), "{kind}");
        }
    }

    #[test]
    fn more_requests_than_the_allowance_are_refused() {
        let access = local(None);
        let refused = (0..2 * BURST as usize).filter(|_| !access.spend()).count();
        assert!(refused > 0);
        assert!(random_token().len() >= SHORTEST_TOKEN && random_token() != random_token());
    }
}
