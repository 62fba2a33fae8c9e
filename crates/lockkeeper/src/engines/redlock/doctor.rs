//! Looks at every server, and at what they are to each other.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::{Finding, Severity};

use super::Quorum;
use super::fan_out::{FanOut, question};
use super::node::Node;
use crate::engines::redis::doctor;

pub(super) async fn doctor(quorum: &Arc<Quorum>) -> Vec<Finding> {
    let questions = quorum.nodes.iter().enumerate().map(|(at, node)| {
        let (node, strict) = (node.clone(), quorum.settings.strict);
        let asked = async move { examine(&node, strict).await };
        (at, question(asked))
    });
    let mut calls = FanOut::new(questions.collect());
    let mut found: Vec<_> = Vec::new();
    while let Some((server, findings)) = calls.next().await {
        found.push((server, findings));
    }
    found.sort_by_key(|(server, _)| *server);

    let mut runs: HashMap<String, usize> = HashMap::new();
    let mut findings = Vec::new();
    let mut reached = 0;
    for (server, (run, own)) in found {
        reached += usize::from(run.is_some());
        findings.extend(own);
        if let Some(first) = run.and_then(|run| runs.insert(run, server)) {
            findings.push(Finding {
                severity: Severity::Problem,
                what: format!(
                    "{} and {} are one and the same server, which has two votes",
                    quorum.nodes[first].name(),
                    quorum.nodes[server].name()
                ),
                advice: "name every server once".to_owned(),
            });
        }
    }
    let (all, majority) = (quorum.nodes.len(), quorum.majority());
    findings.push(Finding {
        severity: match reached {
            _ if reached == all => Severity::Fine,
            _ if reached >= majority => Severity::Warning,
            _ => Severity::Problem,
        },
        what: format!("{reached} of {all} servers answer; {majority} are needed"),
        advice: match reached == all {
            true => String::new(),
            false => "bring the others back before one more fails".to_owned(),
        },
    });
    findings
}

/// The run id of a server that answers, and what is to be said of it.
async fn examine(
    node: &Arc<Node>,
    strict: Option<std::time::Duration>,
) -> (Option<String>, Vec<Finding>) {
    let (age, run) = match node.age().await {
        Ok(known) => known,
        Err(error) => {
            let finding = Finding {
                severity: Severity::Problem,
                what: format!("{}: {error}", node.name()),
                advice: "start it, or allow +info to the user that runs this check".to_owned(),
            };
            return (None, vec![finding]);
        }
    };
    let is_young = strict.is_some_and(|strict| age <= strict);
    let mut findings = vec![Finding {
        severity: if is_young { Severity::Warning } else { Severity::Fine },
        what: format!(
            "{}: run {} for {}{}",
            node.name(),
            &run[..run.len().min(8)],
            humantime::format_duration(age),
            if is_young { ", too short for a vote" } else { "" }
        ),
        advice: match is_young {
            true => "it votes again when the longest lease is over".to_owned(),
            false => String::new(),
        },
    }];
    match doctor::doctor(node.store()).await {
        Ok(more) => findings.extend(more),
        Err(error) => findings.push(Finding {
            severity: Severity::Problem,
            what: format!("{}: {error}", node.name()),
            advice: "see docs/engines/redlock.md".to_owned(),
        }),
    }
    (Some(run), findings)
}
