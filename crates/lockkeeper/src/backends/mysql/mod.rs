//! `mysql:`: locks in a MariaDB or MySQL database, for those who have one and want nothing else.
//!
//! The strategy `lease` keeps a table of claims with leases by the server's clock, and does everything.
//! Nobody can be woken by these servers, so a waiter looks again: soon when it is next in line,
//! rarely when it is not, and without a write.

mod connect;
mod doctor;
mod lease;

use std::sync::Arc;

pub use self::connect::SCHEMA;
use self::connect::Settings;
use crate::backend::Backend;
use crate::backends::Engine;
use crate::error::Result;
use crate::url::Endpoint;

/// This engine's line in the table of schemes.
pub(crate) const ENGINE: Engine = Engine {
    open: |endpoint| Box::pin(open(endpoint)),
    guarantees: |endpoint| Settings::of(endpoint).map(|_| lease::GUARANTEES),
    ways: &["mysql://localhost/test"],
};

/// Opens `mysql://user@host/database`.
async fn open(endpoint: Endpoint) -> Result<Arc<dyn Backend>> {
    let settings = Settings::of(&endpoint)?.with_password()?;
    Ok(Arc::new(lease::Leases::open(settings).await?))
}
