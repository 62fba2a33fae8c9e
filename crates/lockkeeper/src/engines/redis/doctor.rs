//! Checks a real deployment for problems.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::FromRedisValue;

use crate::core::clock::Clock;
use crate::engine::{Claim, Finding, Mode, Request, Severity};
use crate::error::{Error, Result};

use super::Store;
use super::claim::RedisClaim;
use super::connection::Connection;
use super::error::{Told, code, sort};
use super::settings::Layout;

/// A clock difference that is worth reporting.
const SKEW: Duration = Duration::from_secs(1);

pub(in crate::engines) async fn doctor(store: &Arc<Store>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let servers = store.servers.all().await.map_err(|error| sort("examine the servers", error))?;
    let mut takes_writes = true;
    for server in servers {
        takes_writes &= examine(&server, store, &mut findings).await?;
    }
    // If the server takes no writes, the reason has been reported.
    if takes_writes {
        findings.extend(probe(store).await);
    }
    Ok(findings)
}

/// Checks one server. False if it takes no writes, or has too few replicas for one.
async fn examine(server: &Connection, store: &Store, findings: &mut Vec<Finding>) -> Result<bool> {
    let asked = SystemTime::now();
    let time =
        server.command(&redis::cmd("TIME")).await.map_err(|error| sort("ask the time", error))?;
    let took = asked.elapsed().unwrap_or_default();
    let info = match server.command(&redis::cmd("INFO")).await {
        Ok(info) => String::from_redis_value(info).unwrap_or_default(),
        Err(error) => {
            findings.push(Finding::warning(
                format!("{server}: INFO is refused ({error}), so most of this cannot be checked"),
                "allow +info to the user that runs this check",
            ));
            String::new()
        }
    };
    let info: HashMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let syncing = match info.get("aof_enabled") {
        Some(&"1") => appendfsync(server).await,
        _ => None,
    };
    let mut takes_writes = true;
    let mut say = |bad: Option<(Severity, &str)>, what: String| {
        let (severity, advice) = bad.unwrap_or((Severity::Fine, ""));
        let what = format!("{server}: {what}");
        findings.push(Finding::check(bad.is_none(), severity, what, advice));
    };
    if let Ok((seconds, micros)) = <(u64, u64)>::from_redis_value(time) {
        let there = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
        let here = asked + took / 2;
        let skew = here.duration_since(there).unwrap_or_else(|e| e.duration());
        let bad = (skew > SKEW).then_some((
            Severity::Warning,
            "locks count by the server's clock alone, but fences after a failover need servers whose clocks agree: run a time service on all",
        ));
        say(bad, format!("its clock and ours differ by {} ms", skew.as_millis()));
    }
    if let Some(version) = info.get("redis_version") {
        // Valkey tells of itself too, and which Redis it is compatible with.
        let name = match info.get("valkey_version") {
            Some(valkey) => format!("Valkey {valkey}"),
            None => format!("Redis {version}"),
        };
        let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0u32);
        let bad = match (major, store.servers.is_cluster()) {
            (0..6, _) => Some((Severity::Problem, "use Redis 6 or newer")),
            (6, true) => Some((
                Severity::Warning,
                "before Redis 7 every release is published to all servers of a Cluster: use 7 or newer",
            )),
            _ => None,
        };
        say(bad, name);
    }
    if let Some(policy) = info.get("maxmemory_policy") {
        let limited = info.get("maxmemory").is_some_and(|limit| *limit != "0");
        let bad = (*policy != "noeviction").then_some((
            if limited { Severity::Problem } else { Severity::Warning },
            "set maxmemory-policy to noeviction: any other lets the server drop locks that are held",
        ));
        say(bad, format!("maxmemory-policy is {policy}"));
    }
    if let Some(appending) = info.get("aof_enabled") {
        let (bad, what) = match (*appending, syncing.as_deref()) {
            ("0", _) => (
                Some(
                    "a restart forgets locks that are held; set appendonly yes, and appendfsync always if that must never happen",
                ),
                "the append-only file is off".to_owned(),
            ),
            (_, Some("always")) => {
                (None, "the append-only file is on, with appendfsync always".to_owned())
            }
            (_, Some(other)) => (
                Some(
                    "a crash of the machine can forget locks of the last second, or of longer with appendfsync no: two holders are possible then; set appendfsync always",
                ),
                format!("the append-only file is on, with appendfsync {other}"),
            ),
            (_, None) => (
                Some(
                    "unless appendfsync is always, a crash of the machine can forget locks of the last second; allow +config|get to the user that runs this check to have it looked at",
                ),
                "the append-only file is on, and how often it is synced is not known".to_owned(),
            ),
        };
        say(bad.map(|advice| (Severity::Warning, advice)), what);
    }
    if let Some(role) = info.get("role") {
        let replicas: u32 = info.get("connected_slaves").and_then(|n| n.parse().ok()).unwrap_or(0);
        let bad = match (*role, replicas < store.settings.replicas) {
            ("master", false) => None,
            ("master", true) => Some((
                Severity::Problem,
                "wait_replicas asks for more replicas than are connected: nothing can be acquired",
            )),
            _ => Some((
                Severity::Problem,
                "this is a replica, which takes no writes: name the master",
            )),
        };
        takes_writes = bad.is_none();
        say(bad, format!("it is a {role} with {replicas} replicas connected"));
        if replicas > 0 && !info.contains_key("min_slaves_good_slaves") {
            let bad = (
                Severity::Warning,
                "a master that lost its replicas goes on granting locks that a failover forgets; set min-replicas-to-write 1",
            );
            say(Some(bad), "min-replicas-to-write is off".to_owned());
        }
    }
    Ok(takes_writes)
}

