//! The settings in the URL.

use sqlx::mysql::MySqlConnectOptions;

use crate::engines::endpoint::Endpoint;
use crate::engines::sql;
use crate::error::{Error, Result};

/// The settings in a URL.
pub(super) type Settings = sql::Settings<Strategy, MySqlConnectOptions>;

/// The strategies.
#[derive(Debug, Clone, Copy)]
pub(super) enum Strategy {
    Lease,
    Named,
    Row,
}

/// Parses a URL.
pub(super) fn settings(endpoint: &Endpoint) -> Result<Settings> {
    let strategies =
        [("lease", Strategy::Lease), ("named", Strategy::Named), ("row", Strategy::Row)];
    let native = ["socket", "ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"];
    let mut settings = Settings::of(endpoint, endpoint.options(), &strategies, &native)?;
    let url = endpoint.expose();
    if url.path().trim_matches('/').is_empty() {
        return Err(Error::Url(
            "mysql: the URL names no database; write mysql://user@host/database".to_owned(),
        ));
    }
    if url.password().is_none()
        && let Ok(password) = std::env::var("MYSQL_PWD")
    {
        settings.options = settings.options.password(&password);
    }
    Ok(settings)
}
