//! Checks for problems: servers that do not answer, no majority to spare, a short session, missing
//! permissions.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zookeeper_client as zk;

use super::Shared;
use crate::engine::Finding;
use crate::error::Result;
use crate::lock::DEFAULT_TTL;

const PATIENCE: Duration = Duration::from_secs(3);

pub(super) async fn doctor(shared: &Shared) -> Result<Vec<Finding>> {
    let session = shared.sessions.get().await?;
    let mut findings = servers(shared).await;
    findings.push(session_length(shared.settings.session, session.zk.session_timeout()));
    findings.push(rights(shared, &session.zk).await);
    findings.push(containers(shared, &session).await);
    if shared.settings.open {
        findings.push(Finding::warning(
            "any client that reaches the servers may delete locks (nodes are open to the world)",
            "name a user and a password in the URL; the nodes then belong to them",
        ));
    }
    Ok(findings)
}

/// Asks every server for its role, and counts the voters.
async fn servers(shared: &Shared) -> Vec<Finding> {
    let hosts = &shared.settings.hosts;
    let mut findings = Vec::new();
    let mut voters = 0;
    if shared.settings.secure {
        // Our session is at one of them; servers report their status only in plain text.
        return vec![Finding::fine(format!(
            "one of {} servers answers; over TLS they do not say what they are",
            hosts.len()
        ))];
    }
    for (host, port) in hosts {
        let answer = timeout(PATIENCE, ask(host, *port)).await;
        let place = format!("{host}:{port}");
        let mode = |answer: &str| {
            answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
        };
        findings.push(match answer {
            Ok(Ok(answer)) if answer.contains("not currently serving requests") => {
                Finding::problem(
                    format!("{place} has no majority to serve with"),
                    "start the other servers, or look at the network between them",
                )
            }
            Ok(Ok(answer)) => match mode(&answer) {
                Some(mode) => {
                    voters += usize::from(matches!(&*mode, "leader" | "follower"));
                    let article = if mode == "observer" { "an" } else { "a" };
                    let server = if mode == "standalone" { " server" } else { "" };
                    Finding::fine(format!("{place} answers; it is {article} {mode}{server}"))
                }
                None => Finding::fine(format!(
                    "{place} answers, but does not say what it is; allow the command srvr \
                     (4lw.commands.whitelist) to see leader and followers"
                )),
            },
            Ok(Err(error)) => unreachable_server(&place, &error.to_string()),
            Err(_) => unreachable_server(&place, "no answer"),
        });
    }
    if voters < 3 {
        findings.push(Finding::warning(
            match voters {
                0 => "no ensemble was seen: locks are gone while this server is".to_owned(),
                _ => format!("{voters} of an ensemble were seen: none of them may fail"),
            },
            "name all servers in the URL, and run three or five of them",
        ));
    }
    findings
}

fn unreachable_server(place: &str, why: &str) -> Finding {
    Finding::warning(
        format!("{place} cannot be reached: {why}"),
        "start it, or take it out of the URL",
    )
}

async fn ask(host: &str, port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(b"srvr").await?;
    let mut answer = String::new();
    // A status is short; a server that sends more is something else.
    stream.take(64 * 1024).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Whether the servers granted what was requested.
fn session_length(asked: Duration, granted: Duration) -> Finding {
    let (shown, lease) =
        (humantime::format_duration(granted), humantime::format_duration(granted / 2));
    if granted == asked {
        let what = format!(
            "a dead holder's locks are free after {shown}, its session; a lock has a lease of {lease} at most"
        );
        return Finding::fine(what);
    }
    Finding::warning(
        format!(
            "the session lasts {shown}, though {} was asked for: the servers allow no other; \
             a lock has a lease of {lease} at most",
            humantime::format_duration(asked)
        ),
        format!(
            "ask for a session that they allow (?session=), or change minSessionTimeout and maxSessionTimeout; \
             locks ask for {} unless told otherwise",
            humantime::format_duration(DEFAULT_TTL)
        ),
    )
}

/// Whether we have the permissions that a lock needs.
async fn rights(shared: &Shared, zk: &zk::Client) -> Finding {
    let root = shared.root();
    let options = zk::CreateMode::EphemeralSequential.with_acls(shared.settings.acls());
    let prefix = format!("{}/lockkeeper-doctor-", shared.settings.root);
    let tried: Result<(), zk::Error> = async {
        let container = zk::CreateMode::Container.with_acls(shared.settings.acls());
        if !shared.settings.root.is_empty() {
            zk.mkdir(root, &container).await?;
        }
        let (_, sequence) = zk.create(&prefix, &[], &options).await?;
        zk.list_children(root).await?;
        zk.delete(&format!("{prefix}{sequence}"), None).await
    }
    .await;
    match tried {
        Ok(()) => Finding::fine(format!("nodes can be made and deleted in {root}")),
        Err(error) => Finding::problem(
            format!("a lock needs to make, list and delete nodes in {root}: {error}"),
            "grant create, read, write and delete there",
        ),
    }
}

/// Whether empty lock directories are removed by the servers.
async fn containers(shared: &Shared, session: &super::Session) -> Finding {
    let probe = format!("{}/lockkeeper-doctor", shared.settings.root);
    let acls = shared.settings.acls();
    let made = session.zk.create(&probe, &[], &zk::CreateMode::Container.with_acls(acls)).await;
    match made {
        Ok(_) | Err(zk::Error::NodeExists) => {
            let _ = session.zk.delete(&probe, None).await;
            Finding::fine("directories of locks that nobody uses are removed")
        }
        Err(zk::Error::Unimplemented) => Finding::warning(
            "the servers know no containers: every key leaves a directory behind forever",
            "run ZooKeeper 3.5 or newer",
        ),
        Err(error) => Finding::problem(
            format!("a directory cannot be made in {}: {error}", shared.root()),
            "grant create there",
        ),
    }
}
