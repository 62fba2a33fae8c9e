//! What an operator may change: ask to yield, and break. Only with `--allow-changes`, and always
//! audited.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Bytes;
use lockkeeper::engine::Entry;
use lockkeeper::{Client, Error};
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::audit::{Action, Audit};
use super::http::{self, Problem, Reply};
use super::model::Party;
use crate::inspect::recorded_reason;

/// The request of a browser.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    engine: String,
    key: String,
    /// The operator's name, as given.
    #[serde(default)]
    who: String,
    #[serde(default)]
    why: String,
    /// The key once more, typed by hand.
    #[serde(default)]
    confirm: String,
}

/// How long a name or a reason may be.
const MOST_TEXT: usize = 500;

pub(crate) async fn ask_to_yield(
    body: &Bytes,
    peer: SocketAddr,
    app: &Arc<App>,
) -> Result<Reply, Problem> {
    let (order, audit) = read(body, app)?;
    let why = reason(&order);
    let work = async |client: &Client, key: &str| match why.trim() {
        "" => client.request_yield(key).await,
        why => client.request_yield_because(key, why).await,
    };
    carry_out("yield", order, peer, app, audit, work).await
}

pub(crate) async fn break_lock(
    body: &Bytes,
    peer: SocketAddr,
    app: &Arc<App>,
) -> Result<Reply, Problem> {
    let (order, audit) = read(body, app)?;
    if order.confirm != order.key {
        return Err(bad("type the key of the lock to confirm that it is this one"));
    }
    if order.why.trim().is_empty() {
        return Err(bad("give a reason, for instance 'host backup-3 is gone'"));
    }
    let why = reason(&order);
    let work = async |client: &Client, key: &str| client.break_lock_because(key, why).await;
    carry_out("break", order, peer, app, audit, work).await
}

/// The reason as the holder is told it: the page acts for somebody, whom the engine does not know.
fn reason(order: &Order) -> String {
    match order.who.trim() {
        "" => order.why.clone(),
        who => format!("{} ({who})", order.why.trim()).trim().to_owned(),
    }
}

fn read<'a>(body: &Bytes, app: &'a Arc<App>) -> Result<(Order, &'a Audit), Problem> {
    let Some(audit) = &app.audit else {
        let right = "changes are not allowed here; start lockkeeper ui with --allow-changes";
        return Err(Problem::new(StatusCode::FORBIDDEN, right));
    };
    let order: Order = serde_json::from_slice(body).map_err(|error| bad(&error.to_string()))?;
    if [&order.who, &order.why].iter().any(|text| text.chars().count() > MOST_TEXT) {
        return Err(bad("a name and a reason have at most 500 characters each"));
    }
    Ok((order, audit))
}

async fn carry_out(
    what: &'static str,
    order: Order,
    from: SocketAddr,
    app: &Arc<App>,
    audit: &Audit,
    work: impl AsyncFnOnce(&Client, &str) -> Result<Vec<Entry>, Error>,
) -> Result<Reply, Problem> {
    let Some(source) = app.collector.source(&order.engine) else {
        return Err(bad("this page has no such engine"));
    };
    let Order { engine, key, who, why, .. } = order;
    let why = recorded_reason(&why);
    let action = Action { what, engine, key, who, from, why };
    let unwritten = |error| {
        let message = format!("the audit file cannot be written: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    };
    audit.begin(&action).map_err(unwritten)?;
    let done = match source.client().await {
        Ok(client) => work(&client, &action.key).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(entries) => {
            let now = std::time::SystemTime::now();
            let parties: Vec<_> = entries.into_iter().map(|entry| Party::new(entry, now)).collect();
            audit.end(&action, json!({"holders": parties})).map_err(unwritten)?;
            Ok(http::json(&json!({"holders": parties})))
        }
        Err(error) => {
            let message = error.to_string();
            audit.end(&action, json!({"error": message})).map_err(unwritten)?;
            let status = match error {
                Error::Unsupported { .. } => StatusCode::NOT_IMPLEMENTED,
                Error::Config(_) | Error::Conflict { .. } => StatusCode::BAD_REQUEST,
                _ => StatusCode::BAD_GATEWAY,
            };
            Err(Problem::new(status, message))
        }
    }
}

fn bad(message: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, message)
}
