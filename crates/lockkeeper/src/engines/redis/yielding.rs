//! Asks holders to release their locks.
//!
//! The request is recorded next to the lock, and published on a channel of each holder. A holder
//! subscribes only while [`Held::yield_requested`](crate::engine::Held::yield_requested) is
//! awaited, and first checks whether it was asked before that.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::Store;
use super::connection::Call;
use super::error::{NAME, garbage, sort};
use super::inspect::look_at;
use super::layout::{KeyNames, millis};
use super::script::{ASKED, YIELD};
use crate::engine::{Entry, Mode, Signal, YieldRequest};
use crate::error::{Error, Result};
use crate::key::Key;

/// How long a request is kept if its holder neither answers nor releases.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The pause before a server that cannot be subscribed to is tried again.
const PAUSE: Duration = Duration::from_secs(1);

pub(in crate::engines) async fn request_yield(
    store: &Store,
    key: &Key,
    asked: &YieldRequest,
) -> Result<Vec<Entry>> {
    let holders = look_at(store, key).await?.map(|seen| seen.holders).unwrap_or_default();
    let (ours, others): (Vec<_>, Vec<_>) =
        holders.into_iter().partition(|holder| holder.who.is_some());
    match (ours.is_empty(), others.is_empty()) {
        (true, true) => return Ok(ours),
        (true, false) => {
            return Err(Error::Unsupported {
                engine: NAME,
                what: "the holder is a client of another library, which does not listen to requests to give way; break the lock instead"
                    .to_owned(),
            });
        }
        _ => {}
    }
    let names = store.names(key);
    let fields: Vec<_> = ours.iter().map(field).collect();
    let (remembered, line) = (millis(REMEMBERED), asked.line());
    let mut args = vec![store.publish(), &remembered, &line];
    args.extend(fields.iter().map(String::as_str));
    let keys = [names.asked()];
    let call = Call { script: &YIELD, keys: &keys, args: &args, hinted: false, replicas: 0 };
    let doing = |error| sort(format!("ask for {key:?}"), error);
    store.servers.call(names.slot(), &call).await.map_err(doing)?;
    Ok(ours)
}

/// What identifies a holder in the lock.
fn field(holder: &Entry) -> String {
    match holder.mode {
        Mode::Write => format!("{}:write", holder.identity),
        _ => holder.identity.clone(),
    }
}

/// Resolves when a holder is asked to release its lock.
pub(in crate::engines) fn asked(
    store: Arc<Store>,
    names: KeyNames,
    field: String,
) -> Signal<YieldRequest> {
    Box::pin(async move {
        let channel = format!("{}:{field}", names.asked());
        loop {
            let listening = store.servers.listen(
                names.slot(),
                channel.clone(),
                false,
                String::new(),
                store.sharded,
            );
            let listening = listening.await;
            if let Ok(subscription) = listening {
                // It is notified once when it is subscribed, so earlier requests are seen too.
                while subscription.check().is_ok() {
                    subscription.notified().await;
                    match was_asked(&store, &names, &field).await {
                        Ok(Some(asked)) => return asked,
                        Ok(None) => {}
                        Err(_) => break,
                    }
                }
            }
            sleep(PAUSE).await;
        }
    })
}

async fn was_asked(store: &Store, names: &KeyNames, field: &str) -> Result<Option<YieldRequest>> {
    let (keys, doing) = ([names.asked()], "look for a yield request");
    let call = Call { script: &ASKED, keys: &keys, args: &[field], hinted: false, replicas: 0 };
    let reply =
        store.servers.call(names.slot(), &call).await.map_err(|error| sort(doing, error))?;
    match reply.value {
        Value::Nil => Ok(None),
        Value::BulkString(line) => Ok(Some(YieldRequest::parse(&String::from_utf8_lossy(&line)))),
        other => Err(garbage(doing, &other)),
    }
}
