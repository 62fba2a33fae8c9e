//! `ui`: a page in the browser that shows holders and waiters, live.
//!
//! [`collect`] polls the engines, once for all browsers. [`history`] derives the past from
//! successive polls, [`blocking`] a tree of what waits for what. [`http`] and [`api`] serve them to
//! [`page`], behind the checks of [`security`]. Nothing is changed in a store without
//! `--allow-changes`.

mod actions;
mod api;
mod audit;
mod blocking;
pub(crate) mod collect;
mod episode;
mod events;
pub(crate) mod history;
mod http;
mod metrics;
pub(crate) mod model;
mod page;
mod processes;
mod record;
pub(crate) mod rows;
mod security;
mod time;

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use lockkeeper::Client;
use tokio::net::TcpListener;

use self::audit::Audit;
use self::collect::{Collector, Source};
use self::events::Listeners;
use self::history::History;
use self::model::EngineName;
use self::record::Recorder;
use self::security::{Access, SHORTEST_TOKEN};
use crate::acquire::interruptible;
use crate::args::{Secret, Ui};
use crate::config::{Config, to_look};
use crate::exit::{self, Failure};
use crate::output::{print, tell};
use crate::run::signals::Signals;

/// The state that every request can access.
#[derive(Debug)]
pub(crate) struct App {
    access: Access,
    collector: Collector,
    /// The audit of changes; without it there are none.
    audit: Option<Audit>,
    listeners: Listeners,
}

pub(crate) async fn ui(args: Ui) -> exit::Outcome {
    let signals = Signals::collect().map_err(|error| Failure::own("listen for signals", error))?;
    let named = given_token(&args)?;
    if named.is_none() && !args.listen.ip().is_loopback() {
        return Err(Failure::usage(
            "other machines can reach this address, so a token is required: name a file that has \
             it with --token-file, or set LOCKKEEPER_UI_TOKEN",
        ));
    }
    // Every user of this machine can reach a loopback address, and must not break locks in our
    // name.
    let made = (named.is_none() && args.allow_changes).then(security::random_token);
    let token = named.or(made.clone());
    let audit = match args.allow_changes {
        true => {
            let path = args.audit.clone().or_else(audit::usual_path);
            let path = path.ok_or_else(|| Failure::usage("name a file with --audit"))?;
            Some(Audit::open(&path)?)
        }
        false => None,
    };
    let sources = sources(&args.urls, &args.secret).await?;
    let (recorder, past) = match &args.record {
        Some(path) => Recorder::open(path).map(|(recorder, past)| (Some(recorder), past))?,
        None => (None, Vec::new()),
    };
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        Failure::own(format!("listen on {}; choose another --listen", args.listen), error)
    })?;
    let address = listener.local_addr().map_err(|error| Failure::own("listen", error))?;
    let history = History::new(past, args.contention);
    let app = Arc::new(App {
        access: Access::new(address, args.host.clone(), token),
        collector: Collector::new(sources, args.interval, history, recorder),
        audit,
        listeners: Listeners::default(),
    });
    print(&format!("{}\n", link(address, made.as_deref())))?;
    for n in 0..app.collector.engines() {
        let app = app.clone();
        tokio::spawn(async move { app.collector.poll(n).await });
    }
    let serve = async {
        http::serve(listener, app).await;
        Ok(0)
    };
    interruptible(serve, &signals).await
}

/// The address to open. The part after `#` is not sent, so the token is in no log.
fn link(address: SocketAddr, token: Option<&str>) -> String {
    match token {
        Some(token) => format!("http://{address}/#token={token}"),
        None => format!("http://{address}/"),
    }
}

fn given_token(args: &Ui) -> Result<Option<String>, Failure> {
    let token = match &args.token_file {
        Some(path) => Some(fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read the token file {}: {error}", path.display()))
        })?),
        None => std::env::var("LOCKKEEPER_UI_TOKEN").ok().filter(|token| !token.is_empty()),
    };
    let token = token.map(|token| token.trim_end_matches(['\r', '\n']).to_owned());
    match token {
        Some(token)
            if token.len() < SHORTEST_TOKEN || !token.bytes().all(|b| b.is_ascii_graphic()) =>
        {
            Err(Failure::usage(format!(
                "a token has at least {SHORTEST_TOKEN} characters, without spaces; \
                 for instance what `openssl rand -hex 16` prints"
            )))
        }
        token => Ok(token),
    }
}

/// The engines. One that does not answer is shown as such; one that cannot work is refused.
pub(crate) async fn sources(urls: &[String], secret: &Secret) -> Result<Vec<Source>, Failure> {
    let mut sources: Vec<Source> = Vec::new();
    for (name, endpoint) in Config::load()?.engines(urls, secret)? {
        let name: EngineName = name.into();
        if sources.iter().any(|source| source.name == name) {
            return Err(Failure::usage(format!("{name} is named twice")));
        }
        let url = to_look(&endpoint);
        let client = match Client::connect(&url).await.map_err(Failure::from) {
            Ok(client) => Some(client),
            Err(failure) if failure.code == exit::UNAVAILABLE => {
                tell(format_args!("{name} does not answer yet: {}", failure.message));
                None
            }
            Err(failure) => return Err(failure),
        };
        sources.push(Source { name, url, client: Mutex::new(client) });
    }
    Ok(sources)
}
