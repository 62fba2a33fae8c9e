//! Checks every server, and whether they are independent of each other.

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
            let (first, second) = (quorum.nodes[first].name(), quorum.nodes[server].name());
            let what = format!("{first} and {second} are the same server, which has two votes");
            findings.push(Finding::problem(what, "name every server once"));
        }
    }
    let (all, majority) = (quorum.nodes.len(), quorum.majority());
    findings.push(Finding::check(
        reached == all,
        if reached >= majority { Severity::Warning } else { Severity::Problem },
        format!("{reached} of {all} servers answer; {majority} are needed"),
        "bring the others back before one more fails",
    ));
    findings
}

/// The run id of a server that answers, and the findings about it.
async fn examine(
    node: &Arc<Node>,
    strict: Option<std::time::Duration>,
) -> (Option<String>, Vec<Finding>) {
    let (age, run) = match node.age().await {
        Ok(known) => known,
        Err(error) => {
            let finding = Finding::problem(
                format!("{}: {error}", node.name()),
                "start it, or allow +info to the user that runs this check",
            );
            return (None, vec![finding]);
        }
    };
    let is_young = strict.is_some_and(|strict| age <= strict);
    let mut findings = vec![Finding::check(
        !is_young,
        Severity::Warning,
        format!(
            "{}: run {} for {}{}",
            node.name(),
            &run[..run.len().min(8)],
            humantime::format_duration(age),
            if is_young { ", too short for a vote" } else { "" }
        ),
        "it votes again when the longest lease is over",
    )];
    match doctor::doctor(node.store()).await {
        Ok(more) => findings.extend(more),
        Err(error) => {
            let what = format!("{}: {error}", node.name());
            findings.push(Finding::problem(what, ""));
        }
    }
    (Some(run), findings)
}
