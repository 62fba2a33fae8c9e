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
    let url = config.endpoint(&place)?.to_string();
    let client = config.connect(&place).await?;
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
        for finding in &findings {
            text += &format!("{}: {}\n", word(finding.severity), finding.what);
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
