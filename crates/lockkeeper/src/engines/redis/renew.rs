//! Extends leases: all leases that share a slot in one call, all calls at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;

use crate::engine::{Lease, Mode, Renewal};
use crate::error::{Error, Result};

use super::Store;
use super::connection::Call;
use super::error::{NAME, garbage, sort};
use super::layout::{entry, life, millis};
use super::script::RENEW;
use super::settings::Layout;

/// The number of leases in one call.
const BATCH: usize = 600;

/// Leases that one call renews.
#[derive(Default)]
struct Batch {
    /// The position of each of them in the whole list.
    places: Vec<usize>,
    keys: Vec<String>,
    args: Vec<String>,
    longest: Duration,
}

/// Renews leases. Those that could not be asked about are unknown; an error if that is all of them.
pub(in crate::engines) async fn renew(
    store: &Arc<Store>,
    leases: &[Lease],
) -> Result<Vec<Renewal>> {
    let mut batches = sort_out(store, leases).into_iter();
    let mut renewals = vec![Renewal::Unknown; leases.len()];
    let mut trouble = None;
    let mut note = |places: Vec<usize>, answer: Result<Vec<Renewal>>| match answer {
        Ok(answers) => {
            places.into_iter().zip(answers).for_each(|(at, answer)| renewals[at] = answer)
        }
        Err(error) => trouble = Some(error),
    };
    // We make the first call ourselves; usually there is no other.
    let first = batches.next();
    let mut others = JoinSet::new();
    for (slot, batch) in batches {
        others.spawn(call(store.clone(), slot, batch));
    }
    if let Some((slot, batch)) = first {
        let (places, answer) = call(store.clone(), slot, batch).await;
        note(places, answer);
    }
    while let Some(done) = others.join_next().await {
        if let Ok((places, answer)) = done {
            note(places, answer);
        }
    }
    match trouble {
        Some(error) if renewals.iter().all(|renewal| *renewal == Renewal::Unknown) => Err(error),
        _ => Ok(renewals),
    }
}

/// Groups the leases that can go into one call.
fn sort_out(store: &Store, leases: &[Lease]) -> Vec<(u16, Batch)> {
    let mut batches: BTreeMap<(u16, bool), Vec<Batch>> = BTreeMap::new();
    for (at, lease) in leases.iter().enumerate() {
        let names = store.names(&lease.key);
        let slot = names.slot();
        let owned = lease.owner.is_some();
        let kind = match (store.settings.layout, lease.mode) {
            (Layout::String, Mode::Mutex) => "string",
            (_, Mode::Mutex | Mode::Write) if owned => "owned",
            (_, Mode::Mutex) if lease.kept.is_some() => "keep",
            (_, Mode::Mutex | Mode::Write) => "mutex",
            (_, Mode::Read) => "read",
            (_, Mode::Permits { .. }) => "permits",
        };
        let narrow = matches!(kind, "string" | "mutex" | "keep");
        let list = batches.entry((slot, narrow)).or_default();
        if list.last().is_none_or(|batch| batch.places.len() == BATCH) {
            list.push(Batch::default());
        }
        let batch = list.last_mut().expect("one was just put there");
        batch.places.push(at);
        batch.longest = batch.longest.max(lease.ttl);
        batch.keys.extend([names.lock().to_owned(), names.state()]);
        if !narrow {
            batch.keys.extend([names.claims(), names.permits(), names.slots(), names.who()]);
        }
        let token = lease.token.to_string();
        let identity = lease.owner.as_ref().map_or(token.as_str(), |owner| owner.id());
        let field = match kind {
            "string" => token.clone(),
            _ => entry(identity, &token, lease.mode),
        };
        let claim = match lease.kept {
            Some(true) => "kept".to_owned(),
            Some(false) => "keep".to_owned(),
            None if owned => token,
            None => String::new(),
        };
        batch.args.extend([kind.to_owned(), millis(lease.ttl), field, claim, names.stem()]);
    }
    batches
        .into_iter()
        .flat_map(|((slot, _), list)| list.into_iter().map(move |batch| (slot, batch)))
        .collect()
}

async fn call(store: Arc<Store>, slot: u16, batch: Batch) -> (Vec<usize>, Result<Vec<Renewal>>) {
    let answer = ask(&store, slot, &batch).await;
    (batch.places, answer)
}

async fn ask(store: &Store, slot: u16, batch: &Batch) -> Result<Vec<Renewal>> {
    let doing = "renew locks";
    let width = (batch.keys.len() / batch.places.len()).to_string();
    let life = millis(life(batch.longest));
    let mut args = vec![life.as_str(), &width];
    args.extend(batch.args.iter().map(String::as_str));
    let wanted = store.settings.replicas;
    let call =
        Call { script: &RENEW, keys: &batch.keys, args: &args, hinted: false, replicas: wanted };
    let reply = store.servers.call(slot, &call).await.map_err(|error| sort(doing, error))?;
    if reply.replicas < wanted {
        let few = format!("{} of {wanted} replicas have it", reply.replicas);
        return Err(Error::unreachable(NAME, doing, few));
    }
    match &reply.value {
        Value::Array(answers) if answers.len() == batch.places.len() => {
            let renewal = |answer: &Value| match answer {
                Value::Int(1) => Renewal::Renewed,
                _ => Renewal::Gone,
            };
            Ok(answers.iter().map(renewal).collect())
        }
        other => Err(garbage(doing, other)),
    }
}