/// How often the server syncs its append-only file, if it tells us.
async fn appendfsync(server: &Connection) -> Option<String> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg("appendfsync");
    let answer = server.command(&get).await.ok()?;
    let [_, value] = <[String; 2]>::try_from(Vec::from_redis_value(answer).ok()?).ok()?;
    Some(value)
}

/// Acquires and releases a lock of each kind, which shows whether the permissions suffice.
async fn probe(store: &Arc<Store>) -> Vec<Finding> {
    let kinds: &[Mode] = match store.settings.layout {
        Layout::String => &[Mode::Mutex],
        Layout::Hash => {
            &[Mode::Mutex, Mode::Read, Mode::Write, Mode::Permits { take: 1, limit: 1 }]
        }
    };
    let mut findings = Vec::new();
    // Each cause is reported once, with all kinds of lock it affects.
    let mut failures: Vec<(Error, Vec<&str>)> = Vec::new();
    for mode in kinds {
        let mut claim = RedisClaim::new(store.clone(), Request::probe(*mode));
        let granted = claim.attempt(Clock::System.now()).await;
        let released = claim.release().await;
        let Err(error) = granted.and(released) else {
            let what = format!("a {} lock can be acquired and released", mode.kind());
            findings.push(Finding::fine(what));
            continue;
        };
        match failures.iter_mut().find(|(other, _)| cause(other) == cause(&error)) {
            Some((_, kinds)) => kinds.push(mode.kind()),
            None => failures.push((error, vec![mode.kind()])),
        }
    }
    findings.extend(failures.into_iter().map(|(error, kinds)| {
        let what = format!("no {} lock can be acquired and released: {error}", kinds.join(", "));
        Finding::problem(what, advice(code_of(&error)))
    }));
    findings
}

/// The server's error code, if a lock could not be acquired or released.
fn code_of(error: &Error) -> Option<&str> {
    let Error::Engine { source, .. } = error else { return None };
    source.downcast_ref::<Told>().and_then(|told| code(&told.0))
}

/// What failures with the same cause have in common. Permissions may be missing for one kind only.
fn cause(error: &Error) -> String {
    match (code_of(error), error) {
        (Some(code), _) if code != "NOPERM" => code.to_owned(),
        (_, Error::Engine { source, .. }) => source.to_string(),
        _ => error.to_string(),
    }
}

fn advice(code: Option<&str>) -> &'static str {
    match code {
        Some("NOPERM") => {
            "allow the user of the URL the keys that start with the option prefix (~PREFIX*), and the \
             commands that the documentation of redis: lists"
        }
        Some("READONLY") => "this is a replica, which takes no writes: name the master",
        Some("OOM") => {
            "raise maxmemory, or delete something: held locks are kept and can be released, new ones are refused"
        }
        Some("MISCONF") => {
            "the server cannot write to its disk, and takes no writes until it can: its log says why"
        }
        Some("NOREPLICAS") => "fewer replicas are connected than min-replicas-to-write asks for",
        _ => "",
    }
}
