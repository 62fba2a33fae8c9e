//! `postgres:`: locks in a PostgreSQL database that you already run.
//!
//! There are three strategies, selected by `?strategy=`. `lease` (the default) keeps a table of
//! claims with leases by the server's clock, and supports everything. With `advisory` and `row`,
//! the server itself holds and queues as long as a connection lives. They do not exclude each
//! other: all clients must use the same strategy.

mod advisory;
mod connect;
mod doctor;
mod error;
mod lease;
mod listener;
mod row;
mod settings;
mod statement;

use std::sync::Arc;

use self::advisory::Advisory;
pub use self::connect::SCHEMA;
use self::connect::prepare;
use self::lease::Leases;
use self::listener::Listener;
use self::row::Rows;
use self::settings::{Strategy, settings};
use crate::engine::Engine;
use crate::engines::Registration;
use crate::engines::endpoint::Endpoint;
use crate::engines::sql::{LeaseEngine, SessionEngine, SessionLock};
use crate::error::Result;

/// This engine's row in the table of schemes.
pub(crate) const ENGINE: Registration = Registration {
    open: |endpoint| Box::pin(open(endpoint)),
    guarantees: |endpoint| {
        let settings = settings(endpoint)?;
        Ok(match settings.common.strategy {
            Strategy::Lease => lease::promises(settings.is_pooled),
            Strategy::Advisory => Advisory::GUARANTEES,
            Strategy::Row => Rows::GUARANTEES,
        })
    },
    ways: &[
        "postgres://localhost",
        "postgres://localhost?pooler=transaction",
        "postgres://localhost?strategy=advisory",
        "postgres://localhost?strategy=row",
    ],
};

/// Opens `postgres://user@host/database?strategy=…`.
async fn open(endpoint: Endpoint) -> Result<Arc<dyn Engine>> {
    let mut settings = settings(&endpoint)?;
    settings.common = settings.common.with_password(|options, word| options.password(word))?;
    let (strategy, options) = (settings.common.strategy, settings.common.options.clone());
    let sessions = prepare(settings).await?;
    Ok(match strategy {
        Strategy::Lease => {
            let leases = match sessions.is_lent() {
                true => Leases::polling(),
                false => {
                    let disconnections = sessions.disconnections.clone();
                    Leases::notified(Listener::new(options, disconnections))
                }
            };
            Arc::new(LeaseEngine::new(sessions, leases))
        }
        Strategy::Advisory => Arc::new(SessionEngine::<Advisory>::new(sessions)),
        Strategy::Row => Arc::new(SessionEngine::<Rows>::new(sessions)),
    })
}
