//! Breaks locks, and keeps a list of the last breaks in one node beside the locks.

use zookeeper_client as zk;

use super::Shared;
use super::error::{NAME, failed};
use super::inspect::look;
use super::layout::BROKEN;
use super::session::Session;
use crate::engine::broken::{listed, with_line, without_line};
use crate::engine::{Break, Breaker, Entry};
use crate::error::{Error, Result};
use crate::key::Key;

/// How often a change is retried if another client was faster.
const TRIES: usize = 5;

/// Deletes the nodes of all holders of a key.
pub(super) async fn break_lock(shared: &Shared, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
    let session = shared.sessions.get().await?;
    let seen = look(shared, &session, std::slice::from_ref(key)).await?;
    let holders: Vec<_> = seen.into_iter().flat_map(|seen| seen.holders).collect();
    if holders.is_empty() {
        return Ok(Vec::new());
    }
    // First of all: the holders watch their nodes.
    let entries: Vec<_> = holders.iter().map(|holder| holder.entry.clone()).collect();
    let line = by.breaks(key, &entries).line();
    let list = shared.list(BROKEN);
    if let Err(error) = change(shared, &session, &list, |text| with_line(text, &line)).await {
        tracing::warn!(%error, %key, "a broken lock could not be recorded");
    }
    let mut broken = Vec::new();
    for entry in holders {
        let deletions: Vec<_> =
            entry.paths.iter().map(|path| session.zk.delete(path, None)).collect();
        let mut any = false;
        for deletion in deletions {
            match deletion.await {
                Ok(()) => any = true,
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failed(format!("break {key:?}"))(error)),
            }
        }
        broken.extend(any.then_some(entry.entry));
    }
    if broken.is_empty() {
        // All of them were faster, and released it.
        change(shared, &session, &list, |text| without_line(text, &line)).await?;
    }
    Ok(broken)
}

/// The last breaks.
pub(super) async fn breaks(shared: &Shared) -> Result<Vec<Break>> {
    let session = shared.sessions.get().await?;
    let path = shared.list(BROKEN);
    // A server that is behind would not have the break that we are looking for.
    let (sync, read) = (session.zk.sync(&path), session.zk.get_data(&path));
    sync.await.map_err(failed("list broken locks"))?;
    let text = match read.await {
        Ok((data, _)) => String::from_utf8_lossy(&data).into_owned(),
        Err(zk::Error::NoNode) => String::new(),
        Err(error) => return Err(failed("list broken locks")(error)),
    };
    Ok(listed(text.lines().filter_map(Break::parse)))
}

/// Changes one of the lists beside the locks.
pub(super) async fn change(
    shared: &Shared,
    session: &Session,
    path: &str,
    change: impl Fn(&str) -> String,
) -> Result<()> {
    let doing = format!("change the list {path:?}");
    for _ in 0..TRIES {
        let written = match session.zk.get_data(path).await {
            Ok((data, stat)) => {
                let text = change(&String::from_utf8_lossy(&data));
                session.zk.set_data(path, text.as_bytes(), Some(stat.version)).await.map(drop)
            }
            Err(zk::Error::NoNode) => {
                let persistent = zk::CreateMode::Persistent.with_acls(shared.settings.acls());
                session.zk.create(path, change("").as_bytes(), &persistent).await.map(drop)
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => return Ok(()),
            Err(zk::Error::BadVersion | zk::Error::NodeExists) => {}
            Err(error) => return Err(failed(doing)(error)),
        }
    }
    Err(Error::unreachable(NAME, doing, "other clients were always faster"))
}
