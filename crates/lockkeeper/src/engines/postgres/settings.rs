//! What the URL says.

use sqlx::postgres::PgConnectOptions;

use crate::engines::endpoint::Endpoint;
use crate::engines::sql;
use crate::error::{Error, Result};
use crate::who::whoami;

/// What a URL says.
pub(super) type Settings = sql::Settings<Strategy, PgConnectOptions>;

/// How locks are kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum Strategy {
    Lease,
    Advisory,
    Row,
}

/// Reads a URL.
pub(super) fn settings(endpoint: &Endpoint) -> Result<Settings> {
    let mut options = endpoint.options();
    let schema = options.take("schema")?;
    let strategies =
        [("lease", Strategy::Lease), ("advisory", Strategy::Advisory), ("row", Strategy::Row)];
    let native = ["host", "sslmode", "sslrootcert", "sslcert", "sslkey"];
    let mut settings = Settings::of(endpoint, options, &strategies, &native)?;
    // Poolers refuse a parameter that they do not know, and we read no floating-point number exactly.
    let named = settings.options.application_name(&format!("lockkeeper {}", whoami()));
    settings.options = named.extra_float_digits(None);
    if let Some(schema) = schema {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty() || !schema.chars().all(plain) {
            return Err(Error::Url(format!(
                "option schema cannot be {schema:?}; it is lower-case letters, digits and _"
            )));
        }
        settings.options = settings.options.options([("search_path", schema)]);
    }
    Ok(settings)
}
