//! The API, by path. `schema.json` has the shapes of the answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use url::form_urlencoded;

use super::App;
use super::actions;
use super::collect::{EngineState, State};
use super::events;
use super::history::{Outcome, Record, Span};
use super::http::{self, Problem, Reply};
use super::metrics;
use super::model::Party;
use super::page;
use super::rows::Row;
use super::time;

/// How many locks, waiters and records one answer has, unless fewer are requested.
const MOST_LOCKS: usize = 10_000;
const MOST_WAITERS: usize = 1_000;
const MOST_ANSWERED: usize = 1_000;
/// How much of the past a detail shows.
const MOST_SPANS: usize = 300;

pub(crate) async fn route(
    head: &Parts,
    body: Incoming,
    peer: SocketAddr,
    app: &Arc<App>,
) -> Result<Reply, Problem> {
    let path = head.uri.path();
    if head.method == Method::GET
        && let Some((kind, content)) = page::file(path)
    {
        return Ok(http::reply(kind, content));
    }
    app.access.permit(head)?;
    let query = Query::of(head);
    let action = ["/api/v1/yield", "/api/v1/break"].contains(&path);
    match (&head.method, path) {
        (&Method::POST, "/api/v1/yield") => {
            actions::ask_to_yield(&http::read(body).await?, peer, app).await
        }
        (&Method::POST, "/api/v1/break") => {
            actions::break_lock(&http::read(body).await?, peer, app).await
        }
        (&Method::GET, _) if action => refuse_method("POST"),
        (&Method::GET, "/api/v1/about") => Ok(http::json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "changes": app.audit.is_some(),
        }))),
        (&Method::GET, "/api/v1/events") => events::stream(app),
        (&Method::GET, "/api/v1/locks") => list(&app.collector.state(), &query),
        (&Method::GET, "/api/v1/history") => history(&app.collector.state(), &query),
        (&Method::GET, "/api/v1/blocking") => Ok(http::json(&app.collector.state().blocking)),
        (&Method::GET, "/api/v1/schema.json") => {
            Ok(http::reply("application/schema+json", include_str!("schema.json")))
        }
        (&Method::GET, "/metrics") => {
            let keys = query.get("keys").is_some_and(|keys| keys != "0");
            let state = app.collector.state();
            let text = metrics::text(&state, app.listeners.count(), keys, SystemTime::now());
            Ok(http::reply("text/plain; version=0.0.4; charset=utf-8", text))
        }
        (&Method::GET, _) => match path.strip_prefix("/api/v1/locks/") {
            Some(key) => {
                let key = percent_decode_str(key).decode_utf8().map_err(|_| {
                    Problem::new(StatusCode::BAD_REQUEST, "a key is UTF-8, percent-encoded")
                })?;
                detail(&app.collector.state(), &key, &query)
            }
            None => Err(Problem::new(StatusCode::NOT_FOUND, "there is nothing here")),
        },
        _ => refuse_method("GET"),
    }
}

fn refuse_method(right: &str) -> Result<Reply, Problem> {
    Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("use {right}")))
}

/// What follows the question mark.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(head: &Parts) -> Self {
        let text = head.uri.query().unwrap_or_default();
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// A number, at most `most`.
    fn limit(&self, most: usize) -> Result<usize, Problem> {
        let limit = self.get("limit").map(str::parse::<usize>).transpose();
        let wrong = |_| Problem::new(StatusCode::BAD_REQUEST, "limit is a number, such as 100");
        limit.map_err(wrong).map(|limit| limit.map_or(most, |limit| limit.min(most)))
    }

    /// The engine that is asked for, if one is; it must be one that is looked at.
    fn engine(&self, state: &State) -> Result<Option<&str>, Problem> {
        let Some(wanted) = self.get("engine") else { return Ok(None) };
        let names: Vec<&str> = state.engines.iter().map(|engine| &*engine.name).collect();
        match names.contains(&wanted) {
            true => Ok(Some(wanted)),
            false => {
                let right = format!("engine is one of {}", names.join(", "));
                Err(Problem::new(StatusCode::BAD_REQUEST, right))
            }
        }
    }
}

/// `GET /api/v1/locks`.
fn list(state: &State, query: &Query) -> Result<Reply, Problem> {
    query.engine(state)?;
    let now = SystemTime::now();
    let mut locks: Vec<_> = state.rows().filter(|row| is_wanted(row, query)).collect();
    // Locks with trouble first.
    locks.sort_by_key(|row| (row.trouble.is_none(), row.trouble));
    let all = locks.len();
    locks.truncate(query.limit(MOST_LOCKS)?);
    Ok(http::json(&json!({
        "now": time::text(now),
        "strip": state.strip(now),
        "engines": state.engines,
        "found": all,
        "locks": locks,
    })))
}

