//! `postgres:`: locks in a PostgreSQL database, for those who have one and want nothing else.
//!
//! Three strategies, chosen by `?strategy=`. `lease` (the default) keeps a table of claims with leases
//! by the server's clock, and does everything. `advisory` and `row` let the server itself hold and queue
//! for as long as a connection lives. They do not exclude each other: everyone names the same strategy.

mod connect;
mod doctor;
mod lease;
mod listener;

use std::sync::Arc;

pub use self::connect::SCHEMA;
use self::connect::Settings;
use crate::backend::Backend;
use crate::error::Result;
use crate::url::Endpoint;

/// Opens `postgres://user@host/database?strategy=…`.
pub(crate) async fn open(endpoint: Endpoint) -> Result<Arc<dyn Backend>> {
    let settings = Settings::of(&endpoint)?;
    Ok(Arc::new(lease::Leases::open(settings).await?))
}
