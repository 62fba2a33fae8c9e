//! Checks a real deployment for problems.

use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use super::Shared;
use super::claim::EtcdClaim;
use super::client::{AlarmType, Client, StatusResponse};
use super::cluster::PATIENCE;
use super::error::in_words;
use super::leases::{Leases, revoke};
use crate::core::clock::Clock;
use crate::engine::{Claim, Finding, Mode, Request};
use crate::error::Result;

/// A version as numbers, for comparison.
type Version = (u64, u64, u64);

/// A defect of old servers that affects locks, and the first version of each release line without
/// it.
struct Defect {
    fixed: &'static [Version],
    what: &'static str,
}

const DEFECTS: [Defect; 2] = [
    Defect {
        fixed: &[(3, 4, 31), (3, 5, 13), (3, 6, 0)],
        what: "a leader that was cut off may revoke leases that are alive (etcd-io/etcd#15247), \
               so a lock can be lost while its holder renews it",
    },
    Defect {
        fixed: &[(3, 4, 42), (3, 5, 28), (3, 6, 9)],
        what: "a member that was paused may answer with old data (etcd-io/etcd#20418), \
               so a broken lock may be noticed late",
    },
];

/// The oldest version with everything that we use.
const OLDEST: Version = (3, 4, 0);

pub(super) async fn examine(shared: &Arc<Shared>) -> Result<Vec<Finding>> {
    let mut findings = members(shared).await;
    findings.extend(alarms(shared).await);
    findings.extend(shortest_lease(shared).await);
    findings.push(permissions(shared).await);
    if shared.bare_password {
        findings.push(Finding::warning(
            "the password goes over the network in plain text",
            "use etcds://",
        ));
    }
    Ok(findings)
}

async fn members(shared: &Shared) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut answering = 0;
    let addresses: Vec<_> = shared.cluster.addresses().collect();
    for (at, address) in addresses.iter().enumerate() {
        match shared.cluster.ask_member(at, PATIENCE, Client::status).await {
            Ok(status) => {
                answering += 1;
                findings.extend(member(address, &status));
            }
            Err(status) if status.code() == Code::PermissionDenied => {
                answering += 1;
                findings.push(Finding::fine(format!(
                    "member {address} answers, and shows its version and state only to root"
                )));
            }
            Err(status) => findings.push(Finding::warning(
                format!("member {address} does not answer: {}", in_words(&status)),
                "bring it back, or leave it out of the URL",
            )),
        }
    }
    let listed = addresses.len();
    let what = format!("{answering} of the {listed} members in the URL answer");
    findings.push(match (answering * 2 > listed, listed) {
        (false, _) => Finding::problem(what, "fewer than half answer: look at those that do not"),
        (true, 1 | 2) => Finding::warning(
            what,
            "name three or five members in the URL: with one or two, none may fail",
        ),
        (true, _) => Finding::fine(what),
    });
    findings
}

fn member(address: &str, status: &StatusResponse) -> Vec<Finding> {
    let mut findings = version(address, &status.version);
    if status.leader == 0 {
        findings.push(Finding::problem(
            format!("member {address} knows no leader"),
            "more than half of the members have to reach each other",
        ));
    }
    if status.is_learner {
        findings.push(Finding::warning(
            format!("member {address} is a learner and does not serve locks"),
            "promote it, or leave it out of the URL",
        ));
    }
    for error in &status.errors {
        let what = format!("member {address} reports: {error}");
        findings.push(Finding::problem(what, "see its own log"));
    }
    findings
}

