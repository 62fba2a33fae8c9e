//! `mysql:`: locks in a MariaDB or MySQL database that you already run.
//!
//! There are three strategies, selected by `?strategy=`. `lease` (the default) keeps a table of
//! claims with leases by the server's clock, and supports everything. These servers cannot notify
//! clients, so waiters poll: often if they are first in the queue, rarely if not, and without a
//! write. With `named` and `row`, the server itself holds and queues as long as a connection lives.

mod cluster;
mod connect;
mod doctor;
mod error;
mod lease;
mod named;
mod row;
mod settings;
mod uncontended;
mod waiters;

use std::sync::Arc;

pub use self::connect::SCHEMA;
use self::connect::{may_release_by_mark, prepare, prepare_to_bind};
use self::lease::Leases;
use self::named::Named;
use self::row::Rows;
use self::settings::{Strategy, settings};
use self::uncontended::Uncontended;
use crate::engine::Engine;
use crate::engines::Registration;
use crate::engines::endpoint::Endpoint;
use crate::engines::sql::{LeaseEngine, SessionEngine, SessionLock};
use crate::error::Result;

/// This engine's row in the table of schemes.
pub(crate) const ENGINE: Registration = Registration {
    open: |endpoint| Box::pin(open(endpoint)),
    guarantees: |endpoint| {
        Ok(match settings(endpoint)?.strategy {
            Strategy::Lease => lease::PROMISES,
            Strategy::Named => Named::GUARANTEES,
            Strategy::Row => Rows::GUARANTEES,
        })
    },
    ways: &[
        "mysql://localhost/test",
        "mysql://localhost/test?strategy=named",
        "mysql://localhost/test?strategy=row",
    ],
};

/// Opens `mysql://user@host/database?strategy=…`.
async fn open(endpoint: Endpoint) -> Result<Arc<dyn Engine>> {
    let settings = settings(&endpoint)?.with_password(|options, word| options.password(word))?;
    Ok(match settings.strategy {
        Strategy::Lease => {
            let sessions = prepare(settings).await?;
            let uncontended = may_release_by_mark(&sessions).await?.then(Uncontended::default);
            Arc::new(LeaseEngine::new(sessions, Leases(uncontended)))
        }
        Strategy::Named => Arc::new(SessionEngine::<Named>::new(prepare_to_bind(settings).await?)),
        Strategy::Row => Arc::new(SessionEngine::<Rows>::new(prepare_to_bind(settings).await?)),
    })
}
