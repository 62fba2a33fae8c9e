//! What happened in one round, as the page draws it.

use std::time::Duration;

use lockkeeper::Mode;
use lockkeeper_testkit::history::Violation;
use lockkeeper_testkit::storm::{Judgement, Target};
use serde::Serialize;

/// A page with many more bars is slow, and nobody looks at all of them.
const MOST: usize = 4_000;

/// Times are in milliseconds since its start.
#[derive(Debug, Serialize)]
pub(in super::super) struct Timeline {
    length: f64,
    clients: usize,
    /// The tasks of each client.
    tasks: usize,
    grants: Vec<Grant>,
    faults: Vec<Fault>,
    refused: Vec<Refused>,
    /// From when to when each violation shows.
    violations: Vec<[f64; 2]>,
}

#[derive(Debug, Serialize)]
struct Grant {
    client: usize,
    task: usize,
    key: String,
    mode: String,
    shared: bool,
    fence: u64,
    called: f64,
    returned: f64,
    end: f64,
    lost: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Fault {
    /// A client, or the servers after the last of them.
    lane: usize,
    name: &'static str,
    from: f64,
    to: f64,
}

#[derive(Debug, Serialize)]
struct Refused {
    client: usize,
    key: String,
    at: f64,
}

impl Timeline {
    /// The end of a round, or what is around its first violation. `hosts` is the number of proxies of
    /// each client.
    pub(in super::super) fn of(
        judgement: &Judgement,
        clients: usize,
        tasks: usize,
        hosts: usize,
    ) -> Self {
        let all = &judgement.history.acquisitions;
        let mut order: Vec<_> = (0..all.len()).collect();
        order.sort_by_key(|n| all[*n].called);
        let found: Vec<_> =
            judgement.overlaps.iter().chain(&judgement.violations).filter_map(span).collect();
        let middle = found.first().map_or(order.len(), |(from, _)| {
            order.partition_point(|n| all[*n].called < *from) + MOST / 2
        });
        let last = middle.min(order.len());
        let shown = &order[last.saturating_sub(MOST)..last];
        let start = shown.iter().map(|n| all[*n].called).min().unwrap_or_default();
        let ms = |at: Duration| (at.saturating_sub(start).as_micros() as f64) / 1e3;
        let grant = |n: &usize| {
            let grant = &all[*n];
            let ends = [grant.release, grant.lost, grant.deadline];
            let end = ends.into_iter().flatten().max().unwrap_or(grant.returned);
            // The owner is `process.task.number`.
            let task = grant.owner.split('.').nth(1).and_then(|task| task.parse().ok());
            Grant {
                client: judgement.clients[*n],
                task: task.unwrap_or(0),
                key: grant.key.clone(),
                mode: grant.mode.to_string(),
                shared: matches!(grant.mode, Mode::Read | Mode::Permits { .. }),
                fence: grant.fence,
                called: ms(grant.called),
                returned: ms(grant.returned),
                end: ms(end.max(grant.returned)),
                lost: grant.lost.map(ms),
            }
        };
        let grants: Vec<_> = shown.iter().map(grant).collect();
        let length = grants.iter().map(|grant| grant.end).fold(1.0, f64::max);
        let lane = |target| match target {
            Target::Client(n) => n,
            Target::Network(n) => n / hosts.max(1),
            Target::Servers => clients,
        };
        let fault = |fault: &lockkeeper_testkit::storm::Struck| Fault {
            lane: lane(fault.target),
            name: fault.name,
            from: ms(fault.time.start),
            to: ms(fault.time.end),
        };
        let refused = |(at, by): &(Duration, usize)| Refused {
            client: judgement.clients[*by],
            key: all[*by].key.clone(),
            at: ms(*at),
        };
        let is_shown = |from: Duration, to: Duration| to >= start && ms(from) <= length;
        let faults = judgement.faults.iter().filter(|f| is_shown(f.time.start, f.time.end));
        let refusals = judgement.refused.iter().filter(|(at, _)| is_shown(*at, *at));
        let violations = found.iter().filter(|(from, to)| is_shown(*from, *to));
        Self {
            length,
            clients,
            tasks,
            faults: faults.map(fault).collect(),
            refused: refusals.map(refused).collect(),
            violations: violations.map(|(from, to)| [ms(*from), ms(*to)]).collect(),
            grants,
        }
    }
}

/// When the grants of a violation contradict each other.
fn span(violation: &Violation) -> Option<(Duration, Duration)> {
    let grants = violation.grants();
    let from = grants.iter().map(|grant| grant.returned).max()?;
    let ends = grants.iter().filter_map(|grant| grant.deadline).min().unwrap_or(from);
    Some((from.min(ends), from.max(ends)))
}
