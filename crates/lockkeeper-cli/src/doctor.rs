//! `doctor`: checks a real deployment for problems.

use lockkeeper::engine::{Finding, Severity};
use serde_json::{Value, json};

use crate::args::{Doctor, Where};
use crate::config::Config;
use crate::exit;
use crate::output::print;
use crate::run::timeline::{Limit, Timeline};

pub(crate) async fn doctor(args: Doctor) -> exit::Outcome {
    let place = Where { url: args.url, secret: args.secret };
    let config = Config::load()?;
    let endpoint = config.endpoint(&place)?;
    let client = Config::connect_to(&endpoint).await?;
    let url = endpoint.to_string();
    let mut findings = client.doctor().await?;
    let limit = Limit::of(&client, config.ttl(None)?, None);
    if let Err(refused) = Timeline::new(limit, config.grace(None)?, config.on_lost(None)?) {
        let what = format!("run and elect would be refused: {}", refused.message);
        findings.push(Finding::problem(what, ""));
    }
    let word = |severity| match severity {
        Severity::Fine => "fine",
        Severity::Warning => "warning",
        Severity::Problem => "problem",
    };
    if args.json {
        let findings = findings.iter().map(|finding| {
            json!({
                "severity": word(finding.severity),
                "what": finding.what,
                "advice": finding.advice,
            })
        });
        let told = json!({"url": url, "findings": Value::from_iter(findings)});
        print(&format!("{told}\n"))?;
    } else {
        let mut text = format!("{url} is reachable\n");
        for (what, finding) in once(&findings) {
            text += &format!("{}: {what}\n", word(finding.severity));
            if !finding.advice.is_empty() {
                text += &format!("  {}\n", finding.advice);
            }
        }
        print(&text)?;
    }
    let problem = findings.iter().any(|finding| finding.severity == Severity::Problem);
    client.close().await;
    Ok(u8::from(problem))
}

/// The findings, each of them once: what is so at several servers is said of all of them.
fn once(findings: &[Finding]) -> Vec<(String, &Finding)> {
    let mut all: Vec<(Vec<&str>, &str, &Finding)> = Vec::new();
    for finding in findings {
        let (server, what) = match finding.what.split_once(": ") {
            Some((server, what)) if server.contains(':') && !server.contains(' ') => {
                (Some(server), what)
            }
            _ => (None, finding.what.as_str()),
        };
        let same = |(servers, other, seen): &&mut (Vec<&str>, &str, &Finding)| {
            servers.is_empty() == server.is_none()
                && (*other, seen.severity, &seen.advice)
                    == (what, finding.severity, &finding.advice)
        };
        match (server, all.iter_mut().find(same)) {
            (server, Some((servers, ..))) => servers.extend(server),
            (server, None) => all.push((server.into_iter().collect(), what, finding)),
        }
    }
    let line = |(servers, what, finding): (Vec<&str>, &str, _)| match servers.as_slice() {
        [] => (what.to_owned(), finding),
        servers => (format!("{}: {what}", servers.join(", ")), finding),
    };
    all.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cause_at_three_servers_is_one_line() {
        let off = |server: &str| {
            Finding::warning(format!("{server}: the append-only file is off"), "turn it on")
        };
        let findings = [
            Finding::fine("h1:1: Redis 7"),
            off("h1:1"),
            Finding::fine("h2:1: Redis 6"),
            off("h2:1"),
            Finding::fine("a mutex lock can be acquired"),
            Finding::fine("a mutex lock can be acquired"),
        ];
        let lines: Vec<_> = once(&findings).into_iter().map(|(what, _)| what).collect();
        assert_eq!(
            lines,
            [
                "h1:1: Redis 7",
                "h1:1, h2:1: the append-only file is off",
                "h2:1: Redis 6",
                "a mutex lock can be acquired",
            ]
        );
    }
}
