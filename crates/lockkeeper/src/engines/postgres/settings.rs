//! The settings in the URL.

use sqlx::postgres::PgConnectOptions;

use crate::engines::endpoint::Endpoint;
use crate::engines::sql;
use crate::error::{Error, Result};
use crate::who::whoami;

/// The settings in a URL.
pub(super) struct Settings {
    /// Those that both databases share.
    pub(super) common: Common,
    /// The schema of the tables, if it is not the first of the search path.
    pub(super) schema: Option<String>,
    /// Whether a transaction-mode pooler provides the connections. If the URL does not say so, that
    /// is detected.
    pub(super) is_pooled: bool,
}

type Common = sql::Settings<Strategy, PgConnectOptions>;

/// The strategies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    Lease,
    Advisory,
    Row,
}

/// Parses a URL.
pub(super) fn settings(endpoint: &Endpoint) -> Result<Settings> {
    let mut options = endpoint.options();
    let schema = options.take("schema")?;
    let pooler = options.choice("pooler", &[("transaction", true)])?;
    let strategies =
        [("lease", Strategy::Lease), ("advisory", Strategy::Advisory), ("row", Strategy::Row)];
    let native = ["host", "sslmode", "sslrootcert", "sslcert", "sslkey"];
    let mut common = Common::of(endpoint, options, &strategies, &native)?;
    let is_pooled = pooler.unwrap_or(false);
    if is_pooled && common.strategy != Strategy::Lease {
        return Err(Error::Url(
            "pooler=transaction needs strategy=lease: other locks live in a session".to_owned(),
        ));
    }
    // Poolers refuse unknown parameters, and we read no floating-point numbers exactly.
    let named = common.options.application_name(&format!("lockkeeper {}", whoami()));
    common.options = named.extra_float_digits(None);
    if endpoint.expose().username().is_empty() && std::env::var_os("PGUSER").is_none() {
        // The driver would go by the variable USER, which services and cron need not have.
        let us = whoami();
        let user = us.split('@').next().unwrap_or_default();
        common.options = common.options.username(user);
    }
    if let Some(schema) = &schema {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty() || !schema.chars().all(plain) {
            return Err(Error::Url(format!(
                "option schema cannot be {schema:?}; it is lower-case letters, digits and _"
            )));
        }
        common.options = common.options.options([("search_path", schema)]);
    }
    Ok(Settings { common, schema, is_pooled })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_that_of_the_url_or_of_this_process() {
        let user = |url: &str| {
            let settings = settings(&Endpoint::parse(url).unwrap()).unwrap();
            settings.common.options.get_username().to_owned()
        };
        assert_eq!(user("postgres://ann@localhost/db"), "ann");
        if std::env::var_os("PGUSER").is_none() {
            assert_eq!(user("postgres://localhost/db"), whoami().split('@').next().unwrap());
        }
    }
}
