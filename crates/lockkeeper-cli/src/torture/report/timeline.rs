//! What happened in one round, as the page draws it.

use std::collections::HashSet;
use std::time::Duration;

use lockkeeper::Mode;
use lockkeeper_testkit::history::Violation;
use lockkeeper_testkit::storm::{Judgement, Target};
use serde::Serialize;

/// A page with many more bars is slow, and large. Of more grants than these, some are left out; and of
/// more that were lost, more refused accesses and more faults.
const MOST: usize = 1_500;

/// How much of a round is shown.
const LENGTH: Duration = Duration::from_secs(10);

/// Of how many violations all grants are shown; the first are usually the cause of the rest.
const SHOWN: usize = 10;

/// Times are in milliseconds since its start.
#[derive(Debug, Serialize)]
pub(in super::super) struct Timeline {
    length: f64,
    clients: usize,
    /// The tasks of each client.
    tasks: usize,
    /// How many grants there were in this time.
    all: usize,
    keys: Vec<String>,
    modes: Vec<String>,
    grants: Vec<Grant>,
    faults: Vec<Fault>,
    refused: Vec<Refused>,
    /// From when to when each violation shows.
    violations: Vec<[f64; 2]>,
}

/// Client, task, index of the key, index of the mode, whether it is shared, fence, called, returned,
/// end, lost: without names, because there are many.
#[derive(Debug, Serialize)]
struct Grant(usize, usize, usize, usize, bool, u64, f64, f64, f64, Option<f64>);

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
        let violations = || judgement.overlaps.iter().chain(&judgement.violations);
        let found: Vec<_> = violations().filter_map(span).collect();
        let last = all.iter().map(|grant| grant.called).max().unwrap_or_default();
        let end = found.first().map_or(last, |(_, to)| *to + LENGTH / 4);
        let inside = |n: &usize| (end.saturating_sub(LENGTH)..=end).contains(&all[*n].called);
        let mut order: Vec<_> = (0..all.len()).filter(inside).collect();
        order.sort_by_key(|n| all[*n].called);
        let refused: HashSet<_> = judgement.refused.iter().map(|(_, by)| *by).collect();
        let is_special = |n: &usize| all[*n].lost.is_some() || refused.contains(n);
        let is_wrong = |n: &usize| {
            violations().take(SHOWN).any(|violation| violation.grants().contains(&all[*n]))
        };
        let mut shown = some(order.clone());
        shown.extend(some(order.iter().copied().filter(is_special).collect()));
        shown.extend(order.iter().copied().filter(is_wrong));
        shown.sort_by_key(|n| (all[*n].called, *n));
        shown.dedup();
        let start = shown.iter().map(|n| all[*n].called).min().unwrap_or_default();
        let ms = |at: Duration| (at.saturating_sub(start).as_micros() as f64) / 1e3;
        let (mut keys, mut modes) = (Vec::new(), Vec::new());
        let mut grants = Vec::new();
        for n in &shown {
            let grant = &all[*n];
            let ends = [grant.release, grant.lost, grant.deadline];
            let end = ends.into_iter().flatten().max().unwrap_or(grant.returned);
            // The owner is `process.task.number`.
            let task = grant.owner.split('.').nth(1).and_then(|task| task.parse().ok());
            grants.push(Grant(
                judgement.clients[*n],
                task.unwrap_or(0),
                index(&mut keys, grant.key.clone()),
                index(&mut modes, grant.mode.to_string()),
                matches!(grant.mode, Mode::Read | Mode::Permits { .. }),
                grant.fence,
                ms(grant.called),
                ms(grant.returned),
                ms(end.max(grant.returned)),
                grant.lost.map(ms),
            ));
        }
        let length = grants.iter().map(|grant| grant.8).fold(1.0, f64::max);
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
            all: order.len(),
            keys,
            modes,
            faults: some(faults.map(fault).collect()),
            refused: some(refusals.map(refused).collect()),
            violations: violations.map(|(from, to)| [ms(*from), ms(*to)]).collect(),
            grants,
        }
    }
}

/// At most [`MOST`] of these, evenly.
fn some<T>(all: Vec<T>) -> Vec<T> {
    let step = all.len().div_ceil(MOST).max(1);
    all.into_iter().step_by(step).collect()
}

/// The place of a name in a list, to which it is added.
fn index(names: &mut Vec<String>, name: String) -> usize {
    let known = names.iter().position(|known| *known == name);
    known.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

/// When the grants of a violation contradict each other.
fn span(violation: &Violation) -> Option<(Duration, Duration)> {
    let grants = violation.grants();
    let from = grants.iter().map(|grant| grant.returned).max()?;
    let ends = grants.iter().filter_map(|grant| grant.deadline).min().unwrap_or(from);
    Some((from.min(ends), from.max(ends)))
}