fn version(address: &str, text: &str) -> Vec<Finding> {
    let Some(version) = numbers(text) else {
        let what = format!("member {address} has a version that is not understood: {text:?}");
        return vec![Finding::warning(what, "etcd 3.4 or later is needed")];
    };
    if version < OLDEST {
        let what = format!("member {address} runs etcd {text}");
        return vec![Finding::problem(what, "etcd 3.4 or later is needed")];
    }
    let found: Vec<_> = DEFECTS
        .iter()
        .filter_map(|defect| {
            let fixed = defect.fixed_in(version)?;
            Some(Finding::warning(
                format!("member {address} runs etcd {text}, in which {}", defect.what),
                format!("update it to {}.{}.{} or later", fixed.0, fixed.1, fixed.2),
            ))
        })
        .collect();
    match found.is_empty() {
        true => vec![Finding::fine(format!("member {address} runs etcd {text}"))],
        false => found,
    }
}

impl Defect {
    /// The version of this release line that fixed it; `None` if this version already has the fix.
    fn fixed_in(&self, version: Version) -> Option<Version> {
        let line = |fixed: &&Version| (fixed.0, fixed.1) == (version.0, version.1);
        let fixed = self.fixed.iter().find(line).copied()?;
        (version < fixed).then_some(fixed)
    }
}

fn numbers(text: &str) -> Option<Version> {
    let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

async fn alarms(shared: &Shared) -> Vec<Finding> {
    let alarms = match shared.cluster.ask("read the alarms", PATIENCE, Client::alarms).await {
        Ok(alarms) => alarms,
        // Only root may, once authentication is enabled.
        Err(error) => {
            let what = format!("the alarms cannot be read: {error}");
            return vec![Finding::fine(what)];
        }
    };
    let raised = alarms.alarms.iter().map(|raised| {
        let (what, advice) = match raised.alarm() {
            AlarmType::NoSpace => (
                "has no space left, and takes no locks",
                "compact, defragment, then disarm: etcdctl alarm disarm",
            ),
            _ => ("is damaged", "replace this member"),
        };
        Finding::problem(format!("member {:x} {what}", raised.member_id), advice)
    });
    raised.collect()
}

/// Requests a lease of one second, and checks what is granted.
async fn shortest_lease(shared: &Shared) -> Option<Finding> {
    let mut lease = Leases::default().take(Duration::from_secs(1));
    let shortest = lease.make(&shared.cluster, Clock::System.now()).await.ok()?;
    let _ = revoke(&shared.cluster, lease.id, &mut false).await;
    let shortest = humantime::format_duration(shortest);
    let what = format!("the shortest lease is {shortest}, also for locks that ask for less");
    Some(Finding::fine(what))
}

/// Acquires and releases a lock of its own.
async fn permissions(shared: &Arc<Shared>) -> Finding {
    let mut claim = EtcdClaim::new(shared.clone(), Request::probe(Mode::Mutex));
    let taken = claim.attempt(Clock::System.now()).await;
    let given_back = claim.release().await;
    match taken.and(given_back) {
        Ok(_) => Finding::fine("a lock could be acquired and released"),
        Err(error) => Finding::problem(
            format!("a lock could not be acquired and released: {error}"),
            "grant the role readwrite on the keys that start with the prefix in the URL",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Severity;

    fn warnings(text: &str) -> usize {
        version("m", text).iter().filter(|finding| finding.severity == Severity::Warning).count()
    }

    #[test]
    fn old_servers_are_named_with_what_ails_them() {
        assert_eq!(warnings("3.4.23"), 2);
        assert_eq!(warnings("3.4.31"), 1);
        assert_eq!(warnings("3.4.42"), 0);
        assert_eq!(warnings("3.5.12"), 2);
        assert_eq!(warnings("3.5.28"), 0);
        assert_eq!(warnings("3.6.0"), 1);
        assert_eq!(warnings("3.6.9"), 0);
        assert_eq!(warnings("3.7.1-rc.0"), 0);
        assert_eq!(version("m", "3.3.27")[0].severity, Severity::Problem);
        assert_eq!(version("m", "tower")[0].severity, Severity::Warning);
        let found = version("m", "3.4.23");
        assert!(found[0].what.contains("#15247") && found[0].advice.contains("3.4.31"));
    }
}
