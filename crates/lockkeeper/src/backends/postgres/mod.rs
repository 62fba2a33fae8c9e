//! `postgres:`: locks in a PostgreSQL database, for those who have one and want nothing else.
//!
//! Three strategies, chosen by `?strategy=`. `lease` (the default) keeps a table of claims with leases
//! by the server's clock, and does everything. `advisory` and `row` let the server itself hold and queue
//! for as long as a connection lives. They do not exclude each other: everyone names the same strategy.

mod advisory;
mod claim;
mod connect;
mod doctor;
mod lease;
mod listener;
mod row;

use std::sync::Arc;

use self::advisory::Advisory;
pub use self::connect::SCHEMA;
use self::connect::{Strategy, prepare, settings};
use self::row::Rows;
use crate::backend::Backend;
use crate::backends::Engine;
use crate::backends::sql::{Bound, Hold};
use crate::error::Result;
use crate::url::Endpoint;

/// This engine's line in the table of schemes.
pub(crate) const ENGINE: Engine = Engine {
    open: |endpoint| Box::pin(open(endpoint)),
    guarantees: |endpoint| {
        Ok(match settings(endpoint)?.strategy {
            Strategy::Lease => lease::GUARANTEES,
            Strategy::Advisory => Advisory::GUARANTEES,
            Strategy::Row => Rows::GUARANTEES,
        })
    },
    ways: &[
        "postgres://localhost",
        "postgres://localhost?strategy=advisory",
        "postgres://localhost?strategy=row",
    ],
};

/// Opens `postgres://user@host/database?strategy=…`.
async fn open(endpoint: Endpoint) -> Result<Arc<dyn Backend>> {
    let settings = settings(&endpoint)?.with_password(|options, word| options.password(word))?;
    Ok(match settings.strategy {
        Strategy::Lease => Arc::new(lease::Leases::open(settings).await?),
        Strategy::Advisory => Arc::new(Bound::<Advisory>::new(prepare(settings).await?)),
        Strategy::Row => Arc::new(Bound::<Rows>::new(prepare(settings).await?)),
    })
}