fn is_wanted(row: &Row, query: &Query) -> bool {
    let equals = |name, value: &str| query.get(name).is_none_or(|wanted| wanted == value);
    let held = |name, by: &dyn Fn(&Party, &str) -> bool| {
        query.get(name).is_none_or(|wanted| row.holders.iter().any(|holder| by(holder, wanted)))
    };
    equals("engine", &row.engine)
        && query.get("prefix").is_none_or(|prefix| row.key.starts_with(prefix))
        && held("holder", &|holder, wanted| holder.name().contains(wanted))
        && held("host", &|holder, wanted| holder.host.as_deref() == Some(wanted))
}

/// `GET /api/v1/locks/{key}`: the key in every engine that has it or had it.
fn detail(state: &State, key: &str, query: &Query) -> Result<Reply, Problem> {
    let wanted = query.engine(state)?;
    let engines =
        state.engines.iter().filter(|engine| wanted.is_none_or(|name| *name == *engine.name));
    let locks: Vec<_> = engines
        .map(|engine| one(state, engine, key))
        .filter(|lock| {
            let empty = |name: &str| lock[name].as_array().is_none_or(Vec::is_empty);
            !(empty("holders") && empty("waiters") && empty("timeline"))
        })
        .collect();
    Ok(http::json(&json!({"now": time::text(SystemTime::now()), "key": key, "locks": locks})))
}

fn one(state: &State, at: &EngineState, key: &str) -> Value {
    let (engine, lock) = (&at.name, at.locks.get(key));
    let ours = state.history.records().filter(|r| r.key() == key && *r.engine() == **engine);
    let mut timeline: Vec<Value> = Vec::new();
    let mut episodes: Vec<Value> = Vec::new();
    if let Some(lock) = lock {
        let now = |party| Span::new(lock, party, None, Outcome::Now);
        timeline.extend(lock.holders.iter().map(|party| json!(Record::Hold(now(party)))));
        let waiters = lock.waiting().iter().take(MOST_SPANS);
        timeline.extend(waiters.map(|party| json!(Record::Wait(now(party)))));
        episodes.extend(state.history.episode(lock).map(|episode| json!(episode)));
    }
    let (mut last_holders, mut past) = (Vec::new(), 0);
    for record in ours {
        match &**record {
            Record::Episode(episode) if episodes.len() < MOST_SPANS => {
                episodes.push(json!(episode))
            }
            Record::Hold(_) | Record::Wait(_) if past < MOST_SPANS => {
                past += 1;
                timeline.push(json!(&**record));
                if let Record::Hold(span) = &**record {
                    last_holders.push(json!(span));
                }
            }
            _ => {}
        }
    }
    let deadlocked = state.blocking.deadlocked();
    let stale = !at.answers();
    let row = lock.map(|lock| Row::new(lock, &deadlocked, stale));
    json!({
        "engine": engine,
        "key": key,
        "kind": row.as_ref().and_then(|row| row.kind.clone()),
        "fence": row.as_ref().and_then(|row| row.fence),
        "trouble": row.as_ref().and_then(|row| row.trouble),
        "stale": stale,
        "holders": lock.map_or(&[][..], |lock| &lock.holders),
        // A lock that is not in use has no waiters.
        "waiters": lock.map_or(Some(&[][..]), |lock| {
            lock.waiters.as_deref().map(|waiters| &waiters[..waiters.len().min(MOST_WAITERS)])
        }),
        "waiters_unknown": lock.and_then(|lock| lock.unknown),
        "waiting": lock.map_or(Some(0), |lock| lock.waiters.as_ref().map(Vec::len)),
        "last_holders": last_holders,
        "timeline": timeline,
        "episodes": episodes,
    })
}

/// `GET /api/v1/history`: what has ended, newest first.
fn history(state: &State, query: &Query) -> Result<Reply, Problem> {
    let since =
        query.get("since").map(humantime::parse_rfc3339_weak).transpose().map_err(|_| {
            let right = "since is a time such as 2026-01-31T12:00:00Z";
            Problem::new(StatusCode::BAD_REQUEST, right)
        })?;
    let wanted = |record: &&Arc<Record>| {
        query.get("engine").is_none_or(|engine| record.engine() == engine)
            && query.get("key").is_none_or(|key| record.key() == key)
            && query.get("prefix").is_none_or(|prefix| record.key().starts_with(prefix))
            && since.is_none_or(|since| record.end() >= since)
    };
    let records: Vec<_> = state
        .history
        .records()
        .filter(wanted)
        .take(query.limit(MOST_ANSWERED)?)
        .map(|r| &**r)
        .collect();
    Ok(http::json(&json!({"now": time::text(SystemTime::now()), "records": records})))
}
